"""float32 operands as fp16 planes: x = 2^e (hi + 2^-11 lo), one exponent e for each row of A and column of B.

With e the exponent of the row's largest entry, y = x 2^(14 - e) lies below 2^15: hi, y rounded to fp16, keeps 11 bits,
and lo, 2^11 (y - hi) rounded to fp16, the next 11 and a sign. So |y - hi - 2^-11 lo| <= 2u |y| (u = 2^-24), but
for entries below 2^-27 of the row's largest, where fp16 runs out of exponents. What those lose beyond 2u |y| is summed up
for each row: times the other operand's largest entry (below 2^15) it bounds what a sum of products may lack. `lost` is that
bound over SLACK times the unit of the precision, so that a result is good where lost_a + lost_b <= |acc|.

The planes keep the operand's own order: along K where its rows lie along K, else along X (X is M or N). Side by side
along X lie, for each product of the batch, the high plane and the low one, `pitch` lanes each.

One program takes BLOCK_X rows of X and all of K. Where these fit on chip they are read once, else twice: for the
exponents, and, backwards, so that the last ones are still in the L2 cache, to be split. Both operands in one launch.
8 bytes an element for two planes. Plain Triton: any GPU, and the interpreter.
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

NOT_FINITE = 1 << 14  # the exponent of a row with Inf or NaN
EMPTY = -150  # that of a row of zeros
SLACK = 4  # c: how many units of an element's own size the entries too small for the planes may take away
ALIGNED = 64  # lanes: 128 bytes of a plane


@dataclass(frozen=True)
class Planes:
    """A split operand of shape (*batch, X, K); X is M for A and N for B.

    room       fp16, (K, lanes) or, along K, (lanes, K) padded to whole ALIGNED; lanes = products * planes * pitch
    exponents  int32, (products, pitch): floor(log2 |largest entry|) of each row
    lost       float32, (products, pitch): see above
    """

    room: Tensor
    exponents: Tensor
    lost: Tensor
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
        return self.exponents.shape[-1]


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
def exponent(top, NOT_FINITE: tl.constexpr, EMPTY: tl.constexpr):
    """floor(log2) of a magnitude, subnormal ones too."""
    raised = magnitude(top.to(tl.float32, bitcast=True) * 18446744073709551616.0)  # 2^64
    e = tl.where(top < 1 << 23, (raised >> 23) - (127 + 64), (top >> 23) - 127)
    return tl.where(e == 128, NOT_FINITE, tl.maximum(e, EMPTY))


@triton.jit
def write(room_ptr, x, e, lanes, k, X, K, pitch, stride_lane, stride_k, PLANES: tl.constexpr):
    """Writes a tile's planes; returns, of each entry, what they lose beyond its due, times 2^11 with two planes."""
    up = 14 - tl.where(e > 127, 0, e)
    half = tl.minimum(up, 100)  # two steps: 2^up may lie outside float32
    y = x * power_of_2(half)[:, None] * power_of_2(up - half)[:, None]
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
    # 1.78e-15: above 2^-49
    return tl.where(vanished, 1.78e-15, tl.maximum(tl.abs(rest) - due, 0.0))


@triton.jit
def panel(
    x_ptr, room_ptr, exps_ptr, lost_ptr, pid, X, K, batch, steps, stride_x, stride_k, pitch, stride_lane, stride_rk,
    weight, PLANES: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr, ONCE: tl.constexpr,
    NOT_FINITE: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """Splits BLOCK_X rows of one product's operand."""
    panels = (X - 1) // BLOCK_X + 1
    z = pid // panels
    first = pid % panels * BLOCK_X
    room_ptr += z.to(tl.int64) * PLANES * pitch * stride_lane + first.to(tl.int64) * stride_lane
    exps_ptr += z.to(tl.int64) * pitch + first
    lost_ptr += z.to(tl.int64) * pitch + first
    for axis in tl.static_range(len(batch)):
        x_ptr += (z % batch[axis]).to(tl.int64) * steps[axis]
        z = z // batch[axis]
    x_ptr += first.to(tl.int64) * stride_x
    X = X - first
    lanes = tl.arange(0, BLOCK_X)
    k = tl.arange(0, BLOCK_K)

    if ONCE:
        x = read(x_ptr, lanes, k, X, K, stride_x, stride_k)
        e = exponent(tl.max(magnitude(x), 1), NOT_FINITE, EMPTY)
        lost = write(room_ptr, x, e, lanes, k, X, K, pitch, stride_lane, stride_rk, PLANES)
    else:
        last = (K - 1) // BLOCK_K
        top = tl.zeros((BLOCK_X, BLOCK_K), tl.int32)
        for i in range(last + 1):
            top = tl.maximum(top, magnitude(read(x_ptr, lanes, i * BLOCK_K + k, X, K, stride_x, stride_k)))
        e = exponent(tl.max(top, 1), NOT_FINITE, EMPTY)
        lost = tl.zeros((BLOCK_X, BLOCK_K), tl.float32)
        for i in range(last + 1):
            at = (last - i) * BLOCK_K + k
            x = read(x_ptr, lanes, at, X, K, stride_x, stride_k)
            lost += write(room_ptr, x, e, lanes, at, X, K, pitch, stride_lane, stride_rk, PLANES)
    tl.store(exps_ptr + lanes, e, lanes < X)
    tl.store(lost_ptr + lanes, tl.sum(lost, 1) * weight, lanes < X)


@triton.jit
def split_kernel(
    a_ptr, a_room, a_exps, a_lost, a_programs, a_X, K, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
    b_ptr, b_room, b_exps, b_lost, b_X, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
    failed_ptr, weight, PLANES: tl.constexpr,
    A_X: tl.constexpr, A_K: tl.constexpr, A_ONCE: tl.constexpr,
    B_X: tl.constexpr, B_K: tl.constexpr, B_ONCE: tl.constexpr,
    NOT_FINITE: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if pid == 0:
        tl.store(failed_ptr, 0)
    if pid < a_programs:
        panel(
            a_ptr, a_room, a_exps, a_lost, pid, a_X, K, a_batch, a_steps, a_x, a_k, a_pitch, a_lane, a_rk,
            weight, PLANES, A_X, A_K, A_ONCE, NOT_FINITE, EMPTY,
        )  # fmt: skip
    else:
        panel(
            b_ptr, b_room, b_exps, b_lost, pid - a_programs, b_X, K, b_batch, b_steps, b_x, b_k, b_pitch, b_lane, b_rk,
            weight, PLANES, B_X, B_K, B_ONCE, NOT_FINITE, EMPTY,
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
        """BLOCK_X and BLOCK_K: whole rows where they lie along K and fit, 128 bytes of rows where they lie along X."""
        if self.along_k:
            depth = min(max(triton.next_power_of_2(self.K), 64), ON_CHIP)
            return max(1, min(ON_CHIP // 4, 4 * ACROSS * 32) // depth), depth
        return ACROSS, min(max(triton.next_power_of_2(self.K), 64), ON_CHIP // ACROSS)

    def room(self, planes: int) -> Planes:
        """Memory for its planes."""
        products = math.prod(self.own_batch)
        pitch, depth = (cdiv(n, ALIGNED) * ALIGNED for n in (self.X, self.K))
        lanes = products * planes * pitch
        device = self.tensor.device
        return Planes(
            torch.empty((lanes, depth) if self.along_k else (self.K, lanes), dtype=torch.float16, device=device),
            torch.empty((products, pitch), dtype=torch.int32, device=device),
            torch.empty((products, pitch), dtype=torch.float32, device=device),
            self.own_batch,
            self.X,
            self.K,
            self.along_k,
            planes,
        )


ON_CHIP = 16384  # elements that a program holds at once
ACROSS = 32  # rows of a program where they lie along X
NUM_WARPS = 8


def launch(sources: list[Source], planes: list[Planes], failed: Tensor) -> Launch:
    """The launch that splits one or two operands into `planes`, and sets the counter `failed` to 0."""
    # those along X take longest: they go first
    todo = sorted(zip(sources, planes, strict=True), key=lambda pair: pair[0].along_k)
    programs = [math.prod(s.own_batch) * cdiv(s.X, s.block[0]) for s, _ in todo]
    args: list[Any] = []
    options: dict[str, Any] = {}
    for name, (s, p) in zip("AB", (todo[0], todo[-1]), strict=True):
        lane, depth = p.room.stride()[:: 1 if p.along_k else -1]
        where = (s.own_batch[::-1], s.strides[-3::-1], *s.strides[-2:], p.pitch, lane, depth)
        if name == "A":
            args += [s.tensor, p.room, p.exponents, p.lost, programs[0], s.X, s.K, *where]
        else:
            args += [s.tensor, p.room, p.exponents, p.lost, s.X, *where]
        block_x, block_k = s.block
        options |= {f"{name}_X": block_x, f"{name}_K": block_k, f"{name}_ONCE": block_k >= s.K}
    # of excess (times 2^11 with two planes) to units: 2^15 / (SLACK * unit)
    weight = 2.0 ** (15 - 11 + 24) / SLACK if todo[0][1].planes == 2 else 2.0 ** (15 + 11) / SLACK
    options |= {"PLANES": todo[0][1].planes, "NOT_FINITE": NOT_FINITE, "EMPTY": EMPTY, "num_warps": NUM_WARPS}
    return Launch(split_kernel, sum(programs), (*args, failed, weight), options)
