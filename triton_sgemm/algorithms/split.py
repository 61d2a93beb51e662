"""float32 operands as fp16 planes: x = 2^e (hi + 2^-11 lo), one exponent e for each row of A and column of B.

With e the exponent of the row's largest entry (-112 at least), y = x 2^(14 - e) lies below 2^15: hi, y rounded to fp16,
keeps 11 bits, and lo, 2^11 (y - hi) rounded to fp16, the next 11 and a sign. So |y - hi - 2^-11 lo| <= 2u |y|, u = 2^-24.
That does not hold for entries below 2^-13, 2^-27 of the row's largest, where fp16 runs out of exponents: such `smalls`
are counted, so that `tensor_core` can tell where they matter.

The planes keep the operand's own order: along K where its rows lie along K, else along X (X is M or N). Side by side
along X lie, for each product of the batch, the high plane and the low one, `pitch` lanes each.

Whole rows that fit on chip are read once. Others are surveyed first, a band of tiles at a time, and split while the next
band is surveyed and they are still in the L2 cache: from memory they come once too. Both operands in one launch, their
programs in turn: 8 bytes an element with two planes. Plain Triton: any GPU, and the interpreter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv

LOWEST = tl.constexpr(-112)  # exponent: 2^(14 - e) is a float32, and brings even subnormals where fp16 holds them
SMALL = tl.constexpr(2.0**-13)
ALIGNED = 64  # lanes: 128 bytes of a plane

ACROSS = 32  # rows of a tile where they lie along X
ELEMENTS = 4096  # of a tile
LONGEST = 32768  # row of one tile
SURVEY = 4  # tiles of one program that looks for the largest entries
BAND = 512  # tiles, about: more than run at a time, and not too many for the L2 cache
HIGH = tl.constexpr(127 + 32 << 23)  # 2^32, as a magnitude: float32 sums of products of lower entries stay in range
PATIENCE = tl.constexpr(10_000)  # looks, some milliseconds


@dataclass(frozen=True)
class Planes:
    """A split operand of shape (*batch, X, K); X is M for A and N for B.

    room     fp16, (K, lanes) or, along K, (lanes, K), K padded; lanes = products * planes * pitch
    tops     int32, (products, pitch): the largest |entry| of each row, its float32 bits
    smalls   int32, (products, pitch): how many entries of each row are small, see above
    high     int32, one element: not 0 where an entry is 2^32 or more, Inf or NaN
    """

    room: Tensor
    tops: Tensor
    smalls: Tensor
    high: Tensor
    batch: tuple[int, ...]
    X: int
    K: int
    along_k: bool
    planes: int

    @property
    def steps(self) -> tuple[int, ...]:
        """From one product to the next along each dimension of the batch; 0 where it is broadcast."""
        return tuple(math.prod(self.batch[i + 1 :]) if size > 1 else 0 for i, size in enumerate(self.batch))

    @property
    def pitch(self) -> int:
        """Lanes from a high plane to its low plane, and from there to the next product's."""
        return self.tops.shape[-1]


@triton.jit
def power_of_2(e):
    """2^e for a normal float32."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def read(x_ptr, x, k, X, K, stride_x, stride_k):
    """A tile of the operand, zeros outside: (BLOCK_X, BLOCK_K)."""
    inside = (x < X)[:, None] & (k < K)[None, :]
    return tl.load(x_ptr + x.to(tl.int64)[:, None] * stride_x + k.to(tl.int64)[None, :] * stride_k, inside, other=0.0)


@triton.jit
def magnitude(x):
    """|x| as an integer: the same order, and Inf and NaN above everything finite."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def exponent(top):
    """floor(log2) of a magnitude, LOWEST at least; 128 for Inf and NaN."""
    return tl.maximum((top >> 23) - 127, LOWEST)


@triton.jit
def write(room_ptr, x, e, lanes, k, X, K, pitch, stride_lane, stride_k, PLANES: tl.constexpr):
    """Writes a tile's planes; returns, for each row, how many of its entries are small."""
    y = x * power_of_2(14 - e)[:, None]
    hi = y.to(tl.float16)
    room_ptrs = room_ptr + lanes.to(tl.int64)[:, None] * stride_lane + k.to(tl.int64)[None, :] * stride_k
    inside = (lanes < X)[:, None] & (k < K)[None, :]
    tl.store(room_ptrs, hi, inside)
    if PLANES == 2:
        lo = ((y - hi.to(tl.float32)) * 2048.0).to(tl.float16)
        tl.store(room_ptrs + pitch.to(tl.int64) * stride_lane, lo, inside)
    return tl.sum(((x != 0.0) & (tl.abs(y) < SMALL)).to(tl.int32), 1)


@triton.jit
def panel(
    x_ptr, room_ptr, tops_ptr, smalls_ptr, high_ptr, arrived_ptr, pid,
    X, K, wide, batch, steps, stride_x, stride_k, pitch, stride_lane, stride_rk,
    PLANES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr, ONCE: tl.constexpr, SURVEY: tl.constexpr,
):  # fmt: skip
    """One program's share of splitting an operand."""
    panels = (X - 1) // BLOCK_X + 1
    chunk = 0
    if not ONCE:
        # a band of `wide` panels is surveyed, SURVEY tiles a program, while the one before is split
        chunks = (K - 1) // BLOCK_K + 1
        surveyors = (chunks - 1) // SURVEY + 1
        total = panels
        for axis in tl.static_range(len(batch)):
            total *= batch[axis]
        surveys = pid < wide * surveyors
        band = 0
        if not surveys:
            pid -= wide * surveyors
            band = pid // (wide * (surveyors + chunks))
            pid = pid % (wide * (surveyors + chunks))
            surveys = pid < wide * surveyors
            if surveys:
                band += 1
            else:
                pid -= wide * surveyors
        programs = tl.where(surveys, surveyors, chunks)
        chunk = pid % programs
        pid = band * wide + pid // programs
        if pid >= total:
            return
        arrived_ptr += pid
    z = pid // panels
    first = pid % panels * BLOCK_X
    room_ptr += (z.to(tl.int64) * PLANES * pitch + first) * stride_lane
    tops_ptr += z.to(tl.int64) * pitch + first
    smalls_ptr += z.to(tl.int64) * pitch + first
    for axis in tl.static_range(len(batch)):
        x_ptr += (z % batch[axis]).to(tl.int64) * steps[axis]
        z = z // batch[axis]
    x_ptr += first.to(tl.int64) * stride_x
    X = X - first
    lanes = tl.arange(0, BLOCK_X)
    k = tl.arange(0, BLOCK_K)

    if ONCE:
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
        top = tl.max(magnitude(x), 1)
        tl.store(tops_ptr + lanes, top, lanes < X)
        if tl.max(top, 0) >= HIGH:
            tl.store(high_ptr, 1)
        smalls = write(room_ptr, x, exponent(top), lanes, k, X, K, pitch, stride_lane, stride_rk, PLANES)
        tl.store(smalls_ptr + lanes, smalls, lanes < X)
    elif surveys:
        k += chunk * (SURVEY * BLOCK_K)
        tops = magnitude(read(x_ptr, lanes, k, X, K, stride_x, stride_k))
        for i in tl.static_range(1, SURVEY):
            tops = tl.maximum(tops, magnitude(read(x_ptr, lanes, k + i * BLOCK_K, X, K, stride_x, stride_k)))
        top = tl.max(tops, 1)
        tl.atomic_max(tops_ptr + lanes, top, lanes < X, sem="relaxed")
        if tl.max(top, 0) >= HIGH:
            tl.store(high_ptr, 1)
        tl.debug_barrier()
        tl.atomic_add(arrived_ptr, 1, sem="release")
    else:
        k += chunk * BLOCK_K
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
        arrived = tl.atomic_add(arrived_ptr, 0, sem="acquire")
        patience = PATIENCE
        while (arrived < surveyors) & (patience > 0):
            arrived = tl.atomic_add(arrived_ptr, 0, sem="acquire")
            patience -= 1
        top = tl.load(tops_ptr + lanes, lanes < X, other=0, volatile=True)
        if arrived < surveyors:  # should the GPU start programs in an order that would keep this one waiting
            for i in range(chunks):
                at = i * BLOCK_K + tl.arange(0, BLOCK_K)
                top = tl.maximum(top, tl.max(magnitude(read(x_ptr, lanes, at, X, K, stride_x, stride_k)), 1))
        smalls = write(room_ptr, x, exponent(top), lanes, k, X, K, pitch, stride_lane, stride_rk, PLANES)
        tl.atomic_add(smalls_ptr + lanes, smalls, (lanes < X) & (smalls > 0), sem="relaxed")


@triton.jit
def split_kernel(
    a_ptr, a_room, a_tops, a_smalls, a_high, a_arrived, a_X, a_wide, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
    b_ptr, b_room, b_tops, b_smalls, b_high, b_arrived, b_X, b_wide, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
    K, a_programs, b_programs, PLANES: tl.constexpr,
    A_X: tl.constexpr, A_K: tl.constexpr, A_ONCE: tl.constexpr,
    B_X: tl.constexpr, B_K: tl.constexpr, B_ONCE: tl.constexpr, SURVEY: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    fewer = tl.minimum(a_programs, b_programs)
    in_turn = pid < 2 * fewer
    if (in_turn & (pid % 2 == 0)) | (~in_turn & (fewer < a_programs)):
        panel(
            a_ptr, a_room, a_tops, a_smalls, a_high, a_arrived, tl.where(in_turn, pid // 2, pid - fewer),
            a_X, K, a_wide, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk, PLANES, A_X, A_K, A_ONCE, SURVEY,
        )  # fmt: skip
    else:
        panel(
            b_ptr, b_room, b_tops, b_smalls, b_high, b_arrived, tl.where(in_turn, pid // 2, pid - fewer),
            b_X, K, b_wide, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk, PLANES, B_X, B_K, B_ONCE, SURVEY,
        )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """An operand as the split reads it: (*batch, X, K) with a stride in elements for each dimension."""

    tensor: Tensor
    batch: tuple[int, ...]
    X: int
    K: int
    strides: tuple[int, ...]

    @property
    def along_k(self) -> bool:
        """Whether its planes lie along K."""
        return self.strides[-2] != 1 or self.strides[-1] == 1

    @property
    def own_batch(self) -> tuple[int, ...]:
        """The batch without repeats: what it is broadcast over is split once."""
        return tuple(size if stride else 1 for size, stride in zip(self.batch, self.strides, strict=False))

    @property
    def block(self) -> tuple[int, int]:
        """BLOCK_X and BLOCK_K of its tiles: whole rows where they lie along K and fit, 128 bytes of X otherwise."""
        depth = max(triton.next_power_of_2(self.K), 16)
        if self.along_k:
            depth = min(depth, LONGEST)
            return max(1, min(ELEMENTS // depth, 64)), depth
        return ACROSS, min(depth, ELEMENTS // ACROSS)

    @property
    def num_warps(self) -> int:
        """32 elements of a tile a thread, with 4 warps at least."""
        rows, depth = self.block
        return max(4, rows * depth // 1024)

    @property
    def programs(self) -> tuple[int, int, int]:
        """How many split it, how many panels of several tiles it has, and how many of these are a band.

        The last two are 0 and 1 where each tile is whole rows.
        """
        rows, depth = self.block
        chunks = cdiv(self.K, depth)
        panels = math.prod(self.own_batch) * cdiv(self.X, rows)
        if chunks == 1:
            return panels, 0, 1
        wide = min(max(BAND // chunks, 1), panels)
        surveyors = cdiv(chunks, SURVEY)
        return wide * (surveyors + cdiv(panels, wide) * (surveyors + chunks)), panels, wide


def launch(sources: list[Source], planes: int, spare: int = 0) -> tuple[list[Planes], Launch, tuple[Tensor, Tensor]]:
    """Where one or two operands are split to, the launch that does it, and int32 zeros: `spare` of them, and one.

    `planes` is 2, or 1 without low planes.
    """
    device = sources[0].tensor.device
    pitches = [cdiv(s.X, ALIGNED) * ALIGNED for s in sources]
    products = [math.prod(s.own_batch) for s in sources]
    lines = [n * pitch for n, pitch in zip(products, pitches, strict=True)]
    programs = [s.programs for s in sources]
    arrivals = [cdiv(shared, 4) * 4 for _, shared, _ in programs]
    zeros = torch.zeros(2 * sum(lines) + sum(arrivals) + spare + 3, dtype=torch.int32, device=device)
    count, *highs = zeros[-3:].unbind()

    results = []
    parts: list[tuple[list[Any], dict[str, Any], int]] = []  # arguments, options and programs for each
    at = 0
    for s, pitch, n, line, arrival, high, (count_, _, wide) in zip(
        sources, pitches, products, lines, arrivals, highs, programs
    ):
        tops, smalls = zeros[at : at + 2 * line].view(2, n, pitch)
        lanes = n * planes * pitch
        shape = (lanes, cdiv(s.K, ALIGNED) * ALIGNED) if s.along_k else (s.K, lanes)
        room = torch.empty(shape, dtype=torch.float16, device=device)
        results.append(Planes(room, tops, smalls, high, s.own_batch, s.X, s.K, s.along_k, planes))
        arrived = zeros[at + 2 * line : at + 2 * line + arrival]
        at += 2 * line + arrival
        stride_lane, stride_k = room.stride()[:: 1 if s.along_k else -1]
        args = [s.tensor, room, tops, smalls, high, arrived, s.X, wide, s.own_batch[::-1], s.strides[-3::-1]]
        block_x, block_k = s.block
        options = {"X": block_x, "K": block_k, "ONCE": block_k >= s.K}
        parts.append(([*args, *s.strides[-2:], pitch, stride_lane, stride_k], options, count_))

    def together(chosen: list[int], before: tuple[Launch, ...]) -> Launch:
        first, second = chosen[0], chosen[-1]
        counts = parts[first][2], parts[second][2] if second != first else 0
        options = {f"{name}_{key}": value for name, i in zip("AB", (first, second)) for key, value in parts[i][1].items()}
        options |= {"PLANES": planes, "SURVEY": SURVEY, "num_warps": sources[first].num_warps}
        args = (*parts[first][0], *parts[second][0], sources[0].K, *counts)
        return Launch(split_kernel, sum(counts), args, options, before)

    if len({s.num_warps for s in sources}) == 1:
        launching = together(list(range(len(sources))), ())
    else:
        launching = together([1], (together([0], ()),))
    return results, launching, (zeros[at : at + spare], count)
