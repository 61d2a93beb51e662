"""Verifies every variant and tabulates ms, GFLOP/s and percent of cuBLAS.

Without a CUDA GPU it checks every variant on small sizes instead (Triton in its interpreter, the raw CUDA
kernels executed on the CPU, Gluon compiled only), reads registers, shared memory and spills from the
compiled code, and leaves the times empty.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, track

from triton_sgemm.device import gpu

from . import measure, run, table
from .catalog import VARIANTS, select, with_baselines
from .compiled import read_all
from .data import DATA
from .environment import Environment, environment
from .suites import LAYOUTS, ON_CPU, SUITES, Case

COMPILE_FOR = 90  # where there is no GPU to ask
SIZES = (
    "shapes in place of the suite's: N, MxNxK or BATCHxMxNxK, a layout where it is not NN: "
    + ", ".join(f"N:{layout}" for layout in LAYOUTS if layout != "NN")
    + "; and what the operands hold: "
    + ", ".join(f"N:NN:{data}" for data in DATA if data != "normal")
)


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--suite", nargs="+", choices=[*SUITES, "all"], default=["chapter"], help="which shapes (default: chapter)"
    )
    parser.add_argument("--variants", nargs="+", metavar="GLOB", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--sizes", nargs="+", type=Case.parse, metavar="SIZE", help=SIZES)
    parser.add_argument(
        "--csv", type=Path, metavar="PATH", help="write the results: a .csv file, or a folder for <gpu>/<suite>.csv"
    )
    args = parser.parse_args()
    args.suite = list(SUITES) if "all" in args.suite else list(dict.fromkeys(args.suite))
    args.sizes = list(dict.fromkeys(args.sizes or []))
    try:
        args.variants = with_baselines(select(args.variants)) if args.variants else None
    except ValueError as e:
        parser.error(str(e))
    if args.csv and args.csv.suffix == ".csv" and len(args.suite) > 1:
        parser.error(f"{args.csv} is one file but --suite names {len(args.suite)}; give a folder")
    if args.csv and args.csv.suffix != ".csv" and (args.sizes or args.variants):
        parser.error("only a whole suite goes into a results folder; with --sizes or --variants give a .csv file")
    return args


def on_gpu(args: argparse.Namespace, where: Environment) -> list[table.Row]:
    """Verifies and times every suite."""
    card = gpu(torch.cuda.current_device())
    rows: list[table.Row] = []
    for suite in args.suite:
        cases = args.sizes or SUITES[suite].cases
        variants = args.variants or select(list(SUITES[suite].variants))
        measured: list[table.Row] = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            each = len(variants) * (1 + measure.ROUNDS)
            task = progress.add_task(suite, total=len(cases) * each)
            for i, case in enumerate(cases, 1):
                progress.update(task, description=f"{suite} {case}")
                if not progress.console.is_terminal:  # where nothing can be drawn over, a line a shape
                    print(f"{suite} {i}/{len(cases)}: {case}", file=sys.stderr, flush=True)
                measured += run.timed(case, variants, card, where, partial(progress.advance, task))
                progress.update(task, completed=i * each)
                if args.csv and i < len(cases):  # what an interrupted run has
                    table.save(measured, destination(args.csv, card.slug, suite).with_suffix(".part.csv"))
        print(f"{suite}\n\n{table.printed(table.frame(measured))}\n", flush=True)
        save(measured, args.csv, card.slug, suite)
        rows += measured
    return rows


def on_cpu(args: argparse.Namespace, where: Environment) -> list[table.Row]:
    """Checks every variant, and reads what the compilers made of it."""
    variants = args.variants or list(VARIANTS.values())
    with Console(stderr=True).status(f"compiling every variant for sm_{COMPILE_FOR}"):
        compiled = {c.variant: c for c in read_all([COMPILE_FOR], [v.name for v in variants])}
    rows: list[table.Row] = []
    for case in track(args.sizes or ON_CPU, "checking", console=Console(stderr=True), transient=True):
        rows += run.crosschecked(case, variants, where)
    notes = {name: c.note for name, c in compiled.items() if c.note.startswith("failed")}
    rows = [replace(row, note=notes.get(row.variant, row.note)) for row in rows]
    print(f"cross-check on the CPU\n\n{table.text(table.frame(rows), compiled)}\n")
    save(rows, args.csv, "no-gpu", "cross-check")
    return rows


def save(rows: list[table.Row], csv: Path | None, slug: str, suite: str) -> None:
    """Writes the rows to the file, or into the folder, that --csv names."""
    if csv:
        path = destination(csv, slug, suite)
        table.save(rows, path)
        path.with_suffix(".part.csv").unlink(missing_ok=True)
        print(f"written: {path}\n")


def destination(csv: Path, slug: str, suite: str) -> Path:
    """The file that --csv names, or that of a suite in the folder that it names."""
    return csv if csv.suffix == ".csv" else csv / slug / f"{suite}.csv"


def main() -> int:
    """Runs the bench; 1 where a variant is wrong or failed."""
    args = arguments()
    where = environment()
    print(where.header(), end="\n\n")
    rows = on_gpu(args, where) if torch.cuda.is_available() else on_cpu(args, where)
    bad = [row for row in rows if run.failed(row)]
    for row in bad:
        print(f"FAILED {row.variant} at {row.case}: {row.note}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
