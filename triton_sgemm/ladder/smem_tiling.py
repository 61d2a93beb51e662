"""Rung 3: the block stages 32 x 32 tiles of A and B in shared memory (the chapter's kernel).

`tl.dot` is what stages the tiles: its operands go through shared memory, and Triton places the barriers
that the chapter writes by hand. 32 warps for 32 x 32 outputs, so that a thread owns one of them, and
`num_stages=1`, so that there is one tile of A and one of B: 8192 bytes.
Loads per output: 2K/32 from global memory, 2K from shared memory. 8 FLOP/byte.
FMA per shared load, as the chapter counts them: 0.5, against the 4 that keep the FMA units busy.
Twin: reference_cuda/smem_tiling.cu. Chapter: "Shared Memory Tiling".
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant


@triton.jit
def smem_tiling_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: tl.constexpr, BLOCKSIZE: tl.constexpr,
):  # fmt: skip
    # which tile of C: neighbouring programs walk M, as the chapter's grid does
    tiles_m = (M - 1) // BLOCKSIZE + 1
    pid_m = tl.program_id(0) % tiles_m
    pid_n = tl.program_id(0) // tiles_m

    # move each pointer to the top left corner of this tile
    first_m = pid_m * BLOCKSIZE
    first_n = pid_n * BLOCKSIZE
    a_ptr += first_m.to(tl.int64) * stride_am
    b_ptr += first_n.to(tl.int64) * stride_bn
    c_ptr += first_m.to(tl.int64) * stride_cm + first_n.to(tl.int64) * stride_cn
    out_ptr += first_m.to(tl.int64) * stride_om + first_n.to(tl.int64) * stride_on

    # pointers to the first tiles; offsets are int64, since a view's parent may be very large
    offs_m = tl.arange(0, BLOCKSIZE).to(tl.int64)
    offs_n = tl.arange(0, BLOCKSIZE).to(tl.int64)
    offs_k = tl.arange(0, BLOCKSIZE).to(tl.int64)
    in_m = (tl.arange(0, BLOCKSIZE) < M - first_m)[:, None]
    in_n = (tl.arange(0, BLOCKSIZE) < N - first_n)[None, :]
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # (BLOCKSIZE, BLOCKSIZE)
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # (BLOCKSIZE, BLOCKSIZE)

    # walk K: load, multiply, advance
    acc = tl.zeros((BLOCKSIZE, BLOCKSIZE), tl.float32)
    step = tl.cast(BLOCKSIZE, tl.int64)
    for i in range((K - 1) // BLOCKSIZE + 1):
        in_k = tl.arange(0, BLOCKSIZE) < K - i * BLOCKSIZE
        As = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        Bs = tl.load(b_ptrs, mask=in_n & in_k[:, None], other=0.0)
        acc = tl.dot(As, Bs, acc, input_precision="ieee")
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk

    # write alpha * acc + beta * C
    acc = alpha * acc
    if HAS_C:
        c = tl.load(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, mask=in_m & in_n)
        acc = tl.fma(c, beta, acc)
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :] * stride_on, acc, mask=in_m & in_n)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """One program a 32 x 32 tile of C, 32 warps: a thread owns one output."""
    c_strides = p.c_strides or p.out_strides
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta,
        *p.a_strides, *p.b_strides, *c_strides, *p.out_strides,
    )  # fmt: skip
    options = {"HAS_C": p.c_strides is not None, "BLOCKSIZE": 32, "num_warps": 32, "num_stages": 1}
    return Launch(smem_tiling_kernel, cdiv(p.M, 32) * cdiv(p.N, 32), args, options)


VARIANT = Variant("smem_tiling_triton", "triton", "ieee", rung=3, launch=launch, doc=__doc__)
