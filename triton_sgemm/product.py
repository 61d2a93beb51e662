"""From tensors to a problem, a plan and its execution: the kernels, without what PyTorch asks of an operator."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .algorithms.split import Planes
from .checks import LABELS, as_matrices, check_out, check_out_shape, expand_c, product_shape
from .device import gpu
from .execute import Execution
from .plan import plan
from .precision import resolved
from .problem import problem

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # a tensor's shape and strides


def product(
    name: str,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    out: Tensor | None = None,
    activation: str | None = None,
    precision: str | None = "ieee",
    planes: Planes | None = None,
    labels: tuple[str, str, str] = LABELS,
) -> Tensor:
    """activation(alpha * A @ B + beta * C) by this package's kernels, whatever the device.

    CPU tensors need Triton's interpreter.

    Shapes    by `torch.matmul`'s rules; c broadcastable to the result.
    Returns   float32, contiguous; or `out`, its strides kept.
    Raises    ShapeError and OverlapError, which call the operands `labels`.
    `planes` are b's, where it was prepared. Nothing is recorded for autograd.
    """
    if out is not None and out.is_neg():
        check_out_shape(name, out, product_shape(name, a, b, labels)[0])
        result = product(
            name,
            a,
            b,
            alpha=alpha,
            beta=beta,
            c=c,
            activation=activation,
            precision=precision,
            planes=planes,
            labels=labels,
        )
        return out.copy_(result)
    a, b = a.resolve_neg(), b.resolve_neg()
    if c is not None:
        c = c.resolve_neg()
    shape, execution = _recipe(
        name,
        labels,
        (a.shape, a.stride()),
        (b.shape, b.stride()),
        None if c is None else (c.shape, c.stride()),
        None if out is None else (out.shape, out.stride()),
        alpha != 0,
        beta != 0,
        activation,
        a.device.index if a.is_cuda else None,
        resolved(precision),
        planes is not None,
    )
    if out is None:
        result = a.new_empty(shape)
    else:
        check_out(name, out, shape, a, b, None if c is None else c.expand(shape), labels)
        result = out
    execution.run(a, b, c, result, alpha, beta, planes)
    if out is not None and not out.is_inference():
        increment_version(out)  # autograd must notice that a tensor it saved was overwritten
    return result


@lru_cache(4096)
def _recipe(
    name: str,
    labels: tuple[str, str, str],
    a: Layout,
    b: Layout,
    c: Layout | None,
    out: Layout | None,
    alpha: bool,
    beta: bool,
    activation: str | None,
    index: int | None,
    precision: str,
    prepared: bool,
) -> tuple[tuple[int, ...], Execution]:
    """The result's shape, and how it is computed: they follow from how the tensors lie, and are found once."""
    A, B = _like(a), _like(b)
    shape, a_shape, b_shape = product_shape(name, A, B, labels)
    C = None if c is None else as_matrices(expand_c(name, _like(c), shape, labels[2]), A, B)
    if out is not None:
        check_out_shape(name, _like(out), shape)
    R = as_matrices(torch.empty(shape, device="meta") if out is None else _like(out), A, B)
    A = A if A.ndim > 1 else A[None, :]
    B = B if B.ndim > 1 else B[:, None]
    p = problem(A.expand(a_shape), B.expand(b_shape), C, R, float(alpha), float(beta), activation)
    return shape, Execution(plan(p, None if index is None else gpu(index), precision, prepared), p)


def _like(t: Layout) -> Tensor:
    return torch.empty_strided(*t, device="meta")
