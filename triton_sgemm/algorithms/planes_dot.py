"""fp16x3 and fp16x1 in plain Triton: `tensor_core`'s product on any GPU from sm_80 on, and in Triton's interpreter.

The planes, the sums and the check are `tensor_core`'s. What makes it fast on Hopper is left out: one program computes a
BLOCK_M x BLOCK_N tile of C, and how it is copied and multiplied is Triton's to arrange (`num_stages` copies in flight).
`tl.dot` sums hi hi over one step of K from zero, and an `fma` adds that to `main`. It is not written `main + dot`: that
Triton would turn into a dot that starts from `main`, and tensor cores truncate there.
Loads per output: 2K (1/64 + 1/32) = 3K/32 halves with low planes, K (1/128 + 1/64) = 3K/128 without. The tiles are as
large as the registers allow: float32's loop is in the same kernel.

Safety. A tile that fails the check is computed again at once, by the same program, in strict float32 from A and B
themselves, and only then written; `left` remembers it for the bench.
No plan chooses this: nobody measured it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Precision, Variant
from . import split
from ._walk import offset, place
from .split import PARTS, power_of_2
from .tensor_core import LIMIT, source_of_a, source_of_b

WEIGHT = {3: 2.0, 1: 0.125}  # by TERMS: the least scaled sum that one small entry may be part of


@dataclass(frozen=True)
class Tile:
    """A program's share of C, the depth of one step, and how many warps and copies in flight it takes."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int  # with low planes: K between two promotions, for which the bounds say 32
    TERMS: int  # products: 3 with low planes, 1 without
    num_warps: int
    num_stages: int = 3
    GROUP_M: int = 8
    FOLD: int = 8192

    @cached_property
    def options(self) -> dict[str, Any]:
        """The kernel's keyword arguments, but for those of the problem."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}"


TILES = (Tile(64, 32, 32, TERMS=3, num_warps=4), Tile(128, 64, 32, TERMS=1, num_warps=8))


@triton.jit
def in_order(
    a_ptr, b_ptr, first_m, first_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of A @ B in strict float32, as `dot` computes it."""
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = (offs_m < M - first_m)[:, None]
    in_n = (offs_n < N - first_n)[None, :]
    a_ptrs = a_ptr + (first_m + offs_m).to(tl.int64)[:, None] * stride_am
    b_ptrs = b_ptr + (first_n + offs_n).to(tl.int64)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, K, BLOCK_K, num_stages=1):
        k = first + offs_k
        a = tl.load(a_ptrs + k.to(tl.int64)[None, :] * stride_ak, mask=in_m & (k < K)[None, :], other=0.0)
        b = tl.load(b_ptrs + k.to(tl.int64)[:, None] * stride_bk, mask=in_n & (k < K)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def planes_dot_kernel(
    a_room, b_room, a_rows, b_rows, a_ptr, b_ptr, c_ptr, out_ptr, left_ptr,
    M, N, K, alpha, beta, limit, weight,
    batch, a_index, b_index, a_batch, b_batch, c_batch, out_batch,
    a_pitch, b_pitch, a_lane, a_rk, b_lane, b_rk,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TERMS: tl.constexpr,
    GROUP_M: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    # which product of the batch, and which tile of its result
    PLANES: tl.constexpr = 2 if TERMS == 3 else 1
    tiles_m = (M - 1) // BLOCK_M + 1  # not cdiv: M + BLOCK_M - 1 may pass 2^31
    tiles_n = (N - 1) // BLOCK_N + 1
    z = tl.program_id(0) // (tiles_m * tiles_n)
    pid_m, pid_n = place(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    first_m = pid_m * BLOCK_M
    first_n = pid_n * BLOCK_N
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = offs_m < M - first_m
    in_n = offs_n < N - first_n
    a_at = offset(z, batch, a_index) * a_pitch
    b_at = offset(z, batch, b_index) * b_pitch

    # a float32 sum that may overflow, or is not finite anyway, is not for the planes
    a_rows += a_at * 3 + first_m + offs_m
    b_rows += b_at * 3 + first_n + offs_n
    e_a = tl.max(tl.load(a_rows, in_m, other=-112), 0)
    e_b = tl.max(tl.load(b_rows, in_n, other=-112), 0)
    left = (e_a + e_b >= limit) | (tl.maximum(e_a, e_b) == 128)
    steps = tl.where(left, 0, (K - 1) // BLOCK_K + 1)

    # pointers to the first step of K; a plane has whole vectors of lanes, and those beyond M and N stay in their rows
    a_room += (a_at * PLANES + first_m) * a_lane
    b_room += (b_at * PLANES + first_n) * b_lane
    a_ptrs = a_room + offs_m.to(tl.int64)[:, None] * a_lane + offs_k.to(tl.int64)[None, :] * a_rk  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_room + offs_k.to(tl.int64)[:, None] * b_rk + offs_n.to(tl.int64)[None, :] * b_lane  # (BLOCK_K, BLOCK_N)
    a_low = a_pitch.to(tl.int64) * a_lane
    b_low = b_pitch.to(tl.int64) * b_lane
    in_a = (offs_m < a_pitch - first_m)[:, None]
    in_b = (offs_n < b_pitch - first_n)[None, :]

    # walk K: load, multiply, promote
    main = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.cast(BLOCK_K, tl.int64)
    for first in range(0, steps, FOLD // BLOCK_K):
        lo = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for i in range(first, tl.minimum(first + FOLD // BLOCK_K, steps)):
            in_k = offs_k < K - i * BLOCK_K
            a_hi = tl.load(a_ptrs, mask=in_a & in_k[None, :], other=0.0)
            b_hi = tl.load(b_ptrs, mask=in_b & in_k[:, None], other=0.0)
            if TERMS == 3:
                a_lo = tl.load(a_ptrs + a_low, mask=in_a & in_k[None, :], other=0.0)
                b_lo = tl.load(b_ptrs + b_low, mask=in_b & in_k[:, None], other=0.0)
                main = tl.fma(tl.dot(a_hi, b_hi), 1.0, main)
                lo = tl.dot(a_lo, b_hi, lo)
                lo = tl.dot(a_hi, b_lo, lo)
            else:
                main = tl.dot(a_hi, b_hi, main)
            a_ptrs += step * a_rk
            b_ptrs += step * b_rk
        if TERMS == 3:
            main = tl.fma(lo, 0.00048828125, main)  # 2^-11

    # may it be written? only if the split lost too little to matter in any of its elements
    smalls_a = tl.load(a_rows + a_pitch, in_m, other=0).to(tl.float32)[:, None]
    smalls_b = tl.load(b_rows + b_pitch, in_n, other=0).to(tl.float32)[None, :]
    norm_a = K - tl.load(a_rows + 2 * a_pitch, in_m, other=0).to(tl.float32)[:, None] / PARTS
    norm_b = K - tl.load(b_rows + 2 * b_pitch, in_n, other=0).to(tl.float32)[None, :] / PARTS
    lost = weight * (tl.minimum(smalls_a, norm_b) + tl.minimum(smalls_b, norm_a))
    inside = in_m[:, None] & in_n[None, :]
    fails = inside & (lost > tl.abs(main))
    left = left | (tl.max(tl.max(fails.to(tl.int32), 1), 0) != 0)

    # A @ B: main * 2^(ea + eb - 28), in two halves, so that nothing leaves float32's range before the product does
    up_a = tl.load(a_rows, in_m, other=0) - 14
    up_b = tl.load(b_rows, in_n, other=0) - 14
    up = up_a[:, None] + up_b[None, :]
    value = main * power_of_2(up >> 1) * power_of_2(up - (up >> 1))
    if left:
        tl.store(left_ptr + tl.program_id(0), 1)
        value = in_order(
            a_ptr + offset(z, batch, a_batch), b_ptr + offset(z, batch, b_batch), first_m, first_n,
            M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, 16,  # of K: more would spill
        )  # fmt: skip

    # write alpha * A @ B + beta * C
    value = alpha * value
    row = first_m.to(tl.int64) + offs_m[:, None]
    col = first_n.to(tl.int64) + offs_n[None, :]
    if HAS_C:
        c = tl.load(c_ptr + offset(z, batch, c_batch) + row * stride_cm + col * stride_cn, mask=inside)
        value = tl.fma(c, beta, value)  # one rounding, whatever TRITON_DEFAULT_FP_FUSION says
    tl.store(out_ptr + offset(z, batch, out_batch) + row * stride_om + col * stride_on, value, mask=inside)


def prepare(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> tuple[Launch, Tensor]:
    """The launch that computes `p`, and int32 for each of its programs: 1 for those that compute in float32."""
    programs = p.batches * cdiv(p.M, tile.BLOCK_M) * cdiv(p.N, tile.BLOCK_N)
    sources = [source_of_a(p, a), source_of_b(p, b)]
    (in_a, in_b), splitting, left = split.launch(sources, 2 if tile.TERMS == 3 else 1, programs)
    c_strides = p.c_strides or p.out_strides
    args = (
        in_a.room, in_b.room, in_a.rows, in_b.rows, a, b, out if c is None else c, out, left,
        p.M, p.N, p.K, p.alpha, p.beta, LIMIT - (p.K - 1).bit_length(), WEIGHT[tile.TERMS],
        p.batch[::-1], in_a.steps_in(p.batch), in_b.steps_in(p.batch),
        p.a_strides[-3::-1], p.b_strides[-3::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        in_a.pitch, in_b.pitch, *_lane_and_k(in_a), *_lane_and_k(in_b),
        *p.a_strides[-2:], *p.b_strides[-2:], *c_strides[-2:], *p.out_strides[-2:],
    )  # fmt: skip
    options = {"HAS_C": p.c_strides is not None, **tile.options}
    return Launch(planes_dot_kernel, programs, args, options, (splitting,)), left


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> Launch:
    """The launch that computes `p`, after the split; the tensors give the addresses only, `p` has their strides.

    Memory of its own: two bytes an element of A and B for each plane.
    """
    return prepare(p, a, b, c, out, tile)[0]


def fallback(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> float:
    """The share of tiles that are computed in float32; computes `p` to find out, into memory of its own."""
    computing, left = prepare(p, a, b, c, out, tile)
    computing.run(out.device)
    return left.float().mean().item()


def _lane_and_k(planes: split.Planes) -> tuple[int, ...]:
    """The strides of a plane, from row to row and along K."""
    return planes.room.stride()[:: 1 if planes.along_k else -1]


PRECISIONS: dict[int, Precision] = {3: "fp32", 1: "tf32"}
VARIANTS = tuple(
    Variant(
        f"planes_dot_fp16x{tile.TERMS}",
        "triton",
        PRECISIONS[tile.TERMS],
        launch=partial(launch, tile=tile),
        fallback=partial(fallback, tile=tile),
        doc=__doc__,
        batched=True,
    )
    for tile in TILES
)
