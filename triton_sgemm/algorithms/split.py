"""float32 operands as fp16 planes: x = 2^e (hi + 2^-11 lo), one exponent e for each row of A and column of B.

With e no less than the exponent of the row's largest entry, y = x 2^(14 - e) lies below 2^15: hi, y rounded to fp16,
keeps 11 bits, and lo, 2^11 (y - hi) rounded to fp16, the next 11 and a sign: |y - hi - 2^-11 lo| <= 2u |y|, u = 2^-24.
That does not hold for entries below 2^-13, where fp16 runs out of exponents. How much a product loses by such `smalls`
depends on how many there are and on what they meet, so they are counted, and the rows of tiles that hold any are summed
(`norm`): `tensor_core` can tell from both where they matter.

The planes keep the operand's own order: along K where its rows lie along K, else along X (X is M or N). Side by side
along X lie, for each product of the batch, the high plane and the low one, `pitch` lanes each.

Every operand is read once. Where its rows lie along K and fit on chip, e is the exponent of the largest entry. Else a
row is the work of many programs: all of them read the same SAMPLE of it and set e a little above (HEADROOM). Where an
entry turns out to be larger still, the panel is `broken`, and `repair_kernel` splits it again.
8 bytes moved an element with two planes. Plain Triton: any GPU, and the interpreter.
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
from ._walk import offset

LOWEST = tl.constexpr(-112)  # exponent: 2^(14 - e) is a float32, and brings even subnormals where fp16 holds them
SMALL = tl.constexpr(2.0**-13)
TOO_LARGE = tl.constexpr(2.0**15)
PARTS = tl.constexpr(16)  # of TOO_LARGE, in which norms are counted: fine enough where each of many tiles rounds up
HIGH = tl.constexpr(32)  # exponent: float32 sums of products of entries below 2^32 stay in range
ALIGNED = 64  # lanes: 128 bytes of a plane

ACROSS = 32  # rows of a tile where they lie along X
ELEMENTS = 4096  # of a tile
LONGEST = 32768  # row of one tile
SAMPLE = 64  # entries of a row
HEADROOM = tl.constexpr(3)  # exponents: what the sample may miss, and what the check gives away


@dataclass(frozen=True)
class Planes:
    """A split operand of shape (*batch, X, K); X is M for A and N for B.

    room     fp16, (K, lanes) or, along K, (lanes, K), K padded to ALIGNED; lanes = products * planes * pitch
    rows     int32, (products, 3, pitch): e of each row, 128 where an entry is Inf or NaN; how many of its entries are
             small, see above; and by how much PARTS K exceeds its `norm`, 0 where nothing near it is small
    high     int32, one element: not 0 where an e is HIGH or more
    """

    room: Tensor
    rows: Tensor
    high: Tensor
    batch: tuple[int, ...]
    X: int
    K: int
    along_k: bool
    planes: int

    def steps_in(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """From one product of `batch` to the next, its last dimension first; 0 where the operand is broadcast."""
        own = self.batch or (1,) * len(batch)
        return tuple(math.prod(own[i + 1 :]) if own[i] > 1 else 0 for i in reversed(range(len(batch))))

    @property
    def lanes(self) -> Tensor:
        """`room` without what pads K."""
        return self.room[:, : self.K] if self.along_k else self.room[: self.K]

    @property
    def pitch(self) -> int:
        """Lanes from a high plane to its low plane, and from there to the next product's."""
        return self.rows.shape[-1]


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
    """floor(log2) of a magnitude; 128 for Inf and NaN, -127 for subnormal numbers and 0."""
    return (top >> 23) - 127


@triton.jit
def write(room_ptr, y, lanes, k, behind, depth, pitch, stride_lane, stride_k, PLANES: tl.constexpr):
    """Writes a tile's planes: up to the ends of the room, `behind` and `depth`, which are multiples of a vector."""
    hi = y.to(tl.float16)
    room_ptrs = room_ptr + lanes.to(tl.int64)[:, None] * stride_lane + k.to(tl.int64)[None, :] * stride_k
    inside = (lanes < behind)[:, None] & (k < depth)[None, :]
    tl.store(room_ptrs, hi, inside)
    if PLANES == 2:
        lo = ((y - hi.to(tl.float32)) * 2048.0).to(tl.float16)
        tl.store(room_ptrs + pitch.to(tl.int64) * stride_lane, lo, inside)


@triton.jit
def small(x, y):
    """1 for each entry that the planes do not hold to 2u."""
    return ((x != 0.0) & (tl.abs(y) < SMALL)).to(tl.int32)


@triton.jit
def norm(y, K):
    """The sum of |y| of each of K entries, in units of TOO_LARGE / PARTS, rounded up; 0 for zeros alone."""
    parts = tl.ceil(tl.sum(tl.abs(y), 1) * (PARTS / TOO_LARGE))
    return tl.where(parts <= PARTS * K, parts, PARTS * K).to(tl.int32)  # Inf and NaN are not an integer's


@triton.jit
def panel(
    x_ptr, room_ptr, rows_ptr, high_ptr, broken_ptr, pid,
    X, K, depth, batch, steps, stride_x, stride_k, pitch, stride_lane, stride_rk,
    PLANES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr, ONCE: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Splits BLOCK_X rows: all of them, or a tile of BLOCK_K of K."""
    panels = (X - 1) // BLOCK_X + 1
    chunk = 0
    if not ONCE:
        chunks = (K - 1) // BLOCK_K + 1
        chunk = pid % chunks
        pid = pid // chunks
    z = pid // panels
    first = pid % panels * BLOCK_X
    X = X - first
    x_ptr += offset(z, batch, steps) + first.to(tl.int64) * stride_x
    room_ptr += (z.to(tl.int64) * PLANES * pitch + first) * stride_lane
    rows_ptr += z.to(tl.int64) * 3 * pitch + first
    lanes = tl.arange(0, BLOCK_X)
    k = chunk * BLOCK_K + tl.arange(0, BLOCK_K)

    if ONCE:
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
        top = tl.max(magnitude(x), 1)
        e = tl.maximum(exponent(top), LOWEST)
    else:
        some = tl.arange(0, SAMPLE) * tl.maximum(K // SAMPLE, 1)
        top = tl.max(magnitude(read(x_ptr, lanes, some, X, K, stride_x, stride_k)), 1)
        e = tl.maximum(tl.minimum(exponent(top) + HEADROOM, 127), LOWEST)
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
    if chunk == 0:
        tl.store(rows_ptr + lanes, e, lanes < X)
        if tl.max(e, 0) >= HIGH:
            tl.store(high_ptr, 1)
    y = x * power_of_2(14 - e)[:, None]
    write(room_ptr, y, lanes, k, pitch - first, depth, pitch, stride_lane, stride_rk, PLANES)

    # most tiles hold nothing that is small or too large
    smalls = tl.zeros((BLOCK_X,), tl.int32)
    slack = tl.zeros((BLOCK_X,), tl.int32)
    if ONCE:
        slack = tl.where(top == 0, PARTS * K, slack)
    fits = (tl.abs(y) >= SMALL) & (tl.abs(y) < TOO_LARGE)
    if tl.max(((x != 0.0) & ~fits).to(tl.int32)) != 0:
        smalls = tl.sum(small(x, y), 1)
        here = tl.minimum(K - chunk * BLOCK_K, BLOCK_K).to(tl.int32)
        slack = PARTS * here - norm(y, here)
        if not ONCE:
            tl.atomic_add(rows_ptr + pitch + lanes, smalls, lanes < X, sem="relaxed")
            tl.atomic_add(rows_ptr + 2 * pitch + lanes, slack, lanes < X, sem="relaxed")
            if tl.max((~(tl.abs(y) < TOO_LARGE)).to(tl.int32)) != 0:
                tl.store(broken_ptr + pid, 1)
    if ONCE:
        tl.store(rows_ptr + pitch + lanes, smalls, lanes < X)
        tl.store(rows_ptr + 2 * pitch + lanes, slack, lanes < X)


@triton.jit
def repair(
    x_ptr, room_ptr, rows_ptr, high_ptr, broken_ptr, pid,
    X, K, depth, batch, steps, stride_x, stride_k, pitch, stride_lane, stride_rk,
    PLANES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Splits BLOCK_X rows again if they are broken."""
    if tl.load(broken_ptr + pid) == 0:
        return
    panels = (X - 1) // BLOCK_X + 1
    z = pid // panels
    first = pid % panels * BLOCK_X
    X = X - first
    x_ptr += offset(z, batch, steps) + first.to(tl.int64) * stride_x
    room_ptr += (z.to(tl.int64) * PLANES * pitch + first) * stride_lane
    rows_ptr += z.to(tl.int64) * 3 * pitch + first
    lanes = tl.arange(0, BLOCK_X)
    tops = tl.zeros((BLOCK_X, BLOCK_K), tl.int32)
    for i in range((K - 1) // BLOCK_K + 1):
        k = i * BLOCK_K + tl.arange(0, BLOCK_K)
        tops = tl.maximum(tops, magnitude(read(x_ptr, lanes, k, X, K, stride_x, stride_k)))
    top = tl.max(tops, 1)
    e = tl.maximum(exponent(top), LOWEST)
    smalls = tl.zeros((BLOCK_X, BLOCK_K), tl.int32)
    sums = tl.zeros((BLOCK_X, BLOCK_K), tl.float32)
    for i in range((K - 1) // BLOCK_K + 1):
        k = i * BLOCK_K + tl.arange(0, BLOCK_K)
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
        y = x * power_of_2(14 - e)[:, None]
        write(room_ptr, y, lanes, k, pitch - first, depth, pitch, stride_lane, stride_rk, PLANES)
        smalls += small(x, y)
        sums += tl.abs(y)
    tl.store(rows_ptr + lanes, e, lanes < X)
    tl.store(rows_ptr + pitch + lanes, tl.sum(smalls, 1), lanes < X)
    tl.store(rows_ptr + 2 * pitch + lanes, PARTS * K - norm(sums, K), lanes < X)
    if tl.max(e, 0) >= HIGH:
        tl.store(high_ptr, 1)


@triton.jit
def split_kernel(
    a_ptr, a_room, a_rows, a_high, a_broken, a_X, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
    b_ptr, b_room, b_rows, b_high, b_broken, b_X, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
    K, depth, a_programs, b_programs, PLANES: tl.constexpr, SAMPLE: tl.constexpr,
    A_X: tl.constexpr, A_K: tl.constexpr, A_ONCE: tl.constexpr,
    B_X: tl.constexpr, B_K: tl.constexpr, B_ONCE: tl.constexpr,
):  # fmt: skip
    # A's programs and B's in turn, as long as there are both
    pid = tl.program_id(0)
    fewer = tl.minimum(a_programs, b_programs)
    in_turn = pid < 2 * fewer
    mine = tl.where(in_turn, pid // 2, pid - fewer)
    if (in_turn & (pid % 2 == 0)) | (~in_turn & (fewer < a_programs)):
        panel(
            a_ptr, a_room, a_rows, a_high, a_broken, mine,
            a_X, K, depth, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk, PLANES, A_X, A_K, A_ONCE, SAMPLE,
        )  # fmt: skip
    else:
        panel(
            b_ptr, b_room, b_rows, b_high, b_broken, mine,
            b_X, K, depth, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk, PLANES, B_X, B_K, B_ONCE, SAMPLE,
        )  # fmt: skip


@triton.jit
def repair_kernel(
    a_ptr, a_room, a_rows, a_high, a_broken, a_X, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
    b_ptr, b_room, b_rows, b_high, b_broken, b_X, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
    K, depth, a_programs, b_programs, PLANES: tl.constexpr, SAMPLE: tl.constexpr,
    A_X: tl.constexpr, A_K: tl.constexpr, A_ONCE: tl.constexpr,
    B_X: tl.constexpr, B_K: tl.constexpr, B_ONCE: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if pid < a_programs:
        if not A_ONCE:
            repair(
                a_ptr, a_room, a_rows, a_high, a_broken, pid,
                a_X, K, depth, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk, PLANES, A_X, A_K,
            )  # fmt: skip
    elif not B_ONCE:
        repair(
            b_ptr, b_room, b_rows, b_high, b_broken, pid - a_programs,
            b_X, K, depth, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk, PLANES, B_X, B_K,
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
    def panels(self) -> int:
        """How many times BLOCK_X rows there are."""
        return math.prod(self.own_batch) * cdiv(self.X, self.block[0])

    @property
    def chunks(self) -> int:
        """Tiles a panel: where there is one, it is whole rows."""
        return cdiv(self.K, self.block[1])


def launch(sources: list[Source], planes: int, spare: int = 0) -> tuple[list[Planes], Launch, Tensor]:
    """The planes of one or two operands, the launch that fills them, and `spare` int32 that it clears.

    `planes` is 2, or 1 without low planes.
    """
    device, K = sources[0].tensor.device, sources[0].K
    depth = cdiv(K, ALIGNED) * ALIGNED
    pitches = [cdiv(s.X, ALIGNED) * ALIGNED for s in sources]
    lines = [math.prod(s.own_batch) * pitch for s, pitch in zip(sources, pitches, strict=True)]
    broken = [cdiv(s.panels, ALIGNED) * ALIGNED for s in sources]
    sizes = [*(3 * line for line in lines), *broken, spare, len(sources)]
    zeros = torch.empty(sum(sizes), dtype=torch.int32, device=device)
    *parts, spared, highs = zeros.split(sizes)

    results: list[Planes] = []
    arguments: list[tuple[Any, ...]] = []
    for s, pitch, rows, panels, high in zip(sources, pitches, parts, parts[len(sources) :], highs, strict=False):
        rows = rows.view(-1, 3, pitch)
        lanes = len(rows) * planes * pitch
        shape = (lanes, depth) if s.along_k else (depth, lanes)
        room = torch.empty(shape, dtype=torch.float16, device=device)
        results.append(Planes(room, rows, high, s.own_batch, s.X, s.K, s.along_k, planes))
        strides = (*s.strides[-2:], pitch, *room.stride()[:: 1 if s.along_k else -1])
        arguments.append((s.tensor, room, rows, high, panels, s.X, s.own_batch[::-1], s.strides[-3::-1], *strides))

    def of(kernel: Any, chosen: list[int], programs: list[int], before: tuple[Launch, ...]) -> Launch:
        a, b = chosen[0], chosen[-1]
        options = {"PLANES": planes, "SAMPLE": SAMPLE, "num_warps": sources[a].num_warps}
        for name, s in (("A", sources[a]), ("B", sources[b])):
            options |= {f"{name}_X": s.block[0], f"{name}_K": s.block[1], f"{name}_ONCE": s.chunks == 1}
        programs = [programs[a], programs[b] if a != b else 0]
        args = (*arguments[a], *arguments[b], K, depth, *programs)
        return Launch(kernel, sum(programs), args, options, before, () if before else (zeros,))

    programs = [s.panels * s.chunks for s in sources]
    alike = len({s.num_warps for s in sources}) == 1
    groups = [list(range(len(sources)))] if alike else [[0], [1]]
    before: tuple[Launch, ...] = ()
    for group in groups:
        before = (of(split_kernel, group, programs, before),)
    for group in groups:
        guessed = [s.panels if s.chunks > 1 else 0 for s in sources]
        if any(guessed[i] for i in group):
            before = (of(repair_kernel, group, guessed, before),)
    return results, before[0], spared
