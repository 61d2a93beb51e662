"""`torch.matmul`'s rules: ranks, broadcasting, `out=`, and what is handed to torch itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from .algorithms import dot
from .device import gpu
from .plan import plan
from .precision import check_precision, no_less_accurate
from .problem import check_operands, check_out, expand_c, problem, product_shape


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, precision: str | None = None) -> Tensor:
    """A @ B in float32, by `torch.matmul`'s rules.

    Shapes    a (..., M, K) or (K,), b (..., K, N) or (K,); batch dimensions broadcast, without copies.
              Any strides, any size from 0 up.
    Computes  float32 CUDA operands: every step one float32 fused multiply-add, K in order, for each
              `precision` so far: None (what `torch.backends.cuda.matmul.fp32_precision` says),
              "ieee", "fp32" or "tf32". Autocast does not change that.
              CPU tensors, other dtypes, tensor subclasses and operands that require a gradient are
              given to `torch.matmul`.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, its strides kept.
    Raises    TypeError for what is no tensor and for dtypes that differ, ValueError for shapes, devices,
              an unknown precision, an `out` that overlaps an operand or itself. Those of shapes, dtypes,
              devices and overlap are RuntimeErrors too, as torch's are.
    Source    torch.matmul.
    """
    check_precision("matmul", precision)
    check_operands("matmul", a=a, b=b, out=out)
    if _is_torchs(a, b, out):
        with no_less_accurate(precision, a):
            return torch.matmul(a, b, out=out)
    return product("matmul", a, b, out=out)


def sgemm(
    alpha: float,
    a: Tensor,
    b: Tensor,
    beta: float = 0.0,
    c: Tensor | None = None,
    *,
    out: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """C = alpha * A @ B + beta * C in float32.

    Shapes    a and b as in `matmul`; c broadcastable to the result. Any strides.
    Computes  alpha * (A @ B) + beta * C, with the precisions of `matmul`. beta == 0: c is not read;
              alpha == 0: a and b are not read. alpha and beta are rounded to float32.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, which may be `c` itself
              (in place).
    Raises    as `matmul`; ValueError where beta is not 0 and c is missing.
    Source    BLAS SGEMM; torch.addmm and torch.baddbmm.
    """
    check_precision("sgemm", precision)
    if beta != 0 and c is None:
        raise ValueError(f"sgemm: beta is {beta} but c is missing; pass c, or beta=0")
    c = None if beta == 0 else c
    check_operands("sgemm", a=a, b=b, c=c, out=out)
    if _is_torchs(a, b, c, out):
        if out is not None:
            check_out("sgemm", out, product_shape("sgemm", a, b)[0], a, b, c)
        with no_less_accurate(precision, a):
            result = alpha * torch.matmul(a, b) if alpha != 0 else a.new_zeros(product_shape("sgemm", a, b)[0])
            result = result if c is None else result + beta * c
            return result if out is None else out.copy_(result)
    return product("sgemm", a, b, alpha=alpha, beta=beta, c=c, out=out)


def product(
    name: str,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`sgemm` by this package's kernels, whatever the device: CPU tensors need Triton's interpreter."""
    a, b = a.resolve_neg(), b.resolve_neg()
    shape, a_shape, b_shape = product_shape(name, a, b)
    if c is not None:
        c = expand_c(name, c.resolve_neg(), shape)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=a.device)
    else:
        check_out(name, out, shape, a, b, c)

    A = a if a.ndim > 1 else a[None, :]
    B = b if b.ndim > 1 else b[:, None]
    if len(a_shape) > 2:
        A, B = A.expand(a_shape), B.expand(b_shape)
    C = None if c is None else _as_matrices(c, a.ndim, b.ndim)
    result = _as_matrices(out, a.ndim, b.ndim)

    p = problem(A, B, C, result, alpha, beta)
    chosen = plan(p, gpu(a.device.index) if a.is_cuda else None)
    dot.launch(p, A, B, C, result, chosen.tile).run(a.device)
    return out


def _as_matrices(t: Tensor, a_ndim: int, b_ndim: int) -> Tensor:
    """A view of a result with the rows and columns that 1-D operands left out."""
    if b_ndim == 1:
        t = t[..., None]
    if a_ndim == 1:
        t = t[..., None, :]
    return t


def _is_torchs(*tensors: Tensor | None) -> bool:
    """Whether torch's own matmul serves these: all but plain float32 CUDA tensors that need no autograd."""
    given = [t for t in tensors if t is not None]
    return (
        has_torch_function(given)
        or torch.compiler.is_compiling()
        or any(
            t.dtype != torch.float32
            or not t.is_cuda
            or t.layout != torch.strided
            or torch._C._functorch.is_functorch_wrapped_tensor(t)
            or (t.requires_grad and torch.is_grad_enabled())
            for t in given
        )
    )
