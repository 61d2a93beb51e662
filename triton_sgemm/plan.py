"""Which algorithm and tile compute a problem, and why: the one that a model of the GPU predicts to be the fastest.

The model knows what was measured on an H200 (docs/worklog/007): how much of the FMA units' peak a tile reaches on an SM
that is full of programs (`rate`), how many fit there (`resident`) and what share of that rate one alone reaches
(`alone`). A problem's time is that of the SM with the most programs, or that of the bytes that must move, and what the
launches cost. For another GPU its own SMs and peak are put in; that its tiles behave alike is an assumption.

Tensor cores (precision "fp32" and "tf32") are modelled more simply, by what a tile takes on an SM of its own
(docs/worklog/008), and are chosen on the GPUs where that was measured, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from .algorithms import dot, fma, rows, tensor_core
from .algorithms._gluon import available
from .algorithms.parts import OUTPUTS
from .device import ARCHS, Gpu
from .launch import cdiv
from .problem import Problem

Tile = dot.Tile | fma.Tile | rows.Tile | tensor_core.Tile


@dataclass(frozen=True)
class Plan:
    """How a problem is computed, and why so.

    depth       the share of K of one program; less than K: the parts are added afterwards
    transposed  C' = B' @ A' is computed
    relay       an operand that could be read where it lies is moved first: A for `fma`, B for `dot`
    """

    tile: Tile
    why: str
    depth: int
    transposed: bool = False
    relay: bool = False

    def in_order(self, K: int) -> bool:
        """Whether every output adds its K products one after the other: the bits of the naive kernel."""
        return self.depth >= K and not isinstance(self.tile, rows.Tile | tensor_core.Tile)

    @property
    def name(self) -> str:
        """The algorithm and its tile, as the bench names them: `fma_128x256x8`."""
        if isinstance(self.tile, tensor_core.Tile):
            return self.tile.name
        return f"{type(self.tile).__module__.rpartition('.')[2]}_{self.tile}"


@dataclass(frozen=True)
class Speed:
    """What was measured of a tile.

    rate       share of the SM's float32 peak, with as many programs as fit
    resident   programs that fit on an SM
    alone      share of `rate` that one program reaches by itself
    start_us   microseconds until a program multiplies
    slower     times that it takes with an operand along K: A for `fma`, B for `dot`
    """

    rate: float
    resident: int
    alone: float
    start_us: float
    slower: float


SPEEDS: dict[dot.Tile | fma.Tile, Speed] = {
    fma.Tile(128, 256): Speed(0.835, 1, 1.0, 12.0, 1.04),
    fma.Tile(64, 256): Speed(0.801, 2, 0.66, 8.1, 1.035),
    fma.Tile(256, 64): Speed(0.819, 2, 0.71, 8.1, 1.31),
    fma.Tile(128, 128): Speed(0.786, 2, 0.65, 8.1, 1.07),
    fma.Tile(64, 128, TM=8): Speed(0.795, 4, 0.80, 8.1, 1.08),
    fma.Tile(128, 64, TM=8): Speed(0.79, 4, 0.76, 8.1, 1.28),
    dot.Tile(64, 128, 32, 8): Speed(0.663, 3, 0.95, 2.2, 2.6),
    dot.Tile(32, 128, 32, 4): Speed(0.663, 4, 0.85, 2.2, 2.6),
    dot.Tile(64, 64, 32, 4): Speed(0.629, 4, 0.75, 2.2, 2.6),
    dot.Tile(32, 64, 32, 4): Speed(0.550, 6, 0.83, 2.2, 3.6),
    dot.Tile(32, 32, 32, 2): Speed(0.469, 10, 0.83, 2.2, 3.6),
    dot.Tile(16, 128, 32, 4): Speed(0.545, 5, 0.78, 2.2, 3.6),
    dot.Tile(16, 32, 64, 2): Speed(0.436, 8, 0.81, 2.2, 3.6),
}


@dataclass(frozen=True)
class Pace:
    """What a tile of `tensor_core` takes of an SM: microseconds, and microseconds for each 1000 of K."""

    start_us: float
    us_per_1000: float


PACES = {
    tensor_core.TILES[0]: Pace(2.0, 20.3),
    tensor_core.TILES[1]: Pace(3.0, 10.7),
    tensor_core.TF32_TILES[0]: Pace(12.0, 12.4),
    tensor_core.TF32_TILES[1]: Pace(2.0, 7.5),
}
MEASURED = ("NVIDIA H200",)
AROUND_US = 8.0  # the launches before and after tensor_core's own
LAUNCH_US = 0.8
STEP_US = 3.0  # a launch more: to move an operand, to add parts
PART_US = 0.03  # each part, while not every SM has outputs to add: the loads of one program wait for each other
BYTES_PER_US_AND_SM = 4.1e6 / 132
STEP_BYTES_PER_US_AND_SM = 3.7e6 / 132
NARROW = 16  # rows or columns: up to there most of a tile of `fma` or `tensor_core` would be empty
FEW_FILLED = 2.5  # programs of `rows` an SM that keep the memory busy
CUT = 1.08  # times: a K in order is worth that much, and the model flatters short programs
PROGRAMS_PER_SM = (1, 2, 4, 8)  # that a cut of K aims at
SHORTEST = 64  # part of K
EQUAL_PART = 512  # of K, at least, on tensor cores: below, a tile's end takes longer


@dataclass(frozen=True)
class Operand:
    """How a matrix lies.

    along_k    contiguous along K
    aligned    contiguous along M or N, and every row on 16 bytes
    readable   so that `dot` reads it where it lies
    """

    along_k: bool
    aligned: bool
    readable: bool

    @classmethod
    def of(cls, size: int, stride: int, stride_k: int, batch: tuple[int, ...]) -> Operand:
        """For the strides of a matrix, (size, K), and of its batch."""
        along_k = stride_k == 1 and (stride != 1 or size == 1)
        quads = stride == 1 and all(s % 4 == 0 for s in (*batch, stride_k))
        return cls(along_k, quads, dot.readable((stride, stride_k)))


@dataclass(frozen=True)
class Shape:
    """What a plan depends on."""

    batches: int
    M: int
    N: int
    K: int
    a: Operand
    b: Operand

    @classmethod
    def of(cls, p: Problem) -> Shape:
        """That of a problem."""
        (am, ak), (bk, bn) = p.a_strides[-2:], p.b_strides[-2:]
        a, b = Operand.of(p.M, am, ak, p.a_strides[:-2]), Operand.of(p.N, bn, bk, p.b_strides[:-2])
        return cls(p.batches, p.M, p.N, p.K, a, b)

    def transposed(self) -> Shape:
        """That of C' = B' @ A'."""
        return Shape(self.batches, self.N, self.M, self.K, self.b, self.a)


def plan(problem: Problem, gpu: Gpu | None, precision: str = "ieee", prepared: bool = False) -> Plan:
    """Chooses for a problem and a GPU (None: the interpreter, which runs what is Triton and takes the largest tile).

    "ieee" may serve any precision; "fp32" and "tf32" may be served by tensor cores. `prepared`: B is split already.
    """
    return _plan(Shape.of(problem), gpu, precision, prepared)


@lru_cache(4096)
def _plan(shape: Shape, gpu: Gpu | None, precision: str, prepared: bool) -> Plan:
    if gpu is None:
        tile = next((t for t in dot.TILES if t.BLOCK_M <= shape.M and t.BLOCK_N <= shape.N), dot.TILES[-1])
        return Plan(tile, "the largest tile of dot that the output fills: Triton's interpreter", shape.K)
    return best((*candidates(shape, gpu), *on_tensor_cores(shape, gpu, precision, prepared)))


def best(ways: Iterable[tuple[float, Plan]]) -> Plan:
    """The fastest of some plans, by the microseconds before them."""
    us, fastest = min(ways, key=lambda way: way[0])
    return replace(fastest, why=f"{us:,.0f} us predicted: {fastest.why}")


def on_tensor_cores(s: Shape, gpu: Gpu, precision: str, prepared: bool) -> Iterator[tuple[float, Plan]]:
    """The plans that need tensor cores, after the microseconds they are predicted to take."""
    tiles = {"fp32": tensor_core.TILES, "tf32": tensor_core.TF32_TILES}.get(precision, ())
    if gpu.name not in MEASURED or not tensor_core.available or min(s.M, s.N) <= NARROW or not s.batches:
        return
    for tile in tiles:
        if tensor_core.why_not(s.batches, s.M, s.N, s.K, tile):
            continue
        outputs = s.batches * cdiv(s.M, tile.BLOCK_M) * cdiv(s.N, tile.BLOCK_N)
        pace = PACES[tile]
        lanes = s.M if prepared else s.M + s.N
        split_bytes = s.batches * lanes * s.K * (4 + 2 * tile.planes)
        before_us = AROUND_US + split_bytes / (STEP_BYTES_PER_US_AND_SM * gpu.sms)
        for parts in (1,) if prepared else sorted({1, *(equal_parts(s.K, n * gpu.sms // outputs) for n in (1, 2))}):
            turns, depth = cdiv(outputs * parts, gpu.sms), s.K // parts
            us = before_us + max(turns * (pace.start_us + pace.us_per_1000 * depth / 1000), _memory_us(s, gpu))
            if parts > 1:
                us = CUT * (us + _parts_us(parts, s, gpu))
            why = f"{turns} tiles on an SM" + (f", K cut into {parts} parts" if parts > 1 else "")
            yield us, Plan(tile, why, depth)


def equal_parts(K: int, most: int) -> int:
    """Into how many equal parts K can be cut, `most` at most, each EQUAL_PART at least and whole vectors of 4."""
    return next((n for n in range(min(most, K // EQUAL_PART), 1, -1) if K % (4 * n) == 0), 1)


def candidates(shape: Shape, gpu: Gpu) -> Iterator[tuple[float, Plan]]:
    """Every plan in "ieee" that may serve `shape`, after the microseconds it is predicted to take."""
    for turned in (False, True):
        s = shape.transposed() if turned else shape
        few = next((t for t in rows.TILES if t.COLS >= s.N), rows.TILES[-1])
        filled = rows.programs(s.batches, s.M, s.N, few) >= FEW_FILLED * gpu.sms
        if s.N <= rows.MAX_COLS and s.a.along_k and s.K >= 256 and filled:
            us = LAUNCH_US + _memory_us(s, gpu) + (0.0 if s.b.along_k else STEP_US)
            yield us, Plan(few, "a few columns, as fast as A can be read", s.K, turned)
        for tile, speed in SPEEDS.items():
            if isinstance(tile, fma.Tile):
                if not available or gpu.capability < 80 or min(s.M, s.N) <= NARROW:
                    continue
                along_k, moved = s.a.along_k, s.M * s.K
                always = (0 if s.b.aligned else s.N * s.K) + (0 if s.a.along_k or s.a.aligned else s.M * s.K)
            elif turned and s.M >= s.N:
                continue
            else:
                along_k, moved = s.b.along_k, s.N * s.K
                always = (0 if s.b.readable else s.N * s.K) + (0 if s.a.readable else s.M * s.K)
            for relay in (False, True) if along_k else (False,):
                step_us = _step_us(always + (moved if relay else 0), s, gpu)
                slower = speed.slower if along_k and not relay else 1.0
                for depth in depths(s, tile, gpu):
                    us, per_sm, parts = _program_us(s, tile, depth, gpu)
                    total = LAUNCH_US + max(us * slower, _memory_us(s, gpu)) + step_us
                    if parts > 1:
                        total = CUT * (total + _parts_us(parts, s, gpu))
                    why = f"{per_sm} programs on an SM" + (f", K cut into {parts} parts" if parts > 1 else "")
                    yield total, Plan(tile, why, depth, turned, relay)


def depths(s: Shape, tile: dot.Tile | fma.Tile, gpu: Gpu) -> list[int]:
    """K itself, and the shares of it that give each SM so many programs where the tiles of C alone do not."""
    tiles = s.batches * cdiv(s.M, tile.BLOCK_M) * cdiv(s.N, tile.BLOCK_N)
    out = {s.K}
    for programs in PROGRAMS_PER_SM:
        depth = cdiv(cdiv(s.K, max(1, programs * gpu.sms // max(tiles, 1))), 32) * 32
        if SHORTEST <= depth < s.K:
            out.add(max(depth, tile.BLOCK_K))
    return sorted(out)


def _program_us(s: Shape, tile: dot.Tile | fma.Tile, depth: int, gpu: Gpu) -> tuple[float, int, int]:
    """What the SM with the most programs needs, how many these are, and the parts of K."""
    arch, speed = ARCHS.get(gpu.capability), SPEEDS[tile]
    flops_per_us = 2 * (arch.fp32_lanes if arch else 128) * gpu.max_clock_mhz  # an SM's
    parts = cdiv(s.K, depth) if depth else 1
    per_sm = cdiv(s.batches * cdiv(s.M, tile.BLOCK_M) * cdiv(s.N, tile.BLOCK_N) * parts, gpu.sms)
    together = min(per_sm, speed.resident)
    share = speed.alone + (1 - speed.alone) * (together - 1) / max(speed.resident - 1, 1)
    flops = 2 * tile.BLOCK_M * tile.BLOCK_N * cdiv(depth, tile.BLOCK_K) * tile.BLOCK_K
    us = per_sm * flops / (flops_per_us * speed.rate * share) + speed.start_us * cdiv(per_sm, speed.resident)
    return us, per_sm, parts


def _memory_us(s: Shape, gpu: Gpu) -> float:
    """Each operand and the result once."""
    return 4 * s.batches * (s.M * s.K + s.K * s.N + s.M * s.N) / (BYTES_PER_US_AND_SM * gpu.sms)


def _step_us(elements: int, s: Shape, gpu: Gpu) -> float:
    """A launch that reads and writes so many elements a product; 0 for none."""
    return STEP_US + 8 * s.batches * elements / (STEP_BYTES_PER_US_AND_SM * gpu.sms) if elements else 0.0


def _parts_us(parts: int, s: Shape, gpu: Gpu) -> float:
    """The launch that adds the parts of each product."""
    few = s.batches * s.M * s.N <= OUTPUTS * gpu.sms
    return _step_us(parts * s.M * s.N, s, gpu) + (PART_US * parts if few else 0.0)
