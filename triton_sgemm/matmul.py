"""`torch.matmul` and BLAS's SGEMM."""

from __future__ import annotations

from torch import Tensor

from .call import call
from .checks import check_floating, check_numbers
from .prepare import Prepared


def matmul(a: Tensor, b: Tensor | Prepared, *, out: Tensor | None = None, precision: str | None = None) -> Tensor:
    """A @ B in float32, by `torch.matmul`'s rules.

    Shapes    a (..., M, K) or (K,), b (..., K, N) or (K,); batch dimensions broadcast, without copies.
              Any strides, any size from 0 up.
              b may be what `prepare(b)` returns: then only A is split in this call, unless it is differentiated,
              compiled or transformed.
    Computes  float32 CUDA operands in one of three precisions (docs/accuracy.md has the bounds):
              "ieee": every step one float32 fused multiply-add. K in order; where there are few outputs for a deep K,
              and where N or M is 16 or less, in parts that are added in a fixed order.
              "fp32": on random data errors no larger than with K in order (docs/accuracy.md has the exceptions), and a
              proven bound on any finite data, from tensor cores where that is faster; what they could not serve well,
              Inf and NaN among it, is done in strict float32, so that an element's bits may depend on others of its
              tile.
              "tf32": as accurate as cuBLAS with TF32, from tensor cores where that is faster.
              None: what `torch.backends.cuda.matmul.fp32_precision` says, "fp32" while it is not set; under
              torch.compile, what it says when the compiled code runs.
              The same call gives the same bits.
              Tensor cores take as many bytes more as A and B, half as many for "tf32"; the other ways may move an
              operand first, into as much memory as it takes itself. A K in parts takes the result's bytes for each.
              CPU tensors, other dtypes, sparse and nested tensors are torch.matmul's, in their own dtype.
    Gradients of any order, in both modes, in the same precision; torch.compile, torch.func and vmap take it as one
              operator. Autocast leaves it in float32: shorter floating operands are converted to it.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, its strides kept.
    Raises    TypeError for what is no tensor and for dtypes that differ, ValueError for shapes, devices,
              an unknown precision, an `out` that overlaps an operand or itself. Those of shapes, dtypes,
              devices and overlap are RuntimeErrors too, as torch's are. RuntimeError for an `out` where a gradient is
              required; CaptureError, a RuntimeError, while a CUDA graph is captured of what never ran before.
    Source    torch.matmul.
    """
    return call("matmul", a, b, out=out, precision=precision)


def sgemm(
    alpha: float,
    a: Tensor,
    b: Tensor | Prepared,
    beta: float = 0.0,
    c: Tensor | None = None,
    *,
    out: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """C = alpha * A @ B + beta * C in float32.

    Shapes    a and b as in `matmul`; c broadcastable to the result. Any strides.
    Computes  alpha * (A @ B) + beta * C, with the precisions of `matmul`. beta == 0: c is not read;
              alpha == 0: a and b are not read. alpha and beta are numbers, rounded to float32. On the CPU and in other
              dtypes it is alpha * torch.matmul(a, b) + beta * c, each step in their dtype.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, which may be `c` itself
              (in place).
    Raises    as `matmul`; DtypeError for integers; ValueError where beta is not 0 and c is missing.
    Source    BLAS SGEMM; torch.addmm and torch.baddbmm.
    """
    check_numbers("sgemm", alpha=alpha, beta=beta)
    if beta != 0 and c is None:
        raise ValueError(f"sgemm: beta is {beta} but c is missing; pass c, or beta=0")
    check_floating("sgemm", "a", a)
    return call("sgemm", a, b, alpha=alpha, beta=beta, c=c, out=out, precision=precision)
