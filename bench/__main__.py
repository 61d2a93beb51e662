"""Verifies every variant and tabulates ms, GFLOP/s and percent of cuBLAS.

Without a CUDA GPU it checks every variant on small sizes instead (Triton in its interpreter, the raw CUDA
kernels executed on the CPU, Gluon compiled only), reads registers, shared memory and spills from the
compiled code, and leaves the times empty.

With --compare it says what is faster or slower than in a results file: what it measures, or, without measuring,
a second file. Tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, track

from triton_sgemm.device import gpu

from . import changes, measure, run, table
from .catalog import VARIANTS, select, with_baselines
from .compiled import read_all
from .data import DATA
from .environment import Environment, environment
from .suites import LAYOUTS, ON_CPU, SUITES, Case

COMPILE_FOR = 90  # where there is no GPU to ask
FORMS = {"text": table.PLAIN, "markdown": table.MARKDOWN, "json": table.PLAIN}  # of the tables, for --format
SIZES = (
    "shapes in place of the suite's: N, MxNxK or BATCHxMxNxK, a layout where it is not NN: "
    + ", ".join(f"N:{layout}" for layout in LAYOUTS if layout != "NN")
    + "; and what the operands hold: "
    + ", ".join(f"N:NN:{data}" for data in DATA if data != "normal")
)


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--suite", nargs="+", choices=[*SUITES, "all"], default=["chapter"], help="which shapes (default: chapter)"
    )
    parser.add_argument("--variants", nargs="+", metavar="GLOB", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--sizes", nargs="+", type=Case.parse, metavar="SIZE", help=SIZES)
    parser.add_argument(
        "--csv", type=Path, metavar="PATH", help="write the results: a .csv file, or a folder for <gpu>/<suite>.csv"
    )
    parser.add_argument(
        "--compare", nargs="+", type=Path, metavar="CSV", help="OLD.csv, with what is measured, or OLD.csv NEW.csv"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"time {measure.QUICK.rounds} round of less load: rough, not to be kept"
    )
    parser.add_argument(
        "--format",
        choices=FORMS,
        default="text",
        help="of the tables (default: text); json is the rows of the results file, or of the comparison, alone",
    )
    args = parser.parse_args()
    args.suite = list(SUITES) if "all" in args.suite else list(dict.fromkeys(args.suite))
    args.sizes = list(dict.fromkeys(args.sizes or []))
    try:
        args.variants = with_baselines(select(args.variants)) if args.variants else None
    except ValueError as e:
        parser.error(str(e))
    if args.compare:
        compared(args, parser)
    if args.csv and args.csv.suffix == ".csv" and args.csv.is_dir():
        parser.error(f"--csv: {args.csv} is a folder named like a file; give a file in it")
    if args.csv and args.csv.suffix != ".csv" and args.csv.is_file():
        parser.error(f"--csv: {args.csv} is a file; need a name that ends in .csv, or a folder")
    if args.csv and args.csv.suffix == ".csv" and len(args.suite) > 1:
        parser.error(f"{args.csv} is one file but --suite names {len(args.suite)}; give a folder")
    if args.csv and args.csv.suffix != ".csv" and (args.sizes or args.variants):
        parser.error("only a whole suite goes into a results folder; with --sizes or --variants give a .csv file")
    if args.csv and args.csv.suffix != ".csv" and args.quick:
        parser.error(f"results of --quick do not go into a results folder ({args.csv}); give a .csv file")
    return args


def compared(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Reads the files that --compare names, before anything is measured."""
    if len(args.compare) > 2:
        parser.error(
            f"--compare takes OLD.csv or OLD.csv NEW.csv but came with {len(args.compare)} files; leave out some"
        )
    if len(args.compare) == 2:
        measuring = {"--sizes": args.sizes, "--variants": args.variants, "--csv": args.csv, "--quick": args.quick}
        if needless := [name for name, value in measuring.items() if value]:
            parser.error(f"--compare OLD.csv NEW.csv measures nothing; leave out {', '.join(needless)}, or NEW.csv")
    elif not torch.cuda.is_available():
        parser.error("--compare OLD.csv measures, for which there is no CUDA GPU; give a second file, OLD.csv NEW.csv")
    try:
        args.compare = [changes.load(path) for path in args.compare]
    except ValueError as e:
        parser.error(f"--compare: {e}")


def on_gpu(args: argparse.Namespace, where: Environment) -> list[table.Row]:
    """Verifies and times every suite."""
    card = gpu(torch.cuda.current_device())
    effort = measure.QUICK if args.quick else measure.FULL
    rows: list[table.Row] = []
    for suite in args.suite:
        cases = args.sizes or SUITES[suite].cases
        variants = args.variants or select(list(SUITES[suite].variants))
        measured: list[table.Row] = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            each = len(variants) * (1 + effort.rounds)
            task = progress.add_task(suite, total=len(cases) * each)
            for i, case in enumerate(cases, 1):
                progress.update(task, description=f"{suite} {case}")
                if not progress.console.is_terminal:  # where nothing can be drawn over, a line a shape
                    print(f"{suite} {i}/{len(cases)}: {case}", file=sys.stderr, flush=True)
                measured += run.timed(case, variants, card, where, partial(progress.advance, task), effort)
                progress.update(task, completed=i * each)
                if args.csv and i < len(cases):  # what an interrupted run has
                    path = destination(args.csv, card.slug, suite).with_suffix(".part.csv")
                    table.save(noted(measured, args.quick), path)
        title = f"{suite}, {changes.QUICK}" if args.quick else suite
        print(f"{title}\n\n{table.printed(table.frame(measured), FORMS[args.format])}\n", flush=True)
        save(noted(measured, args.quick), args.csv, card.slug, suite)
        rows += noted(measured, args.quick)
    return rows


def noted(rows: list[table.Row], quick: bool) -> list[table.Row]:
    """The rows as they are kept: those that --quick timed say so."""
    return [replace(row, note=row.note or changes.QUICK) if quick else row for row in rows]


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
    print(f"cross-check on the CPU\n\n{table.text(table.frame(rows), compiled, FORMS[args.format])}\n")
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


def tell_changes(files: list[changes.Results], form: str) -> None:
    """Prints the comparison."""
    old, new = files
    print(table.json_text(changes.changes(old, new)) if form == "json" else changes.text(old, new, FORMS[form]))


def main() -> int:
    """Runs the bench; 1 where a variant is wrong or failed."""
    args = arguments()
    if args.compare and len(args.compare) == 2:
        tell_changes(args.compare, args.format)
        return 0
    where = environment()
    # in JSON the tables are progress, too
    with redirect_stdout(sys.stderr) if args.format == "json" else nullcontext():
        print(where.header(), end="\n\n")
        rows = on_gpu(args, where) if torch.cuda.is_available() else on_cpu(args, where)
    if args.compare:
        tell_changes([*args.compare, changes.Results("this run", table.frame(rows))], args.format)
    elif args.format == "json":
        print(table.json_text(table.frame(rows)))
    bad = [row for row in rows if run.failed(row)]
    for row in bad:
        print(f"FAILED {row.variant} at {row.case}: {row.note}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
