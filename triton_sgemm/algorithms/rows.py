"""A few columns at the speed of memory: C = A @ B where B has at most 16 columns and A is contiguous along K.

Such a product reads A once and does little with it, so that all that counts is to read it well. One program takes BLOCK_M
rows of A, BLOCK_K elements at a time as they lie in memory. A thread multiplies its elements by those of all columns of
B and adds up along K; at the end the threads add up their sums in a fixed order: the same bits from run to run, though
not those of a sum with K in order. Every product is a float32 fused multiply-add. Plain Triton, any GPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem


@dataclass(frozen=True)
class Tile:
    """A program's rows, the columns of B rounded up to a power of two, and the step along K."""

    BLOCK_M: int
    COLS: int
    BLOCK_K: int
    num_warps: int = 4

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.COLS}x{self.BLOCK_K}"


TILES = (Tile(4, 1, 512), Tile(4, 2, 512), Tile(4, 4, 512), Tile(4, 8, 256), Tile(4, 16, 128))


@triton.jit
def rows_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: tl.constexpr, BLOCK_M: tl.constexpr, COLS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # which product of the batch, its last dimension first; offsets are int64: a view's parent may be very large
    tiles_m = (M - 1) // BLOCK_M + 1
    z = tl.program_id(0) // tiles_m
    for axis in tl.static_range(len(batch)):
        index = (z % batch[axis]).to(tl.int64)
        a_ptr += index * a_batch[axis]
        b_ptr += index * b_batch[axis]
        out_ptr += index * out_batch[axis]
        if HAS_C:
            c_ptr += index * c_batch[axis]
        z = z // batch[axis]

    # pointers to the first step of K
    first_m = tl.program_id(0) % tiles_m * BLOCK_M
    offs_m = first_m.to(tl.int64) + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    offs_n = tl.arange(0, COLS).to(tl.int64)
    in_m = (tl.arange(0, BLOCK_M) < M - first_m)[:, None]
    in_n = (offs_n < N)[None, :]
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # (BLOCK_K, COLS)

    # walk K: load, multiply, advance
    acc = tl.zeros((BLOCK_M, BLOCK_K, COLS), tl.float32)
    step = tl.cast(BLOCK_K, tl.int64)
    for i in range((K - 1) // BLOCK_K + 1):
        in_k = tl.arange(0, BLOCK_K) < K - i * BLOCK_K
        a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        acc = tl.fma(a[:, :, None], b[None, :, :], acc)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # write alpha * the sum + beta * C
    value = alpha * tl.sum(acc, axis=1)
    inside = in_m & in_n
    if HAS_C:
        c = tl.load(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, mask=inside)
        value = tl.fma(c, beta, value)
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :] * stride_on, value, mask=inside)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> Launch:
    """The launch that computes `p`, whose N is `tile.COLS` at most."""
    c_strides = p.c_strides or p.out_strides
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta,
        p.batch[::-1], p.a_strides[-3::-1], p.b_strides[-3::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        *p.a_strides[-2:], *p.b_strides[-2:], *c_strides[-2:], *p.out_strides[-2:],
    )  # fmt: skip
    options = {"HAS_C": p.c_strides is not None, **asdict(tile)}
    return Launch(rows_kernel, p.batches * cdiv(p.M, tile.BLOCK_M), args, options)
