"""What a call costs beside its product: the host's time, the launches, the gradients and their memory.

    python -m bench.calls [--csv bench/results]

measures functions of this package beside torch's, all with TF32 off and each compared with float64 first, and with
--csv writes <gpu>/calls.csv in that folder. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

import triton_sgemm
from triton_sgemm.device import gpu
from triton_sgemm.errors import first_line
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.testing import Reference, errors

from . import measure, table
from .environment import environment
from .keep import kept

ROUNDS = 5
CALLS = 200  # one after the other, up to five launches each: fewer than the queue holds, or the device is waited for
REPLAYS = 20
SAMPLES = 10
OFF = 1e-5  # relative error, Frobenius, at most: ten times float32's at these sizes, a thirtieth of TF32's

Call = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """Who multiplies."""

    matmul: Callable[..., Tensor]
    bmm: Callable[..., Tensor]
    linear: Callable[..., Tensor]


def ours(precision: str) -> Way:
    """This package in a precision."""
    functions = triton_sgemm.matmul, triton_sgemm.bmm, triton_sgemm.linear
    return Way(*(partial(function, precision=precision) for function in functions))


def exact(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's function in float64; it has no `out`."""
    return lambda *operands, out=None: function(*(t.double() for t in operands))


Product = Callable[[Way, Tensor, Tensor], Tensor]
EXACT = Way(exact(torch.matmul), exact(torch.bmm), exact(functional.linear))
WAYS = {"torch": Way(torch.matmul, torch.bmm, functional.linear), "ieee": ours("ieee"), "fp32": ours("fp32")}


# ---- what is called


def product(way: Way, a: Tensor, b: Tensor) -> Tensor:
    """A @ B."""
    return way.matmul(a, b)


def transposed(way: Way, a: Tensor, b: Tensor) -> Tensor:
    """A @ B.T."""
    return way.matmul(a, b.T)


def linear(way: Way, x: Tensor, weight: Tensor) -> Tensor:
    """A layer without a bias."""
    return way.linear(x, weight)


def plain(way: Way, n: int, of: Product = product) -> Call:
    """A product that autograd does not see."""
    a, b = _random(n, n), _random(n, n)
    return lambda: of(way, a, b)


def recorded(way: Way, n: int) -> Call:
    """A product of which autograd keeps what gradients need."""
    a, b = _random(n, n).requires_grad_(), _random(n, n).requires_grad_()
    return lambda: way.matmul(a, b)


def gradients(way: Way, n: int, of: Product) -> Call:
    """The gradients of both operands."""
    a, b, gradient = _random(n, n).requires_grad_(), _random(n, n).requires_grad_(), _random(n, n)
    result = of(way, a, b)
    return lambda: torch.autograd.grad(result, (a, b), gradient, retain_graph=True)


def into(way: Way, n: int) -> Call:
    """A product into a tensor that is there."""
    a, b, out = _random(n, n), _random(n, n), _random(n, n).fill_(float("nan"))
    return lambda: way.matmul(a, b, out=out)


def batch(way: Way, n: int) -> Call:
    """Eight products."""
    a, b = _random(8, n, n), _random(8, n, n)
    return lambda: way.bmm(a, b)


def layer(way: Way, n: int) -> Call:
    """A layer with a bias."""
    x, weight, bias = _random(n, n), _random(n, n), _random(n)
    return lambda: way.linear(x, weight, bias)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda")


# ---- what is measured


def host_us(call: Call) -> float:
    """Microseconds of the host."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * elapsed / CALLS


def replayed_us(call: Call) -> float:
    """Microseconds of the device, replayed in a CUDA graph."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    measure.load(graph.replay, measure.LOAD_S)
    return 1e3 * statistics.median(measure.sample(graph.replay) for _ in range(REPLAYS)) / CALLS


def ms(call: Call) -> float:
    """Milliseconds of the device, warm, with a cold L2."""
    flush = torch.empty(measure.FLUSH * gpu(torch.cuda.current_device()).l2_bytes, dtype=torch.uint8, device="cuda")
    measure.load(call, measure.LOAD_S)
    return statistics.median(measure.sample(call, flush) for _ in range(SAMPLES))


def mib(call: Call) -> float:
    """MiB of memory that a call takes at its height, results included."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@dataclass(frozen=True)
class Case:
    """A call, its size, and what of it is measured."""

    call: str
    n: int
    unit: str
    measured: Callable[[Call], float]
    made: Callable[[Way, int], Call]

    def one(self, way: Way) -> float:
        """What is measured of the call by a way."""
        return self.measured(self.made(way, self.n))

    def wrong(self, way: Way) -> str:
        """What is wrong with the call's results by a way; "" where nothing is."""
        results = []
        for each in (way, EXACT):
            torch.manual_seed(0)  # the same operands
            result = self.made(each, self.n)()
            results.append([t.detach() for t in (result if isinstance(result, tuple) else (result,))])
        for mine, right in zip(*results, strict=True):
            off = errors(mine, Reference(right, right.abs(), self.n)).relative
            if not off <= OFF:
                return f"off by {off:.1e}, over {OFF:.0e}"
        return ""


CASES = (
    *(
        Case(call, n, "microseconds, host", host_us, made)
        for n in (64, 1024)
        for call, made in (
            ("a @ b", plain),
            ("a @ b, out=", into),
            ("a @ b, gradients recorded", recorded),
            ("bmm, 8 products", batch),
            ("linear with a bias", layer),
        )
    ),
    *(Case("a @ b, replayed in a graph", n, "microseconds, device", replayed_us, plain) for n in (64, 256)),
    *(
        case
        for call, of in (("linear", linear), ("a @ b.T", transposed))
        for case in (
            Case(call, 4096, "ms", ms, partial(plain, of=of)),
            Case(f"{call}, both gradients", 4096, "ms", ms, partial(gradients, of=of)),
            Case(f"{call}, both gradients", 4096, "MiB", mib, partial(gradients, of=of)),
        )
    ),
)


@dataclass(frozen=True)
class Row:
    """A case by torch and by this package in two precisions: columns of calls.csv, beside those of an Environment."""

    call: str
    n: int
    unit: str
    by_torch: float | None = None
    by_ieee: float | None = None
    by_fp32: float | None = None
    note: str = ""


def row(case: Case) -> Row:
    """Measures a case: medians of ROUNDS, in each of which the ways come in a new order; nothing where one is wrong."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    empty = Row(case.call, case.n, case.unit)
    with torch_matmul_precision("ieee"):
        try:
            if wrong := [f"{name} is {off}" for name, way in WAYS.items() if (off := case.wrong(way))]:
                return replace(empty, note=f"wrong: {', '.join(wrong)}")
            for _ in range(ROUNDS):
                for name in random.sample(list(WAYS), len(WAYS)):
                    found[name].append(case.one(WAYS[name]))
        except Exception as e:  # one case that fails leaves the others their rows
            return replace(empty, note=f"failed: {first_line(e)}")
    figures: dict[str, Any] = {f"by_{name}": statistics.median(each) for name, each in found.items()}
    return replace(empty, **figures)


def main() -> int:
    """Measures and prints; 1 where a call was wrong or failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write <gpu>/calls.csv there")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA GPU, whose calls are measured")
    where = environment()
    print(where.header(), end="\n\n")
    path = args.csv / gpu(torch.cuda.current_device()).slug / "calls.csv" if args.csv else None
    cases = track(CASES, "measuring", console=Console(stderr=True), transient=True)
    data = kept(map(row, cases), where, path)
    print(table.calls(data))
    if path:
        print(f"\nwritten: {path}")
    return 1 if data["note"].any() else 0


if __name__ == "__main__":
    raise SystemExit(main())
