"""The error table: what each precision makes of data that is easy, common or hard, and how that grows with K.

    python -m bench.precision [--csv bench/results]

measures cuBLAS and the public call, in each precision, against float64; nothing is timed. With --csv the figures go to
<gpu>/precision.csv in that folder. Without a CUDA GPU small products are computed on the CPU and only printed: there
cuBLAS is torch on the CPU, and what `matmul` does runs in Triton's interpreter.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from triton_sgemm.device import gpu
from triton_sgemm.errors import first_line
from triton_sgemm.testing import Reference
from triton_sgemm.variants import Variant

from . import measure, table
from .catalog import select
from .data import DATA
from .environment import Environment, environment
from .suites import Case

VARIANTS = ("cublas", "matmul_ieee", "matmul_fp32", "cublas_tf32", "matmul_tf32")
K_OF_DATA = 4096
DEPTHS = (1, 16, 64, 1024, 4096, 65536, 262144)
DATA_OF_DEPTHS = ("normal", "uniform")

# every kind of data at one K, then two kinds at every K
ON_GPU = tuple(
    dict.fromkeys(
        (
            *(Case(1024, 1024, K_OF_DATA, data=data) for data in DATA),
            *(Case(1024, 1024, K, data=data) for data in DATA_OF_DEPTHS for K in DEPTHS),
        )
    )
)
ON_CPU = tuple(dict.fromkeys(Case(64, 64, min(case.K, 256), data=case.data) for case in ON_GPU))


@dataclass(frozen=True)
class Row:
    """One variant on one kind of data: the columns of precision.csv, in their order.

    `rel_err`, `max_err` and `fallback` are those of a results file (see table.Row); `bias` is the mean of dC / (|A||B|)
    with its sign; `note` says why a figure is missing.
    """

    data: str
    K: int
    M: int
    N: int
    variant: str
    rel_err: float | None = None
    max_err: float | None = None
    bias: float | None = None
    fallback: float | None = None
    gpu: str = ""
    driver: str = ""
    torch: str = ""
    triton: str = ""
    commit: str = ""
    date: str = ""
    note: str = ""


def mean_signed_error(result: Tensor, expected: Reference) -> float | None:
    """The mean of error / S over the elements that are to be finite; None where none is."""
    finite = expected.value.float().isfinite()
    if not finite.any():
        return None
    return ((result.double() - expected.value) / expected.scale)[finite].mean().item()


def figures(v: Variant, x: measure.Operands, expected: Reference) -> dict[str, Any]:
    """The errors of one call into NaN, and what fell back in it."""
    x.out.fill_(float("nan"))
    try:
        x.run(v)
        e, strays = measure.compared(x.out, expected)
        found: dict[str, Any] = {"bias": mean_signed_error(x.out, expected)}
        if e:
            found |= {"rel_err": e.relative, "max_err": e.largest}
        if v.fallback:
            found["fallback"] = v.fallback(x.problem, x.a, x.b, None, x.out)
    except Exception as error:  # one variant that fails leaves the others their rows
        return {"note": f"failed: {first_line(error)}"}
    if strays:
        found["note"] = measure.OTHER_CLASS.format(strays)  # a partial sum beyond float32's range makes it so, too
    return found


def measured(case: Case, variants: list[Variant], device: str, where: Environment) -> list[Row]:
    """One row a variant, all on the same operands."""
    x = measure.Operands.random(case, device)
    expected = measure.expectation(x)
    return [Row(case.data, case.K, case.M, case.N, v.name, **asdict(where) | figures(v, x, expected)) for v in variants]


def frame(rows: list[Row]) -> pd.DataFrame:
    """The rows as a table with the columns of precision.csv."""
    return pd.DataFrame([asdict(row) for row in rows], columns=[f.name for f in fields(Row)])


def main() -> int:
    """Measures and prints; 1 where a variant failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.precision", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write <gpu>/precision.csv there; needs a GPU")
    args = parser.parse_args()
    if args.csv and not torch.cuda.is_available():
        parser.error("--csv keeps what a CUDA GPU computed, and there is none; leave it away to see the CPU's figures")
    on_gpu, where, variants = torch.cuda.is_available(), environment(), select(list(VARIANTS))
    print(where.header(), end="\n\n")
    rows: list[Row] = []
    for case in track(ON_GPU if on_gpu else ON_CPU, "measuring", console=Console(stderr=True), transient=True):
        rows += measured(case, variants, "cuda" if on_gpu else "cpu", where)
    print(table.accuracy(frame(rows)), end="\n\n")
    if args.csv:
        path = args.csv / gpu(torch.cuda.current_device()).slug / "precision.csv"
        table.save_frame(frame(rows), path)
        print(f"written: {path}")
    return 1 if any(row.note.startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
