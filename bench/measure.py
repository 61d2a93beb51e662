"""How a number is obtained: verified first, then timed beside cuBLAS in the same run.

All variants of one shape are timed in ROUNDS rounds, each in a new order: LOAD_S seconds of the same calls
first, so that the card is as warm as it will be in use, then samples, each with a cold L2. The figure is the
median. Up to GRAPH_UP_TO it is a CUDA graph of calls on operands in turn, more of them than the L2 holds, over
the number of calls; what an eager call takes in a loop is kept beside it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from triton_sgemm.device import Gpu
from triton_sgemm.problem import Problem, problem
from triton_sgemm.testing import Errors, Reference, errors, ieee_bound, random_bound, reference
from triton_sgemm.variants import Variant

from .suites import Case

ROUNDS = 3
LOAD_S = 0.3
BURST_S = 0.02  # between two looks at the clock
FLUSH = 16  # times the L2: long enough for the next call to be queued before it ends
SAMPLES_S = 0.05
GRAPH_UP_TO = 2048
TOO_SLOW_MS = 500.0


@dataclass(frozen=True)
class Operands:
    """A and B of a case, and an output full of NaN."""

    a: Tensor
    b: Tensor
    out: Tensor

    @classmethod
    def random(cls, case: Case, device: str) -> Operands:
        """Normally distributed A and B."""
        a = torch.randn(case.M, case.K, device=device)
        b = torch.randn(case.K, case.N, device=device)
        return cls(a, b, torch.full((case.M, case.N), float("nan"), device=device))

    @cached_property
    def problem(self) -> Problem:
        """out = A @ B."""
        return problem(self.a, self.b, None, self.out, 1.0, 0.0)

    def run(self, variant: Variant) -> None:
        """Computes it by `variant`."""
        variant.run(self.problem, self.a, self.b, None, self.out)


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call: median, 20th and 80th percentile; `eager`, in a loop, where those are of graph replays."""

    ms: float
    p20: float
    p80: float
    eager: float | None = None


def verify(variant: Variant, x: Operands, expected: Reference) -> tuple[Errors, str]:
    """Runs once into NaN and compares with float64; returns the errors and what is wrong, "" where nothing is."""
    x.out.fill_(float("nan"))
    x.run(variant)
    e = errors(x.out, expected)
    bound = min(random_bound(expected.depth), ieee_bound(expected.depth))
    return e, "" if e.within(bound) else f"wrong: max error {e.largest:.1e} exceeds {bound:.1e}"


def expectation(x: Operands) -> Reference:
    """The float64 product of the operands."""
    return reference(x.a, x.b)


def predicted_ms(variant: Variant, case: Case) -> float:
    """A call's time, scaled by work from one on a product of at most 2048 in each dimension."""
    small = Case(*(min(size, 2048) for size in (case.M, case.N, case.K)))
    x = Operands.random(small, "cuda")
    x.run(variant)
    return _sample(lambda: x.run(variant)) * case.flops / small.flops


def time_all(variants: list[Variant], x: Operands, case: Case, gpu: Gpu, step: Callable[[], None]) -> dict[str, Timing]:
    """Times every variant on the same operands; `step` is called after each round of each variant."""
    flush = torch.empty(FLUSH * gpu.l2_bytes, dtype=torch.uint8, device="cuda")
    use_graphs = max(case.M, case.N, case.K) <= GRAPH_UP_TO
    sets = _more_than_the_cache(x, case, gpu) if use_graphs else []
    graphs = {v.name: _graph(v, sets) for v in variants} if use_graphs else {}
    samples: dict[str, list[float]] = {v.name: [] for v in variants}
    eager: dict[str, list[float]] = {v.name: [] for v in variants}

    for _ in range(ROUNDS):
        for v in random.sample(variants, len(variants)):
            eager[v.name].append(_load(partial(x.run, v)))
            call, calls = (graphs[v.name].replay, len(sets)) if use_graphs else (partial(x.run, v), 1)
            first = _sample(call, flush)
            more = min(50, max(2, int(1e3 * SAMPLES_S / first)))
            samples[v.name] += [ms / calls for ms in (first, *(_sample(call, flush) for _ in range(more)))]
            step()

    timings = {}
    for name, ms in samples.items():
        p20, *_, p80 = statistics.quantiles(ms, n=5, method="inclusive")
        timings[name] = Timing(statistics.median(ms), p20, p80, statistics.median(eager[name]) if use_graphs else None)
    return timings


def _load(call: Callable[[], None]) -> float:
    """LOAD_S seconds of calls, one after the other; milliseconds a call as the host sees them."""
    burst, calls = 1, 0
    torch.cuda.synchronize()
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < LOAD_S:
        for _ in range(burst):
            call()
        torch.cuda.synchronize()
        calls += burst
        burst = max(1, int(BURST_S * calls / (time.perf_counter() - start)))
    return 1e3 * elapsed / calls


def _sample(call: Callable[[], None], flush: Tensor | None = None) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if flush is not None:
        flush.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _more_than_the_cache(x: Operands, case: Case, gpu: Gpu) -> list[Operands]:
    size = 4 * (case.M * case.K + case.K * case.N + case.M * case.N)
    count = min(256, 2 * gpu.l2_bytes // size + 1)
    return [Operands(x.a.clone(), x.b.clone(), torch.empty_like(x.out)) for _ in range(count)]


def _graph(variant: Variant, sets: list[Operands]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in sets:
            x.run(variant)
    return graph
