"""Adds up the parts of a product whose K was cut: out = activation(alpha * (the sum of the parts) + beta * C).

Where M and N are small and K is deep, C has too few tiles to fill a GPU. Then programs share a tile's K, each writes
its part to memory, and this adds them in a fixed order: the same bits from run to run.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem
from ._activation import activated


@triton.jit
def parts_kernel(
    parts_ptr, c_ptr, out_ptr, M, N, alpha, beta, parts, batch, c_batch, out_batch,
    stride_cm, stride_cn, stride_om, stride_on, stride_part,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # which outputs: BLOCK of one row-major C of the batch
    size = tl.cast(M, tl.int64) * N
    blocks = (size - 1) // BLOCK + 1
    z = tl.program_id(0) // blocks
    index = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    parts_ptr += z * size
    for axis in tl.static_range(len(batch)):
        which = z % batch[axis]
        out_ptr += which * out_batch[axis]
        if HAS_C:
            c_ptr += which * c_batch[axis]
        z = z // batch[axis]

    # add the parts, PARTS at a time
    acc = tl.zeros((BLOCK,), tl.float32)
    part = tl.arange(0, PARTS).to(tl.int64)[:, None]
    for first in range(0, parts, PARTS):
        some = tl.load(
            parts_ptr + (first + part) * stride_part + index[None, :],
            mask=(first + part < parts) & inside[None, :],
            other=0.0,
        )
        acc += tl.sum(some, axis=0)

    # write activation(alpha * acc + beta * C)
    row = index // N
    col = index % N
    acc = alpha * acc
    if HAS_C:
        acc = tl.fma(tl.load(c_ptr + row * stride_cm + col * stride_cn, mask=inside), beta, acc)
    tl.store(out_ptr + row * stride_om + col * stride_on, activated(acc, ACTIVATION), mask=inside)


OUTPUTS = 128  # of a program
BLOCK = {"BLOCK": OUTPUTS, "PARTS": 16, "num_warps": 4}


def launch(p: Problem, parts: Tensor, c: Tensor | None, out: Tensor, before: Launch) -> Launch:
    """The launch that adds `parts`, (parts, *batch, M, N) and contiguous, which `before` computes."""
    c_strides = p.c_strides or p.out_strides
    args = (
        parts, out if c is None else c, out,
        p.M, p.N, p.alpha, p.beta, parts.shape[0], p.batch[::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        *c_strides[-2:], *p.out_strides[-2:], parts.stride(0),
    )  # fmt: skip
    programs = p.batches * cdiv(p.M * p.N, OUTPUTS)
    options = {"HAS_C": p.c_strides is not None, "ACTIVATION": p.activation, **BLOCK}
    return Launch(parts_kernel, programs, args, options, (before,))
