"""A few columns at the speed of memory: C = A @ B where B has at most 16 columns and A is contiguous along K.

Such a product reads A once and does little with it, so that all that counts is to read it well. One program takes
BLOCK_M rows of A, BLOCK_K elements at a time as they lie in memory, and COLS columns of B, which lie along K too
(`relay` moves them there: they are few). A thread multiplies what it holds of A by what it holds of each column and
adds up along K; at the end the threads add up their sums in a fixed order: the same bits from run to run, though not
those of a sum with K in order. Every product is a float32 fused multiply-add. Plain Triton: any GPU, and the
interpreter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem
from . import relay
from ._activation import activated

MAX_COLS = 16


@dataclass(frozen=True)
class Tile:
    """A program's rows and columns, and the step along K."""

    BLOCK_M: int
    COLS: int
    BLOCK_K: int
    num_warps: int = 4

    @cached_property
    def options(self) -> dict[str, Any]:
        """The kernel's keyword arguments."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.COLS}x{self.BLOCK_K}"


TILES = (Tile(4, 1, 512), Tile(4, 2, 512), Tile(4, 4, 512), Tile(4, 8, 512))


@triton.jit
def rows_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, COLS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # which product of the batch, its last dimension first; offsets are int64: a view's parent may be very large
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // COLS + 1
    z = tl.program_id(0) // (tiles_m * tiles_n)
    for axis in tl.static_range(len(batch)):
        index = (z % batch[axis]).to(tl.int64)
        a_ptr += index * a_batch[axis]
        b_ptr += index * b_batch[axis]
        out_ptr += index * out_batch[axis]
        if HAS_C:
            c_ptr += index * c_batch[axis]
        z = z // batch[axis]

    # which rows and columns: neighbours share rows, so that A comes from memory once
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    first_m = tile // tiles_n * BLOCK_M
    first_n = tile % tiles_n * COLS

    # pointers to the first step of K
    offs_m = first_m.to(tl.int64) + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    in_m = tl.arange(0, BLOCK_M) < M - first_m
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + offs_k * stride_bk  # (BLOCK_K,)
    step = tl.cast(BLOCK_K, tl.int64)

    # walk K: load, multiply, advance
    acc = ()
    for _ in tl.static_range(COLS):
        acc = acc + (tl.zeros((BLOCK_M, BLOCK_K), tl.float32),)
    for i in range((K - 1) // BLOCK_K + 1):
        in_k = tl.arange(0, BLOCK_K) < K - i * BLOCK_K
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        sums = ()
        for j in tl.static_range(COLS):
            col = tl.minimum(first_n + j, N - 1)  # beyond the last: the last again, and not written
            b = tl.load(b_ptrs + col.to(tl.int64) * stride_bn, mask=in_k, other=0.0)
            sums = sums + (tl.fma(a, b[None, :], acc[j]),)
        acc = sums
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # write activation(alpha * the sum + beta * C), column by column
    for j in tl.static_range(COLS):
        cols = first_n.to(tl.int64) + j + tl.zeros((BLOCK_M,), tl.int64)
        inside = in_m & (cols < N)
        value = alpha * tl.sum(acc[j], axis=1)
        if HAS_C:
            c = tl.load(c_ptr + offs_m * stride_cm + cols * stride_cn, mask=inside)
            value = tl.fma(c, beta, value)
        tl.store(out_ptr + offs_m * stride_om + cols * stride_on, activated(value, ACTIVATION), mask=inside)


def programs(batches: int, M: int, N: int, tile: Tile) -> int:
    """How many programs an output of this size takes."""
    return batches * cdiv(M, tile.BLOCK_M) * cdiv(N, tile.COLS)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> Launch:
    """The launch that computes `p`; the tensors give the addresses only, `p` has their strides."""
    before: tuple[Launch, ...] = ()
    b_strides = p.b_strides
    if b_strides[-2] != 1:
        b, b_strides, move = relay.move(b, p.batch, p.K, p.N, b_strides)
        before = (move,)
    c_strides = p.c_strides or p.out_strides
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta,
        p.batch[::-1], p.a_strides[-3::-1], b_strides[-3::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        *p.a_strides[-2:], *b_strides[-2:], *c_strides[-2:], *p.out_strides[-2:],
    )  # fmt: skip
    options = {"HAS_C": p.c_strides is not None, "ACTIVATION": p.activation, **tile.options}
    return Launch(rows_kernel, programs(p.batches, p.M, p.N, tile), args, options, before)
