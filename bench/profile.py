"""What the GPU counts while a variant runs: bytes, the use of its pipes, why its warps wait.

    python -m bench.profile [--variants 'fma_*'] [--size 4096] [--csv bench/results]

runs ncu on one call of each variant, verified first, and writes <gpu>/profile.csv, which `make explain` shows beside
what was predicted. Rows of that file that are not measured anew stay. `ms` is that of the kernels alone, one after the
other: `make bench` has the time of a call.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track
from tabulate import tabulate

from triton_sgemm.device import gpu
from triton_sgemm.variants import Variant

from . import ncu, table
from .catalog import MATMULS, VARIANTS, select
from .environment import Environment, environment
from .peers import VARIANTS as PEERS
from .suites import Case

# every rung, every algorithm, and cuBLAS
DEFAULT = [v.name for v in VARIANTS.values() if v not in (*MATMULS, *PEERS)]
KEY = ["variant", "M", "N", "K"]
SHOWN = ["variant", "ms", "gflops", "fma_pct", "tensor_pct", "stall_1", "stall_1_pct", "registers", "occupancy_pct"]


@dataclass(frozen=True)
class Row:
    """One variant at one shape: the columns of profile.csv, in their order.

    Times and bytes are summed over the kernels of a call; the other figures are of the one that takes longest. A stall
    is a reason for which warps did not issue, and its share of all such waiting. `note` says why a figure is missing.
    """

    variant: str
    M: int
    N: int
    K: int
    ms: float | None = None
    gflops: float | None = None
    dram_bytes: float | None = None
    l2_bytes: float | None = None
    fma_pct: float | None = None
    tensor_pct: float | None = None
    stall_1: str | None = None
    stall_1_pct: float | None = None
    stall_2: str | None = None
    stall_2_pct: float | None = None
    stall_3: str | None = None
    stall_3_pct: float | None = None
    registers: float | None = None
    occupancy_pct: float | None = None
    gpu: str = ""
    driver: str = ""
    torch: str = ""
    triton: str = ""
    commit: str = ""
    date: str = ""
    note: str = ""


COLUMNS = [f.name for f in fields(Row)]


def measured(v: Variant, case: Case, path: str, unknown: set[str], where: Environment) -> Row:
    """The variant's row; `unknown` holds the metrics that this ncu was found not to know."""
    program = [sys.executable, "-m", "bench.one_call", v.name, str(case)]
    found: dict[str, Any] = {}
    try:
        kernels = ncu.profile(path, program, unknown)
        found |= ncu.figures(kernels)
        if found["ms"]:
            found["gflops"] = 1e-6 * case.flops / found["ms"]
        if lacking := [m for m in ncu.METRICS if not any(m in kernel for kernel in kernels)]:
            found["note"] = f"ncu has no {', '.join(lacking)}"
    except ncu.Failed as e:
        found["note"] = str(e)
    return Row(v.name, case.M, case.N, case.K, **asdict(where) | found)


def merged(rows: list[Row], path: Path) -> pd.DataFrame:
    """The rows and, before them, those of the file that are of other variants or shapes."""
    old = table.read(path).to_dict("records") if path.exists() else []
    return pd.DataFrame([*old, *map(asdict, rows)], columns=COLUMNS).drop_duplicates(KEY, keep="last")


def main() -> int:
    """Profiles and prints; 1 where a variant is wrong or failed, 2 where nothing can be profiled."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants", nargs="+", metavar="GLOB", default=DEFAULT, help="default: rungs, algorithms, cuBLAS"
    )
    parser.add_argument("--size", type=Case.parse, default=Case.parse("4096"), help="N or MxNxK (default: 4096)")
    parser.add_argument("--csv", type=Path, default=table.RESULTS, metavar="FOLDER", help="default: bench/results")
    args = parser.parse_args()
    case = args.size
    try:
        variants = select(args.variants)
    except ValueError as e:
        parser.error(str(e))
    if case != Case(case.M, case.N, case.K):
        parser.error(f"--size {case}: profile.csv has no column for a batch, layout or data; need N or MxNxK")
    if args.csv.suffix == ".csv":
        parser.error(f"--csv {args.csv} is a file; need a folder, for <gpu>/profile.csv in it")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA GPU, whose counters a profile reads; `make explain` shows what needs none")
    ncu_path = ncu.find()
    if not ncu_path:
        parser.error("ncu is not on the PATH nor beside nvcc; install Nsight Compute, which is in the CUDA toolkit")

    where = environment()
    print(where.header(), end="\n\n")
    path = args.csv / gpu(torch.cuda.current_device()).slug / "profile.csv"
    rows: list[Row] = []
    unknown: set[str] = set()
    for v in track(variants, f"profiling at {case}", console=Console(stderr=True), transient=True):
        rows.append(measured(v, case, ncu_path, unknown, where))
        print(f"{v.name}: {rows[-1].note or 'profiled'}", file=sys.stderr, flush=True)
        table.save_frame(merged(rows, path), path)  # what an interrupted run has
    shown = [[_cell(getattr(row, name)) for name in SHOWN] for row in rows]
    print(tabulate(shown, headers=SHOWN, disable_numparse=True), end="\n\n")
    print(f"written: {path}")
    return 1 if any(row.note.startswith(("wrong", "failed")) for row in rows) else 0


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,.4g}"


if __name__ == "__main__":
    sys.exit(main())
