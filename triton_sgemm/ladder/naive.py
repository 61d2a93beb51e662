"""Rung 1: one thread computes one output, and the lanes of a warp walk the rows.

At each k a warp reads 32 elements of A, lda apart (32 transactions), and one element of B (a broadcast);
it writes C with stride ldc. Loads per output: 2K from global memory. 0.25 FLOP/byte.
Gluon, because plain Triton chooses the layout by itself: here LAYOUT says which lane owns which output,
and `threads_per_warp=[32, 1]` is all that makes this rung slow.
Twin: reference_cuda/naive.cu. Chapter: the kernel before "global memory coalescing".
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant

LANES_WALK_ROWS = gl.BlockedLayout(
    size_per_thread=[1, 1], threads_per_warp=[32, 1], warps_per_cta=[1, 32], order=[1, 0]
)


@gluon.jit
def outer_product_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: gl.constexpr, BLOCKSIZE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    # which tile of C: neighbouring programs walk M, as the chapter's grid does
    tiles_m = (M - 1) // BLOCKSIZE + 1
    pid_m = gl.program_id(0) % tiles_m
    pid_n = gl.program_id(0) // tiles_m

    # move each pointer to the top left corner of this tile
    first_m = pid_m * BLOCKSIZE
    first_n = pid_n * BLOCKSIZE
    a_ptr += first_m.to(gl.int64) * stride_am
    b_ptr += first_n.to(gl.int64) * stride_bn
    c_ptr += first_m.to(gl.int64) * stride_cm + first_n.to(gl.int64) * stride_cn
    out_ptr += first_m.to(gl.int64) * stride_om + first_n.to(gl.int64) * stride_on

    # pointers to the first column of A and the first row of B
    offs_m = gl.arange(0, BLOCKSIZE, gl.SliceLayout(1, LAYOUT))
    offs_n = gl.arange(0, BLOCKSIZE, gl.SliceLayout(0, LAYOUT))
    in_m = offs_m < M - first_m
    in_n = offs_n < N - first_n
    a_ptrs = a_ptr + offs_m.to(gl.int64) * stride_am  # (BLOCKSIZE,)
    b_ptrs = b_ptr + offs_n.to(gl.int64) * stride_bn  # (BLOCKSIZE,)

    # walk K: load, multiply, advance
    acc = gl.zeros((BLOCKSIZE, BLOCKSIZE), gl.float32, LAYOUT)
    for _k in range(K):
        a = gl.load(a_ptrs, mask=in_m, other=0.0)
        b = gl.load(b_ptrs, mask=in_n, other=0.0)
        acc = gl.fma(gl.expand_dims(a, 1), gl.expand_dims(b, 0), acc)
        a_ptrs += stride_ak
        b_ptrs += stride_bk

    # write alpha * acc + beta * C
    rows = gl.expand_dims(offs_m.to(gl.int64), 1)
    cols = gl.expand_dims(offs_n.to(gl.int64), 0)
    inside = gl.expand_dims(in_m, 1) & gl.expand_dims(in_n, 0)
    acc = alpha * acc
    if HAS_C:
        acc = gl.fma(gl.load(c_ptr + rows * stride_cm + cols * stride_cn, mask=inside), beta, acc)
    gl.store(out_ptr + rows * stride_om + cols * stride_on, acc, mask=inside)


def launch_outer_product(
    p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, layout: gl.BlockedLayout
) -> Launch:
    """One program a 32 x 32 tile of C, 32 warps: a thread owns one output, `layout` says which."""
    c_strides = p.c_strides or p.out_strides
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta,
        *p.a_strides, *p.b_strides, *c_strides, *p.out_strides,
    )  # fmt: skip
    options = {"HAS_C": p.c_strides is not None, "BLOCKSIZE": 32, "LAYOUT": layout, "num_warps": 32}
    return Launch(outer_product_kernel, cdiv(p.M, 32) * cdiv(p.N, 32), args, options)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The outer product with lanes that walk the rows."""
    return launch_outer_product(p, a, b, c, out, LANES_WALK_ROWS)


VARIANT = Variant("naive_gluon", "gluon", "ieee", rung=1, launch=launch, doc=__doc__)
