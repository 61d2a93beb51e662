"""float32 operands as fp16 planes: x = 2^e (hi + 2^-11 lo), one exponent e for each row of A and column of B.

With e the exponent of the row's largest entry (-112 at least), y = x 2^(14 - e) lies below 2^15: hi, y rounded to fp16, keeps 11 bits,
and lo, 2^11 (y - hi) rounded to fp16, the next 11 and a sign. So |y - hi - 2^-11 lo| <= 2u |y| (u = 2^-24), but for
entries below 2^-27 of the row's largest, where fp16 runs out of exponents. What those lose beyond 2u |y| is summed up for
each row: times the other operand's largest entry (below 2^15) it bounds what a sum of products may lack. `lost` is that
bound over SLACK units of the precision (u; 2^-11 without low planes), so that a result is good where
lost_a + lost_b <= |acc|.

The planes keep the operand's own order: along K where its rows lie along K, else along X (X is M or N). Side by side
along X lie, for each product of the batch, the high plane and the low one, `pitch` lanes each.

A program holds BLOCK_X rows by BLOCK_K of K on chip. Where K is longer, a panel's programs agree on the exponents through
memory and wait for one another, so that every operand is read once; where it is much longer, one program takes the panel
and reads it twice. Both operands in one launch, their programs evenly mixed: 8 bytes an element with two planes.
Plain Triton: any GPU, and the interpreter (which runs one program after the other, and so reads twice).
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
SLACK = 4  # c: how many units of an element's own size the entries too small for the planes may take away
LOST_UNIT = tl.constexpr(256)  # `lost` is kept as an integer, which programs may add in any order
ALIGNED = 64  # lanes: 128 bytes of a plane

ACROSS = 32  # rows of a program where they lie along X
ON_CHIP = 8192  # elements that a program holds
NUM_WARPS = 8
MAX_CHUNKS = 64  # programs that wait for one another: fewer than any GPU that may be used holds at a time


@dataclass(frozen=True)
class Planes:
    """A split operand of shape (*batch, X, K); X is M for A and N for B.

    room     fp16, (K, lanes) or, along K, (lanes, K), K padded; lanes = products * planes * pitch
    tops     int32, (products, pitch): the largest |entry| of each row, its float32 bits
    lost     int32, (products, pitch): what the products of each row may lack, see above, over LOST_UNIT
    highest  int32, one element: the largest of `tops`
    """

    room: Tensor
    tops: Tensor
    lost: Tensor
    highest: Tensor
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
    """Writes a tile's planes; returns, of each entry, what they lose beyond its due, times 2^11 with two planes."""
    y = x * power_of_2(14 - e)[:, None]
    hi = y.to(tl.float16)
    room_ptrs = room_ptr + lanes.to(tl.int64)[:, None] * stride_lane + k.to(tl.int64)[None, :] * stride_k
    inside = (lanes < X)[:, None] & (k < K)[None, :]
    tl.store(room_ptrs, hi, inside)
    rest = y - hi.to(tl.float32)
    due = tl.abs(y) * 0.00048828125  # 2^-11
    if PLANES == 2:
        rest = rest * 2048.0
        lo = rest.to(tl.float16)
        tl.store(room_ptrs + pitch.to(tl.int64) * stride_lane, lo, inside)
        rest = rest - lo.to(tl.float32)
        due = tl.abs(y) * 0.000244140625  # 2^-12
    vanished = (x != 0.0) & (tl.abs(y) < 8.67e-19)  # 2^-60: scaling may have rounded it, even to 0
    return tl.where(vanished, 1.78e-15, tl.maximum(tl.abs(rest) - due, 0.0))  # above 2^-49


@triton.jit
def panel(
    x_ptr, room_ptr, tops_ptr, lost_ptr, highest_ptr, arrived_ptr, pid,
    X, K, batch, steps, stride_x, stride_k, pitch, stride_lane, stride_rk, weight,
    PLANES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Splits BLOCK_X rows of one product's operand: all of K, twice read, or, where CHUNKS > 0, one chunk of K."""
    chunk = 0
    if CHUNKS > 1:
        chunk = pid % CHUNKS
        pid = pid // CHUNKS
    panels = (X - 1) // BLOCK_X + 1
    z = pid // panels
    first = pid % panels * BLOCK_X
    room_ptr += (z.to(tl.int64) * PLANES * pitch + first) * stride_lane
    tops_ptr += z.to(tl.int64) * pitch + first
    lost_ptr += z.to(tl.int64) * pitch + first
    for axis in tl.static_range(len(batch)):
        x_ptr += (z % batch[axis]).to(tl.int64) * steps[axis]
        z = z // batch[axis]
    x_ptr += first.to(tl.int64) * stride_x
    X = X - first
    lanes = tl.arange(0, BLOCK_X)
    k = chunk * BLOCK_K + tl.arange(0, BLOCK_K)

    # the largest entries
    x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
    tops = magnitude(x)
    if CHUNKS == 0:
        for i in range(1, (K - 1) // BLOCK_K + 1):
            x = read(x_ptr, lanes, i * BLOCK_K + k, X, K, stride_x, stride_k)
            tops = tl.maximum(tops, magnitude(x))
    top = tl.max(tops, 1)
    if CHUNKS > 1:
        tl.atomic_max(tops_ptr + lanes, top, lanes < X)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrived_ptr + pid, 1) + 1
        while arrived < CHUNKS:
            arrived = tl.atomic_add(arrived_ptr + pid, 0)
        top = tl.load(tops_ptr + lanes, lanes < X, other=0, volatile=True)
    else:
        tl.store(tops_ptr + lanes, top, lanes < X)
    if chunk == 0:
        tl.atomic_max(highest_ptr, tl.max(top, 0))

    # the planes; where K is walked again, backwards, so that the last tile is still here and others in the L2 cache
    e = exponent(top)
    lost = tl.sum(write(room_ptr, x, e, lanes, k + _last(K, BLOCK_K, CHUNKS), X, K, pitch, stride_lane, stride_rk, PLANES), 1)
    if CHUNKS == 0:
        for i in range(1, (K - 1) // BLOCK_K + 1):
            at = k + _last(K, BLOCK_K, CHUNKS) - i * BLOCK_K
            x = read(x_ptr, lanes, at, X, K, stride_x, stride_k)
            lost += tl.sum(write(room_ptr, x, e, lanes, at, X, K, pitch, stride_lane, stride_rk, PLANES), 1)
    lost = tl.ceil(tl.minimum(lost * weight, 1073741824.0)).to(tl.int32)
    if CHUNKS > 1:
        tl.atomic_add(lost_ptr + lanes, lost, lanes < X)
    else:
        tl.store(lost_ptr + lanes, lost, lanes < X)


@triton.jit
def _last(K, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr):
    """Where the last tile of a walk along K starts; 0 where there is no walk."""
    return (K - 1) // BLOCK_K * BLOCK_K if CHUNKS == 0 else 0


@triton.jit
def split_kernel(
    a_ptr, a_room, a_tops, a_lost, a_highest, a_arrived, a_X, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
    b_ptr, b_room, b_tops, b_lost, b_highest, b_arrived, b_X, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
    K, weight, a_programs, b_programs, ticket_ptr, PLANES: tl.constexpr,
    A_X: tl.constexpr, A_K: tl.constexpr, A_CHUNKS: tl.constexpr,
    B_X: tl.constexpr, B_K: tl.constexpr, B_CHUNKS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if A_CHUNKS > 1 or B_CHUNKS > 1:  # in the order in which they start, so that nobody waits for one that cannot
        pid = tl.atomic_add(ticket_ptr, 1)
    mixed = pid.to(tl.int64) * b_programs
    b_before = (mixed // (a_programs + b_programs)).to(tl.int32)
    b_after = ((mixed + b_programs) // (a_programs + b_programs)).to(tl.int32)
    if b_after == b_before:
        panel(
            a_ptr, a_room, a_tops, a_lost, a_highest, a_arrived, pid - b_before,
            a_X, K, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk, weight, PLANES, A_X, A_K, A_CHUNKS,
        )  # fmt: skip
    else:
        panel(
            b_ptr, b_room, b_tops, b_lost, b_highest, b_arrived, b_before,
            b_X, K, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk, weight, PLANES, B_X, B_K, B_CHUNKS,
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
    def block(self) -> tuple[int, int, int]:
        """BLOCK_X, BLOCK_K and CHUNKS of its panels: as much of K as fits on chip, 128 bytes where rows lie along X."""
        depth = max(triton.next_power_of_2(self.K), 16)
        rows = max(1, min(ON_CHIP // depth, 64)) if self.along_k else ACROSS
        depth = min(depth, ON_CHIP // rows)
        chunks = cdiv(self.K, depth)
        return rows, depth, chunks if chunks <= (MAX_CHUNKS if self.tensor.is_cuda else 1) else 0

    @property
    def panels(self) -> int:
        """How many times BLOCK_X rows there are."""
        return math.prod(self.own_batch) * cdiv(self.X, self.block[0])


def launch(sources: list[Source], planes: int, spare: int = 0) -> tuple[list[Planes], Launch, tuple[Tensor, Tensor]]:
    """The launch that splits one or two operands, where it puts them, and int32 zeros: `spare` of them, and one.

    `planes` is 2, or 1 without low planes.
    """
    device = sources[0].tensor.device
    pitches = [cdiv(s.X, ALIGNED) * ALIGNED for s in sources]
    products = [math.prod(s.own_batch) for s in sources]
    lines = [n * pitch for n, pitch in zip(products, pitches, strict=True)]
    arrivals = [cdiv(s.panels, ALIGNED) * ALIGNED for s in sources]
    zeros = torch.zeros(2 * sum(lines) + sum(arrivals) + spare + 4, dtype=torch.int32, device=device)
    ticket, count, *highest = zeros[-4:].unbind()

    results = []
    args: list[Any] = []
    options: dict[str, Any] = {}
    programs = []
    at = 0
    for name, s, pitch, n, line, arrival, top in zip("AB", sources, pitches, products, lines, arrivals, highest):
        tops, lost = zeros[at : at + 2 * line].view(2, n, pitch)
        lanes = n * planes * pitch
        shape = (lanes, cdiv(s.K, ALIGNED) * ALIGNED) if s.along_k else (s.K, lanes)
        room = torch.empty(shape, dtype=torch.float16, device=device)
        results.append(Planes(room, tops, lost, top, s.own_batch, s.X, s.K, s.along_k, planes))
        at += 2 * line
        arrived = zeros[at : at + arrival]
        at += arrival
        stride_lane, stride_k = room.stride()[:: 1 if s.along_k else -1]
        args += [s.tensor, room, tops, lost, top, arrived, s.X, s.own_batch[::-1], s.strides[-3::-1], *s.strides[-2:]]
        args += [pitch, stride_lane, stride_k]
        block_x, block_k, chunks = s.block
        options |= {f"{name}_X": block_x, f"{name}_K": block_k, f"{name}_CHUNKS": chunks}
        programs.append(s.panels * max(chunks, 1))
    if len(sources) == 1:
        args += args
        options |= {f"B_{key}": options[f"A_{key}"] for key in ("X", "K", "CHUNKS")}
        programs.append(0)
    # of an excess (times 2^11 with two planes) to LOST_UNITs of SLACK units, times 2^15
    weight = LOST_UNIT.value * (2.0 ** (15 - 11 + 24) if planes == 2 else 2.0 ** (15 + 11)) / SLACK
    options |= {"PLANES": planes, "num_warps": NUM_WARPS}
    return results, Launch(split_kernel, sum(programs), (*args, sources[0].K, weight, *programs, ticket), options), (zeros[at : at + spare], count)
