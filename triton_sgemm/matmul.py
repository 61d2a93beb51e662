"""`torch.matmul`'s rules: ranks, broadcasting, `out=`, and what is handed to torch itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from .algorithms.split import Planes
from .device import gpu
from .errors import DtypeError
from .execute import execute
from .plan import plan
from .precision import check_precision, no_less_accurate, resolved
from .prepare import Prepared
from .problem import check_operands, check_out, check_out_shape, expand_c, problem, product_shape


def matmul(a: Tensor, b: Tensor | Prepared, *, out: Tensor | None = None, precision: str | None = None) -> Tensor:
    """A @ B in float32, by `torch.matmul`'s rules.

    Shapes    a (..., M, K) or (K,), b (..., K, N) or (K,); batch dimensions broadcast, without copies.
              Any strides, any size from 0 up.
              b may be what `prepare(b)` returns: then only A is split in this call.
    Computes  float32 CUDA operands in one of three precisions (docs/accuracy.md has the bounds):
              "ieee": every step one float32 fused multiply-add. K in order; where there are few outputs for a deep K,
              and where N or M is 16 or less, in parts that are added in a fixed order.
              "fp32": errors no larger than those on random data, and a proven bound on any finite data, from tensor
              cores where that is faster; what they could not serve well, Inf and NaN among it, is done as "ieee", so
              that an element's bits may depend on others of its tile.
              "tf32": as accurate as cuBLAS with TF32, from tensor cores where that is faster.
              None: what `torch.backends.cuda.matmul.fp32_precision` says, "fp32" while it is not set.
              Autocast does not change that. The same call gives the same bits.
              Tensor cores take as many bytes more as A and B, half as many for "tf32"; the other ways may move an
              operand first, into as much memory as it takes itself.
              CPU tensors, other dtypes, tensor subclasses, operands that require a gradient, and calls
              under torch.compile, vmap or a tracer are given to `torch.matmul`.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, its strides kept.
    Raises    TypeError for what is no tensor and for dtypes that differ, ValueError for shapes, devices,
              an unknown precision, an `out` that overlaps an operand or itself. Those of shapes, dtypes,
              devices and overlap are RuntimeErrors too, as torch's are.
    Source    torch.matmul.
    """
    check_precision("matmul", precision)
    b, planes, precision = _unpacked("matmul", b, precision)
    check_operands("matmul", a=a, b=b, out=out)
    if _is_torchs(a, b, out):
        with no_less_accurate(precision, a):
            return torch.matmul(a, b, out=out)
    return product("matmul", a, b, out=out, precision=resolved(precision), planes=planes)


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
              alpha == 0: a and b are not read. alpha and beta are numbers, rounded to float32. What
              `matmul` gives to torch is alpha * torch.matmul(a, b) + beta * c, each step in its dtype.
    Returns   float32 (..., M, N), contiguous, on the operands' device; or `out`, which may be `c` itself
              (in place).
    Raises    as `matmul`; ValueError where beta is not 0 and c is missing.
    Source    BLAS SGEMM; torch.addmm and torch.baddbmm.
    """
    check_precision("sgemm", precision)
    for label, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Tensor):
            raise TypeError(f"sgemm: {label} is a torch.Tensor; need a number, for instance {label}.item()")
    if beta != 0 and c is None:
        raise ValueError(f"sgemm: beta is {beta} but c is missing; pass c, or beta=0")
    c = None if beta == 0 else c
    b, planes, precision = _unpacked("sgemm", b, precision)
    check_operands("sgemm", a=a, b=b, c=c, out=out)
    if _is_torchs(a, b, c, out):
        return _sgemm_by_torch(alpha, a, b, beta, c, out, precision)
    return product("sgemm", a, b, alpha=alpha, beta=beta, c=c, out=out, precision=resolved(precision), planes=planes)


def _unpacked(name: str, b: Tensor | Prepared, precision: str | None) -> tuple[Tensor, Planes | None, str | None]:
    """b as a tensor, its planes where it was prepared, and the precision that holds then."""
    if not isinstance(b, Prepared):
        return b, None, precision
    if precision not in (None, b.precision):
        raise ValueError(
            f"{name}: precision is {precision!r} but b was prepared for {b.precision!r}; use prepare(b, {precision!r})"
        )
    return b.current(name), b.planes, b.precision


def _sgemm_by_torch(
    alpha: float, a: Tensor, b: Tensor, beta: float, c: Tensor | None, out: Tensor | None, precision: str | None
) -> Tensor:
    shape = product_shape("sgemm", a, b)[0]
    if not (a.is_floating_point() or a.is_complex()):
        raise DtypeError(f"sgemm: a and b are {a.dtype}; need a floating dtype, for instance a.float()")
    if out is not None:
        check_out_shape("sgemm", out, shape)
    with no_less_accurate(precision, a):
        result = alpha * torch.matmul(a, b) if alpha != 0 else a.new_zeros(shape)
        if c is not None:
            result = result + beta * expand_c("sgemm", c, shape)
    return result if out is None else out.copy_(result)


def product(
    name: str,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    out: Tensor | None = None,
    precision: str = "ieee",
    planes: Planes | None = None,
) -> Tensor:
    """`sgemm` by this package's kernels, whatever the device: CPU tensors need Triton's interpreter.

    `planes` are b's, where it was prepared.
    """
    if out is not None and out.is_neg():
        return out.copy_(product(name, a, b, alpha=alpha, beta=beta, c=c, precision=precision, planes=planes))
    a, b = a.resolve_neg(), b.resolve_neg()
    shape, a_shape, b_shape = product_shape(name, a, b)
    if c is not None:
        c = expand_c(name, c.resolve_neg(), shape)
    if out is None:
        result = torch.empty(shape, dtype=torch.float32, device=a.device)
    else:
        check_out(name, out, shape, a, b, c)
        result = out

    A = a if a.ndim > 1 else a[None, :]
    B = b if b.ndim > 1 else b[:, None]
    if len(a_shape) > 2:
        A, B = A.expand(a_shape), B.expand(b_shape)
    C = None if c is None else _as_matrices(c, a.ndim, b.ndim)
    R = _as_matrices(result, a.ndim, b.ndim)

    p = problem(A, B, C, R, float(alpha), float(beta))
    chosen = plan(p, gpu(a.device.index) if a.is_cuda else None, precision, planes is not None)
    execute(chosen, p, A, B, C, R, planes)
    if out is not None and not out.is_inference():
        increment_version(out)  # autograd must notice that a tensor it saved was overwritten
    return result


def _as_matrices(t: Tensor, a_ndim: int, b_ndim: int) -> Tensor:
    """A view of a result with the rows and columns that 1-D operands left out."""
    if b_ndim == 1:
        t = t[..., None]
    if a_ndim == 1:
        t = t[..., None, :]
    return t


def _is_torchs(*tensors: Tensor | None) -> bool:
    """Whether torch's own matmul serves these: all but plain float32 CUDA tensors, not differentiated, not traced."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or any(
            type(t) not in (Tensor, Parameter)
            or t.dtype != torch.float32
            or not t.is_cuda
            or t.layout != torch.strided
            or t.is_nested
            or torch._C._functorch.is_functorch_wrapped_tensor(t)
            or (t.requires_grad and torch.is_grad_enabled())
            for t in tensors
            if t is not None
        )
    )
