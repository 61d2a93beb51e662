"""Whether the plan chooses well: the best it knows in strict float32 beside the best it knows on tensor cores.

    python -m bench.choices [--csv bench/results]

measures both, each compared with float64 first, where they come close: a small result, a deep K, small products in a
batch. With --csv the figures go to <gpu>/choices.csv in that folder. Needs a GPU whose tensor cores are chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from triton_sgemm.device import Gpu, gpu
from triton_sgemm.errors import first_line
from triton_sgemm.execute import Execution
from triton_sgemm.plan import NARROW, Plan, Shape, best, on_tensor_cores, plan
from triton_sgemm.problem import Problem
from triton_sgemm.testing import Reference
from triton_sgemm.variants import Precision, Variant

from . import measure, table
from .environment import environment
from .keep import kept
from .suites import SUITES, Case, square

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32")
KINDS = ("strict", "tensor")
EFFORT = measure.Effort(rounds=3, load_s=0.05)

CASES = (
    *square(256, 384, 512, 640, 768, 1024, 1536, 2048),
    *(Case(1024, 1024, K) for K in (64, 128, 256, 8192)),
    *(case for name in ("skinny", "deep", "batched") for case in SUITES[name].cases if min(case.M, case.N) > NARROW),
)


@dataclass(frozen=True)
class Row:
    """A case in one precision, both ways: the columns of choices.csv, in their order, before those of an Environment.

    `strict` and `tensor` name the plans and their parts of K; `chosen` is which of them the plan takes.
    """

    precision: str
    batch: int
    M: int
    N: int
    K: int
    strict: str
    tensor: str
    chosen: str
    strict_ms: float | None = None
    tensor_ms: float | None = None
    note: str = ""


def pair(p: Problem, card: Gpu, precision: Precision) -> tuple[Plan, Plan] | None:
    """The fastest plan in strict float32 and on tensor cores, as predicted; None where these cannot serve."""
    ways = list(on_tensor_cores(Shape.of(p), card, precision, prepared=False))
    return (plan(p, card), best(ways)) if ways else None


def variant(name: str, chosen: Plan, p: Problem, precision: Precision) -> Variant:
    """A plan as something to measure."""
    execution = Execution(chosen, p)

    def run(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
        execution.run(a, b, c, out, p.alpha, p.beta)

    return Variant(name, "triton", precision, doc=chosen.why, batched=True, run_with=run)


def title(chosen: Plan, K: int) -> str:
    """A plan's name, and into how many parts it cuts K."""
    parts = -(-K // chosen.depth)
    return chosen.name + (f", {parts} parts" if parts > 1 else "")


def rows(case: Case, card: Gpu) -> Iterator[Row]:
    """Both ways of a case, in each precision that tensor cores can serve."""
    x = measure.Operands.random(case, "cuda")
    expected = measure.expectation(x)
    for precision in PRECISIONS:
        found = pair(x.problem, card, precision)
        if not found:
            continue
        strict, tensor = (title(each, case.K) for each in found)
        chosen = KINDS[found.index(plan(x.problem, card, precision))]
        row = Row(precision, case.batch, case.M, case.N, case.K, strict, tensor, chosen)
        ways = [variant(kind, each, x.problem, precision) for kind, each in zip(KINDS, found, strict=True)]
        yield replace(row, **figures(case, x, expected, ways, card))


def figures(case: Case, x: measure.Operands, expected: Reference, ways: list[Variant], card: Gpu) -> dict[str, Any]:
    """The times of both ways; a note in their place where one is wrong or fails."""
    try:
        for way in ways:
            if wrong := measure.verify(way, x, expected)[1]:
                return {"note": f"{way.name}: {wrong}"}
        times = measure.time_all(ways, x, case, card, lambda: None, EFFORT)
    except Exception as e:  # one case that fails leaves the others their rows
        return {"note": f"failed: {first_line(e)}"}
    return {f"{name}_ms": timing.ms for name, timing in times.items()}


def main() -> int:
    """Measures and prints; 1 where a plan was wrong or failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.choices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write <gpu>/choices.csv there")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA GPU, whose choices are measured")
    card = gpu(torch.cuda.current_device())
    where = environment()
    print(where.header(), end="\n\n")
    path = args.csv / card.slug / "choices.csv" if args.csv else None
    cases = track(CASES, "measuring", console=Console(stderr=True), transient=True)
    data = kept((row for case in cases for row in rows(case, card)), where, path)
    if data.empty:
        parser.error(f'on {card.name} "fp32" and "tf32" are always done in strict float32: there is nothing to choose')
    print(table.choices(data))
    if path:
        print(f"\nwritten: {path}")
    return 1 if data["note"].any() else 0


if __name__ == "__main__":
    raise SystemExit(main())
