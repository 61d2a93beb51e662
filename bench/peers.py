"""What Triton itself offers between TF32 and float32: `tl.dot` that splits its operands while it multiplies.

"tf32x3" takes three TF32 products for each, "bf16x6" six bfloat16 ones. This is the loop of a tutorial, one tile a
program: what a user of Triton gets by naming the precision, and with which fp32 from tensor cores is compared.
Triton's interpreter multiplies in float32 whatever the precision: it checks the loop and its bounds, not the splitting.
"""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from triton_sgemm.device import ARCHS
from triton_sgemm.launch import Launch, cdiv
from triton_sgemm.problem import Problem
from triton_sgemm.variants import Variant

# of the tiles tried on an H200 the fastest: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages
TILES = {"tf32x3": (64, 64, 32, 4, 4), "bf16x6": (128, 128, 32, 8, 3)}
GROUP_M = 8
# its tile is compiled to no code at all for sm_100 by Triton 3.6
NOT_FOR = {"bf16x6": (100,)}


@triton.jit
def split_dot_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, M, N, K, alpha, beta,
    HAS_C: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One BLOCK_M x BLOCK_N tile of alpha * A @ B + beta * C, all row by row without gaps."""
    # which tile of C, in strips of GROUP_M tile rows
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    strip = tl.program_id(0) // (GROUP_M * tiles_n)
    rows = tl.minimum(tiles_m - strip * GROUP_M, GROUP_M)
    pid_m = strip * GROUP_M + tl.program_id(0) % (GROUP_M * tiles_n) % rows
    pid_n = tl.program_id(0) % (GROUP_M * tiles_n) // rows

    # pointers to the first step of K
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64) * K + offs_k[None, :]  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + offs_k[:, None].to(tl.int64) * N + offs_n  # (BLOCK_K, BLOCK_N)

    # walk K: load, multiply, advance
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.cast(BLOCK_K, tl.int64)
    for i in range((K - 1) // BLOCK_K + 1):
        in_k = offs_k < K - i * BLOCK_K
        a = tl.load(a_ptrs, mask=(offs_m < M) & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=(offs_n < N) & in_k[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += step
        b_ptrs += step * N

    # write alpha * acc + beta * C
    at = offs_m.to(tl.int64) * N + offs_n
    inside = (offs_m < M) & (offs_n < N)
    acc = alpha * acc
    if HAS_C:
        acc += beta * tl.load(c_ptr + at, mask=inside)
    tl.store(out_ptr + at, acc, mask=inside)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, input_precision: str) -> Launch:
    """The launch that computes `p`, for which all tensors lie row by row without gaps."""
    BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages = TILES[input_precision]
    if triton.knobs.runtime.interpret:  # it does not know every name
        input_precision = "ieee"
    args = (a, b, out if c is None else c, out, p.M, p.N, p.K, p.alpha, p.beta)
    options = {
        "HAS_C": c is not None,
        "PRECISION": input_precision,
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP_M": GROUP_M,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }
    return Launch(split_dot_kernel, cdiv(p.M, BLOCK_M) * cdiv(p.N, BLOCK_N), args, options)


VARIANTS = tuple(
    Variant(
        f"dot_{name}",
        "triton",
        "fp32",
        launch=partial(launch, input_precision=name),
        doc=__doc__,
        row_major=True,
        archs=tuple(arch for arch in ARCHS if arch not in NOT_FOR.get(name, ())),
    )
    for name in TILES
)
