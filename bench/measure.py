"""How a number is obtained: verified first, then timed beside cuBLAS in the same run.

All variants of one shape are timed in ROUNDS rounds, each in a new order: LOAD_S seconds of the same calls
first, so that the card is as warm as it will be in use, then samples, each with a cold L2. The figure is the
median. For a short case (GRAPH_UP_TO_MS) it is a CUDA graph of calls on operands in turn, more of them than the
L2 holds, over the number of calls; what an eager call takes in a loop is kept beside it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle, islice

import torch
from torch import Tensor

from triton_sgemm.device import Gpu
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.problem import Problem, problem
from triton_sgemm.recorded import Alpha, Beta, Recorded
from triton_sgemm.testing import (
    Errors,
    Reference,
    classes,
    errors,
    fp32_bound,
    ieee_bound,
    random_bound,
    reference,
    tf32_bound,
)
from triton_sgemm.variants import Variant

from .data import DATA
from .suites import LAYOUTS, Case

ROUNDS = 3
LOAD_S = 0.3
BURST_S = 0.02  # between two looks at the clock
FLUSH = 32  # times the L2: long enough for the next call to be queued before it ends
SAMPLES_S = 0.05
TOO_SLOW_MS = 500.0

# a case is short where `about_ms` is at most this: 2048^3 is, 4095^3 is not
GRAPH_UP_TO_MS = 0.5
GRAPH_MS = 0.2  # what a graph's calls take together at least, next to the microseconds until its first one starts
GRAPH_CALLS = 4096  # at most

OTHER_CLASS = "{:,} elements of another class (finite, Inf, -Inf, NaN) than float64's"


@dataclass(frozen=True)
class Effort:
    """How long variants are timed: rounds, and seconds of load before the samples of each."""

    rounds: int
    load_s: float


FULL = Effort(ROUNDS, LOAD_S)
QUICK = Effort(1, 0.05)  # to look at while working on a kernel: the card is colder, the figures scatter more


def tf32_normal_bound(K: int) -> float:
    """Of normally distributed operands, whose roundings fall either way: 2^-7 / sqrt(K), which bfloat16 misses.

    TF32's largest errors are about a third of that, bfloat16's eight times TF32's.
    """
    return min(tf32_bound(K), 2.0**-7 / K**0.5 + random_bound(K)) if K else tf32_bound(K)


def bound(precision: str, K: int, data: str = "normal") -> float:
    """What max |error| / S of a row of that precision may be.

    Data that is not random is held to the bound that always holds: of "fp32" the larger of its two, since elements may
    fall back.
    """
    if precision == "tf32":
        return tf32_normal_bound(K) if data == "normal" else tf32_bound(K)
    always = ieee_bound(K) if precision == "ieee" else max(ieee_bound(K), fp32_bound(K))
    return min(random_bound(K), always) if DATA[data].random else always


@dataclass(frozen=True)
class Operands:
    """A and B of a case, and an output full of NaN. Tensors are matrices, or a batch of them in one dimension more."""

    a: Tensor
    b: Tensor
    out: Tensor

    @classmethod
    def random(cls, case: Case, device: str) -> Operands:
        """A and B of the case's data, stored as its layout says; the output is contiguous."""
        batch = (case.batch,) if case.batch > 1 else ()
        a = _empty((*batch, case.M, case.K), LAYOUTS[case.layout][0], device)
        b = _empty((*batch, case.K, case.N), LAYOUTS[case.layout][1], device)
        if case.data == "normal":  # at once, where a batch has thousands
            a.normal_()
            b.normal_()
        else:
            # fresh in every process, the same where a test fixes torch's seed
            generator = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
            for one_a, one_b in zip(a, b, strict=True) if batch else [(a, b)]:
                drawn_a, drawn_b = DATA[case.data](case.M, case.N, case.K, generator, device)
                one_a.copy_(drawn_a)
                one_b.copy_(drawn_b)
        return cls(a, b, torch.full((*batch, case.M, case.N), float("nan"), device=device))

    @property
    def on_gpu(self) -> bool:
        """Whether the kernels run natively."""
        return self.out.is_cuda

    @cached_property
    def problem(self) -> Problem:
        """out = A @ B."""
        return problem(self.a, self.b, None, self.out, 1.0, 0.0)

    def run(self, variant: Variant) -> None:
        """Computes it by `variant`."""
        variant.run(self.problem, self.a, self.b, None, self.out)

    def ready(self, variant: Variant) -> Callable[[], None]:
        """The same, to be called many times: on a GPU launches are made once and replayed, as those of `matmul` are."""
        if not (variant.launch and self.on_gpu):
            return partial(self.run, variant)
        given = self.a.detach(), self.b.detach(), None, self.out.detach()
        p = replace(self.problem, alpha=Alpha(self.problem.alpha), beta=Beta(self.problem.beta))
        recorded = Recorded(variant.launch(p, *given), given, self.out.device)
        return partial(recorded.run, given, p.alpha, p.beta)


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call: median, 20th and 80th percentile; `eager`, in a loop, where those are of graph replays."""

    ms: float
    p20: float
    p80: float
    eager: float | None = None


def verify(variant: Variant, x: Operands, expected: Reference, data: str = "normal") -> tuple[Errors | None, str]:
    """Runs once into NaN and compares with float64; returns the errors and what is wrong, "" where nothing is.

    Where the product is not finite, its class must be the same; the errors are those of the finite elements, None
    where there are none.
    """
    x.out.fill_(float("nan"))
    x.run(variant)
    e, strays = compared(x.out, expected)
    if strays:
        return e, f"wrong: {OTHER_CLASS.format(strays)}"
    limit = bound(variant.precision, expected.depth, data)
    return e, "" if e is None or e.within(limit) else f"wrong: max error {e.largest:.1e} exceeds {limit:.1e}"


def compared(result: Tensor, expected: Reference) -> tuple[Errors | None, int]:
    """The errors of the elements that are to be finite, None where none is, and how many are of another class.

    Where all are to be finite, NaN and Inf are errors like any other.
    """
    value = expected.value.float()  # beyond float32's range it is Inf
    finite = value.isfinite()
    if finite.all():
        return errors(result, expected), 0
    strays = int((classes(result) != classes(value)).sum())
    kept = Reference(expected.value[finite], expected.scale[finite], expected.depth)
    return errors(result[finite], kept) if finite.any() else None, strays


def expectation(x: Operands) -> Reference:
    """The float64 product of the operands."""
    return reference(x.a, x.b)


def predicted_ms(variant: Variant, case: Case) -> float:
    """A call's time, scaled by work from one on a smaller product of the same kind."""
    small = _smaller(case)
    x = Operands.random(small, "cuda")
    x.run(variant)
    return min(sample(partial(x.run, variant)) for _ in range(3)) * case.flops / small.flops


def about_ms(case: Case) -> float:
    """The larger of a case's arithmetic, its memory traffic and a launch, at the rates of one known GPU (an H200).

    It only decides how a case is timed: for every variant, on every GPU and in every run alike.
    """
    return 1e3 * max(case.flops / 50e12, case.bytes_moved / 4e12, 2e-6)


def is_short(case: Case) -> bool:
    """Whether a call is timed by graph replay, since what the host does in an eager one would take as long."""
    return about_ms(case) <= GRAPH_UP_TO_MS


def time_all(
    variants: list[Variant], x: Operands, case: Case, gpu: Gpu, step: Callable[[], None], effort: Effort = FULL
) -> dict[str, Timing]:
    """Times every variant on the same operands; `step` is called after each round of each variant."""
    flush = torch.empty(FLUSH * gpu.l2_bytes, dtype=torch.uint8, device=x.out.device)
    use_graphs = is_short(case)
    in_turn = _in_turn(case, gpu, str(x.out.device)) if use_graphs else []
    graphs = {v.name: _graph(v, in_turn) for v in variants} if use_graphs else {}
    ready = {v.name: x.ready(v) for v in variants}
    samples: dict[str, list[float]] = {v.name: [] for v in variants}
    eager: dict[str, list[float]] = {v.name: [] for v in variants}

    for _ in range(effort.rounds):
        for v in random.sample(variants, len(variants)):
            # what cuBLAS's rows set for themselves, once and not in each call
            with torch_matmul_precision("tf32" if v.precision == "tf32" else "ieee"):
                eager[v.name].append(load(ready[v.name], effort.load_s))
                call, calls = (graphs[v.name].replay, len(in_turn)) if use_graphs else (ready[v.name], 1)
                first = sample(call, flush)
                more = min(50, max(2, int(1e3 * SAMPLES_S / first)))
                samples[v.name] += [ms / calls for ms in (first, *(sample(call, flush) for _ in range(more)))]
            step()

    timings = {}
    for name, ms in samples.items():
        p20, *_, p80 = statistics.quantiles(ms, n=5, method="inclusive")
        timings[name] = Timing(statistics.median(ms), p20, p80, statistics.median(eager[name]) if use_graphs else None)
    return timings


def load(call: Callable[[], None], seconds: float) -> float:
    """So many seconds of calls, one after the other; milliseconds a call as the host sees them."""
    burst, calls = 1, 0
    torch.cuda.synchronize()
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(burst):
            call()
        torch.cuda.synchronize()
        calls += burst
        burst = max(1, int(BURST_S * calls / (time.perf_counter() - start)))
    return 1e3 * elapsed / calls


def sample(call: Callable[[], None], flush: Tensor | None = None) -> float:
    """Milliseconds of a call on the device, with a cold L2 where `flush` is something to overwrite it with."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if flush is not None:
        flush.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _empty(shape: tuple[int, ...], how: str, device: str) -> Tensor:
    *batch, rows, cols = shape
    match how:
        case "T":
            return torch.empty(*batch, cols, rows, device=device).mT
        case "ld+1":
            return torch.empty(*batch, rows, cols + 1, device=device)[..., :cols]
        case "offset1":
            return torch.empty(math.prod(shape) + 1, device=device)[1:].view(shape)
    return torch.empty(shape, device=device)


def _smaller(case: Case) -> Case:
    sizes = {name: min(getattr(case, name), 2048) for name in ("M", "N", "K")}
    return replace(case, batch=min(case.batch, 64), **sizes)


def _sets_and_calls(case: Case, gpu: Gpu) -> tuple[int, int]:
    """Of a short case's graph: sets of operands, twice what the L2 holds and two at least, and calls."""
    sets = min(GRAPH_CALLS, max(2, 2 * gpu.l2_bytes // case.bytes_moved + 1))
    return sets, max(sets, math.ceil(GRAPH_MS / about_ms(case)))


def _in_turn(case: Case, gpu: Gpu, device: str) -> list[Operands]:
    sets, calls = _sets_and_calls(case, gpu)
    return list(islice(cycle([Operands.random(case, device) for _ in range(sets)]), calls))


def _graph(variant: Variant, in_turn: list[Operands]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in in_turn:
            x.run(variant)
    return graph
