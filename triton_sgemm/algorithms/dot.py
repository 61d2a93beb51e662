"""Strict float32 in plain Triton, on any GPU and in Triton's interpreter.

One program computes a BLOCK_M x BLOCK_N tile of C. Every product is a float32 fused multiply-add
(`input_precision="ieee"`: `tl.dot` would otherwise round its operands to TF32), K in order within a part of it.
With the largest tile, 64x128x32 and 8 warps, a thread owns 32 outputs and an output costs K (1/64 + 1/128) = 2K/85
global loads (21 FLOP/byte); `num_stages` tiles are in flight behind the arithmetic.
Programs walk C in strips of GROUP_M tile rows, so that neighbours share A and B in the L2 cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, partial

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant
from . import relay
from ._activation import activated


@dataclass(frozen=True)
class Tile:
    """A program's share of C, the depth of one step, and how many warps and copies in flight it takes."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int
    num_stages: int = 3
    GROUP_M: int = 8

    @cached_property
    def options(self) -> dict[str, int]:
        """The kernel's keyword arguments."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}"


TILES = (
    Tile(64, 128, 32, num_warps=8),
    Tile(32, 128, 32, num_warps=4),
    Tile(64, 64, 32, num_warps=4),
    Tile(32, 64, 32, num_warps=4),
    Tile(32, 32, 32, num_warps=2),
    Tile(16, 128, 32, num_warps=4),
    Tile(16, 32, 64, num_warps=2),
)


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta, depth,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    # which product of the batch, its last dimension first; offsets are int64: a view's parent may be very large
    tiles_m = (M - 1) // BLOCK_M + 1  # not cdiv: M + BLOCK_M - 1 may pass 2^31
    tiles_n = (N - 1) // BLOCK_N + 1
    z = tl.program_id(0) // (tiles_m * tiles_n)
    for axis in tl.static_range(len(batch)):
        index = (z % batch[axis]).to(tl.int64)
        a_ptr += index * a_batch[axis]
        b_ptr += index * b_batch[axis]
        out_ptr += index * out_batch[axis]
        if HAS_C:
            c_ptr += index * c_batch[axis]
        z = z // batch[axis]

    # which tile of C
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    strip = tile // (GROUP_M * tiles_n)
    rows = tl.minimum(tiles_m - strip * GROUP_M, GROUP_M)
    pid_m = strip * GROUP_M + tile % (GROUP_M * tiles_n) % rows
    pid_n = tile % (GROUP_M * tiles_n) // rows

    # which part of K: what is left of z
    first_k = z * depth
    K = tl.minimum(K - first_k, depth)

    # move each pointer to the top left corner of this tile
    first_m = pid_m * BLOCK_M
    first_n = pid_n * BLOCK_N
    a_ptr += first_m.to(tl.int64) * stride_am + first_k.to(tl.int64) * stride_ak
    b_ptr += first_n.to(tl.int64) * stride_bn + first_k.to(tl.int64) * stride_bk
    c_ptr += first_m.to(tl.int64) * stride_cm + first_n.to(tl.int64) * stride_cn
    out_ptr += first_m.to(tl.int64) * stride_om + first_n.to(tl.int64) * stride_on + z.to(tl.int64) * stride_part

    # pointers to the first step of K
    offs_m = tl.arange(0, BLOCK_M).to(tl.int64)
    offs_n = tl.arange(0, BLOCK_N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    in_m = (tl.arange(0, BLOCK_M) < M - first_m)[:, None]
    in_n = (tl.arange(0, BLOCK_N) < N - first_n)[None, :]
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # (BLOCK_K, BLOCK_N)

    # walk K: load, multiply, advance
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.cast(BLOCK_K, tl.int64)
    for i in range((K - 1) // BLOCK_K + 1):
        in_k = tl.arange(0, BLOCK_K) < K - i * BLOCK_K
        a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_n & in_k[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # write activation(alpha * acc + beta * C)
    acc = alpha * acc
    if HAS_C:
        c = tl.load(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, mask=in_m & in_n)
        acc = tl.fma(c, beta, acc)  # one rounding, whatever TRITON_DEFAULT_FP_FUSION says
    acc = activated(acc, ACTIVATION)
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :] * stride_on, acc, mask=in_m & in_n)


def programs(p: Problem, tile: Tile) -> int:
    """How many tiles the problem's output has."""
    return p.batches * cdiv(p.M, tile.BLOCK_M) * cdiv(p.N, tile.BLOCK_N)


def readable(strides: tuple[int, ...]) -> bool:
    """Whether a matrix is contiguous along a dimension, or the same all along one."""
    return 1 in strides[-2:] or 0 in strides[-2:]


def reads_b(p: Problem, tile: Tile) -> bool:
    """Whether B is read where it lies. Along K its pointers spill in deep tiles and with two batch dimensions."""
    *_, stride_bk, stride_bn = p.b_strides
    along_k = stride_bk == 1 and stride_bn != 1
    return readable(p.b_strides) and (not along_k or (tile.BLOCK_K <= 32 and len(p.batch) <= 1))


def launch(
    p: Problem,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    out: Tensor,
    tile: Tile,
    depth: int | None = None,
    stride_part: int = 0,
    relay_b: bool = False,
) -> Launch:
    """The launch that computes `p`; the tensors give the addresses only, `p` has their strides.

    An operand of odd strides is moved first; `relay_b` moves B even where its columns are contiguous.
    With `depth`, K is cut into parts of that size, each written `stride_part` elements behind the one before.
    """
    before: list[Launch] = []
    if not readable(p.a_strides):
        p, a, move = relay.moved(p, a)
        before.append(move)
    if relay_b or not reads_b(p, tile):
        turned, b, move = relay.moved(p.transposed(), b)
        p = turned.transposed()
        before.append(move)
    c_strides = p.c_strides or p.out_strides
    depth = depth or max(p.K, 1)
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta, depth,
        p.batch[::-1], p.a_strides[-3::-1], p.b_strides[-3::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        *p.a_strides[-2:], *p.b_strides[-2:], *c_strides[-2:], *p.out_strides[-2:], stride_part,
    )  # fmt: skip
    parts = max(cdiv(p.K, depth), 1)
    options = {"HAS_C": p.c_strides is not None, "ACTIVATION": p.activation, **tile.options}
    return Launch(dot_kernel, parts * programs(p, tile), args, options, tuple(before))


VARIANTS = tuple(
    Variant(f"dot_{tile}", "triton", "ieee", launch=partial(launch, tile=tile), doc=__doc__, batched=True)
    for tile in TILES
)
