"""The operator `triton_sgemm::gemm`: alpha * A @ B + beta * C with all that PyTorch asks of one of its own.

    gemm(Tensor a, Tensor b, Tensor? c, float alpha, float beta, str? precision) -> Tensor

Shapes    a (..., M, K), b (..., K, N), batch dimensions broadcast; c broadcastable to the result (..., M, N).
Returns   a fresh, contiguous tensor: nothing is written in place, so that there is nothing to functionalize.
Computes  float32 on CUDA by `product`, in `precision` (None: what torch's switch says when it runs); any other device
          and dtype by torch.matmul, which knows no precision. float64 on the CPU is what gradcheck checks.
Gradient  products by the same operator in the same precision, of views: of A and B transposed nothing is copied, a
          gradient lies in memory as its operand does, and only those that are needed are computed. Dimensions that an
          operand was broadcast over are summed by the product itself: they are rows or columns of a deeper K. Of any
          order, in both modes, under torch.func.
vmap      one more batch dimension.
autocast  float16 and bfloat16 operands become float32, as torch does for the functions it keeps in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from .checks import LABELS, expand_c, product_shape
from .direct import differentiated, on_one_gpu, plain
from .errors import ShapeError
from .product import product

NAME = "triton_sgemm::gemm"


def gemm(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str | None) -> Tensor:
    """The operator; where nothing watches, the kernels at once, which saves the dispatcher's tens of microseconds."""
    if plain(a, b, c) and on_one_gpu(a, b, c):
        if differentiated(a, b, c):
            return with_gradients("gemm", a, b, c, alpha, beta, precision)
        return product("gemm", a, b, alpha=alpha, beta=beta, c=c, precision=precision)
    return torch.ops.triton_sgemm.gemm(a, b, c, alpha, beta, precision)


def with_gradients(
    name: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    alpha: float,
    beta: float,
    precision: str | None,
    labels: tuple[str, str, str] = LABELS,
) -> Tensor:
    """The kernels at once, for the public function `name`, where tensors are plain and autograd records the call."""
    apply = super(torch.autograd.Function, _Direct).apply  # type: ignore[misc]  # torch.func has no part in it
    return apply(a, b, c, alpha, beta, precision, name, labels)


def shaped(result: Tensor, shape: Sequence[int]) -> Tensor:
    """A fresh result in another shape, and no view: a view made without gradients refuses to be written with them."""
    return result if result.shape == tuple(shape) else torch.ops.aten._unsafe_view(result, shape)


def by_torch(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    """The same by torch.matmul, each step in the tensors' dtype."""
    if alpha == 0:
        result = a.new_zeros(product_shape("gemm", a, b)[0])
    else:
        result = torch.matmul(a, b)
        result = result if alpha == 1 else alpha * result
    return result if c is None or beta == 0 else torch.add(result, c, alpha=beta)


torch.library.define(NAME, "(Tensor a, Tensor b, Tensor? c, float alpha, float beta, str? precision) -> Tensor")


def _elsewhere(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str | None) -> Tensor:
    _shape(a, b, c)
    return by_torch(a, b, c, alpha, beta).contiguous()


def _on_cuda(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str | None) -> Tensor:
    if a.dtype != torch.float32:
        return _elsewhere(a, b, c, alpha, beta, precision)
    _check_matrices(a, b)
    return product("gemm", a, b, alpha=alpha, beta=beta, c=c, precision=precision)


def _fake(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str | None) -> Tensor:
    return a.new_empty(_shape(a, b, c))


torch.library.impl(NAME, "CompositeExplicitAutograd", _elsewhere)
torch.library.impl(NAME, "CUDA", _on_cuda)
torch.library.register_fake(NAME, _fake)
torch.library.register_autocast(NAME, "cuda", torch.float32)
torch.library.register_autocast(NAME, "cpu", torch.float32)


def _check_matrices(a: Tensor, b: Tensor) -> None:
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeError(
            f"gemm: a is {tuple(a.shape)} but b is {tuple(b.shape)}; need matrices: t[None, :], t[:, None]"
        )


def _shape(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[int, ...]:
    _check_matrices(a, b)
    shape = product_shape("gemm", a, b)[0]
    if c is not None:
        expand_c("gemm", c, shape)
    return shape


# ---- vmap


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, c: Tensor | None, *rest: Any
) -> tuple[Tensor, int]:
    """The operator with what is mapped as one more batch dimension, the first."""
    a_dim, b_dim, c_dim = in_dims[:3]
    rank = max(a.ndim - (a_dim is not None), b.ndim - (b_dim is not None))
    a, b, c = _batched(a, a_dim, rank), _batched(b, b_dim, rank), None if c is None else _batched(c, c_dim, rank)
    if a_dim is None and b_dim is None:  # only c is mapped
        a = a.expand(info.batch_size, *(1,) * (rank - a.ndim), *a.shape)
    return torch.ops.triton_sgemm.gemm(a, b, c, *rest), 0


torch.library.register_vmap(NAME, _vmap)


def _batched(t: Tensor, dim: int | None, rank: int) -> Tensor:
    """`t` with what is mapped first, before `rank` dimensions."""
    if dim is None:
        return t
    t = t.movedim(dim, 0)
    return t[(slice(None), *(None,) * (rank + 1 - t.ndim))]


# ---- derivatives


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, c, ctx.alpha, ctx.beta, ctx.precision = inputs
    ctx.shapes = a.shape, b.shape, None if c is None else c.shape
    ctx.by_columns = _by_columns(a), _by_columns(b)
    a_needs, b_needs = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if b_needs else None, b if a_needs else None)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    a, b = ctx.saved_tensors
    a_needs, b_needs, c_needs = ctx.needs_input_grad[:3]
    of_a = of_b = of_c = None
    if a_needs:
        of_a = _product_like(gradient, b.mH, ctx.shapes[0], ctx.by_columns[0], ctx.alpha, ctx.precision)
    if b_needs:
        of_b = _product_like(a.mH, gradient, ctx.shapes[1], ctx.by_columns[1], ctx.alpha, ctx.precision)
    if c_needs:
        of_c = gradient.sum_to_size(ctx.shapes[2])
        of_c = of_c if ctx.beta == 1 else ctx.beta * of_c
    return of_a, of_b, of_c, None, None, None


def _by_columns(t: Tensor) -> bool:
    """Whether a matrix of `t` lies column by column in memory."""
    return t.stride(-2) == 1 and t.stride(-1) != 1


def _product_like(
    x: Tensor, y: Tensor, shape: Sequence[int], by_columns: bool, alpha: float, precision: str | None
) -> Tensor:
    """alpha * x @ y, summed over the batch dimensions that `shape` lacks or has once; by columns where asked."""
    if by_columns:
        turned = (*shape[:-2], shape[-1], shape[-2])
        return _product_like(y.mT, x.mT, turned, False, alpha, precision).mT
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    own = (*(1,) * (len(batch) + 2 - len(shape)), *shape[:-2])
    summed = [i for i, size in enumerate(batch) if own[i] != size]
    if summed:
        x = _deepened(x.expand(*batch, *x.shape[-2:]), summed, -1)
        y = _deepened(y.expand(*batch, *y.shape[-2:]), summed, -2)
    return shaped(gemm(x, y, None, alpha, 0.0, precision), shape)


def _deepened(t: Tensor, summed: list[int], k: int) -> Tensor:
    """`t` with its batch dimensions `summed` made part of its dimension `k`, a view where the strides allow."""
    first = t.ndim + k - len(summed)
    last = t.ndim + k
    t = t.movedim(summed, tuple(range(first, last)))
    return t.reshape(*t.shape[:first], math.prod(t.shape[first : last + 1]), *t.shape[last + 1 :])


class _Direct(torch.autograd.Function):
    """The derivative where tensors are plain: no operator is called.

    Its forward takes `ctx`: a `setup_context` of its own would cost each call tens of microseconds.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:  # type: ignore[override]
        a, b, c, alpha, beta, precision, name, labels = args
        result = product(name, a, b, alpha=alpha, beta=beta, c=c, precision=precision, labels=labels)
        _setup_context(ctx, args[:6], result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_backward(ctx, gradient), None, None


class _Gemm(torch.autograd.Function):
    """The operator's derivative in both modes, at one level of torch.func's: those around it call the operator again.

    torch.library.register_autograd has no forward mode, and no torch.func but for eager functions.
    """

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str | None, keys: Any, grad: bool
    ) -> Tensor:
        below = keys & torch._C._after_autograd_keyset
        # a function's forward has both modes off, and levels around this one would miss their derivatives
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(grad),
            forward_ad._set_fwd_grad_enabled(True),
        ):
            return torch.ops.triton_sgemm.gemm.default.redispatch(below, a, b, c, alpha, beta, precision)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _setup_context(ctx, inputs[:6], output)
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_backward(ctx, gradient), None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, dc: Tensor | None, *_: None) -> Tensor | None:
        """alpha * (dA @ B + A @ dB) + beta * dC."""
        a, b = ctx.saved_tensors
        shape = product_shape("gemm", a, b)[0]
        with forward_ad._set_fwd_grad_enabled(True):  # for levels around this one; `gemm` does it by itself
            tangent = None if dc is None else ctx.beta * dc.expand(shape)
        for x, y in ((da, b), (a, db)):
            if x is not None and y is not None:
                tangent = gemm(x, y, tangent, ctx.alpha, 0.0 if tangent is None else 1.0, ctx.precision)
        return tangent


def _differentiable(keys: Any, *args: Any) -> Tensor:
    """The kernel of the dispatcher's key Autograd; it applies the function as it is, torch.func or not."""
    apply = super(torch.autograd.Function, _Gemm).apply  # type: ignore[misc]
    with enable_single_level_autograd_function():
        return apply(*args, keys, torch.is_grad_enabled())


_library = torch.library.Library("triton_sgemm", "FRAGMENT")  # once it is collected, nothing is registered
_library.impl("gemm", _differentiable, "Autograd", with_keyset=True)
