"""Rung 4: one thread computes a column of eight outputs.

What a thread owns changes, and in Gluon that is a layout: `size_per_thread=[8, 1]`, in a tile of C that grows to
64 x 64. The kernel does not name it: it stages a tile of A and one of B in shared memory (Triton places the two
barriers), then at each k every thread reads what its outputs need of a column of As and of a row of Bs. Rungs 5 to 7
are this kernel with other layouts.
Loads per output: 2K/64 from global memory, K (1 + 1/8) from shared memory. 16 FLOP/byte.
FMA per shared load: 8/9 = 0.89, from 0.5.
Twin: reference_cuda/thread_tile_1d.cu. Chapter: "getting there means changing what a thread owns".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant

COLUMN_OF_8 = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": 8,
    "num_warps": 16,
    # what a thread owns
    "LAYOUT": gl.BlockedLayout(size_per_thread=[8, 1], threads_per_warp=[1, 32], warps_per_cta=[8, 2], order=[1, 0]),
    # one element of each tile per thread, global to shared memory
    "LOAD_A": gl.BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[4, 8], warps_per_cta=[16, 1], order=[1, 0]),
    "LOAD_B": gl.BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[1, 32], warps_per_cta=[8, 2], order=[1, 0]),
    # both tiles row-major in shared memory
    "SHARED_A": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
    "SHARED_B": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
}


@gluon.jit
def thread_tile_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, LAYOUT: gl.constexpr,
    LOAD_A: gl.constexpr, LOAD_B: gl.constexpr, SHARED_A: gl.constexpr, SHARED_B: gl.constexpr,
):  # fmt: skip
    # which tile of C: neighbouring programs walk M, as the chapter's grid does
    tiles_m = (M - 1) // BLOCK_M + 1
    pid_m = gl.program_id(0) % tiles_m
    pid_n = gl.program_id(0) // tiles_m

    # move each pointer to the top left corner of this tile
    first_m = pid_m * BLOCK_M
    first_n = pid_n * BLOCK_N
    a_ptr += first_m.to(gl.int64) * stride_am
    b_ptr += first_n.to(gl.int64) * stride_bn
    c_ptr += first_m.to(gl.int64) * stride_cm + first_n.to(gl.int64) * stride_cn
    out_ptr += first_m.to(gl.int64) * stride_om + first_n.to(gl.int64) * stride_on

    # pointers to the first tiles
    a_m = gl.expand_dims(gl.arange(0, BLOCK_M, gl.SliceLayout(1, LOAD_A)), 1)
    a_k = gl.expand_dims(gl.arange(0, BLOCK_K, gl.SliceLayout(0, LOAD_A)), 0)
    b_k = gl.expand_dims(gl.arange(0, BLOCK_K, gl.SliceLayout(1, LOAD_B)), 1)
    b_n = gl.expand_dims(gl.arange(0, BLOCK_N, gl.SliceLayout(0, LOAD_B)), 0)
    a_ptrs = a_ptr + a_m.to(gl.int64) * stride_am + a_k.to(gl.int64) * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + b_k.to(gl.int64) * stride_bk + b_n.to(gl.int64) * stride_bn  # (BLOCK_K, BLOCK_N)
    As = gl.allocate_shared_memory(gl.float32, [BLOCK_M, BLOCK_K], SHARED_A)
    Bs = gl.allocate_shared_memory(gl.float32, [BLOCK_K, BLOCK_N], SHARED_B)

    # walk K: load, multiply, advance
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
    step = gl.cast(BLOCK_K, gl.int64)
    for i in range((K - 1) // BLOCK_K + 1):
        a_tile = gl.load(a_ptrs, mask=(a_m < M - first_m) & (a_k < K - i * BLOCK_K), other=0.0)
        b_tile = gl.load(b_ptrs, mask=(b_n < N - first_n) & (b_k < K - i * BLOCK_K), other=0.0)
        As.store(a_tile)
        Bs.store(b_tile)
        for k in gl.static_range(BLOCK_K):
            a = As.slice(k, 1, dim=1).load(LAYOUT)  # (BLOCK_M, 1)
            b = Bs.slice(k, 1, dim=0).load(LAYOUT)  # (1, BLOCK_N)
            acc = gl.fma(a, b, acc)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # write alpha * acc + beta * C
    offs_m = gl.expand_dims(gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT)), 1)
    offs_n = gl.expand_dims(gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT)), 0)
    inside = (offs_m < M - first_m) & (offs_n < N - first_n)
    rows = offs_m.to(gl.int64)
    cols = offs_n.to(gl.int64)
    acc = alpha * acc
    if HAS_C:
        acc = gl.fma(gl.load(c_ptr + rows * stride_cm + cols * stride_cn, mask=inside), beta, acc)
    gl.store(out_ptr + rows * stride_om + cols * stride_on, acc, mask=inside)


def launch_thread_tile(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: dict[str, Any]) -> Launch:
    """One program a BLOCK_M x BLOCK_N tile of C; `tile` has its sizes and layouts."""
    c_strides = p.c_strides or p.out_strides
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta,
        *p.a_strides, *p.b_strides, *c_strides, *p.out_strides,
    )  # fmt: skip
    programs = cdiv(p.M, tile["BLOCK_M"]) * cdiv(p.N, tile["BLOCK_N"])
    return Launch(thread_tile_kernel, programs, args, {"HAS_C": p.c_strides is not None, **tile})


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The tile whose threads own a column of eight outputs."""
    return launch_thread_tile(p, a, b, c, out, COLUMN_OF_8)


VARIANT = Variant("thread_tile_1d_gluon", "gluon", "ieee", rung=4, launch=launch, doc=__doc__)
