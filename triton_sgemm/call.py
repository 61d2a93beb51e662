"""What every public function does with its operands: check them, then the kernels at once, or the operator."""

from __future__ import annotations

import torch
from torch import Tensor

from .algorithms._activation import ACTIVATIONS
from .algorithms.split import Planes
from .checks import (
    LABELS,
    as_matrices,
    check_floating,
    check_operands,
    check_out,
    check_out_shape,
    expand_c,
    product_shape,
)
from .direct import differentiated, on_one_gpu, plain
from .op import by_torch, gemm, shaped, with_gradients
from .precision import check_precision, resolved
from .prepare import Prepared
from .product import product


def call(
    name: str,
    a: Tensor,
    b: Tensor | Prepared,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    out: Tensor | None = None,
    activation: str | None = None,
    precision: str | None = None,
    labels: tuple[str, str, str] = LABELS,
) -> Tensor:
    """activation(alpha * A @ B + beta * C) by `torch.matmul`'s rules, for the public function `name`.

    Float32 CUDA tensors of which nobody takes notice go straight to the kernels, all others to the operator. The
    activation is part of the kernel where nothing is recorded for autograd; else it is torch's, on the result.
    """
    check_precision(name, precision)
    check_activation(name, activation)
    b, planes, precision = _unpacked(name, b, precision, labels)
    unwatched = plain(a, b, c, out)
    if unwatched and on_one_gpu(a, b, c, out):
        if not differentiated(a, b, c, out):
            return product(
                name,
                a,
                b,
                alpha=alpha,
                beta=beta,
                c=c,
                out=out,
                activation=activation,
                precision=precision,
                planes=planes,
                labels=labels,
            )
        if out is None and a.ndim > 1 and b.ndim > 1:
            result = with_gradients(name, a, b, c, float(alpha), float(beta), resolved(precision), labels)
            return _activated(result, activation)

    a, b, c = _under_autocast(a), _under_autocast(b), None if c is None else _under_autocast(c)
    check_operands(name, **{labels[0]: a, labels[1]: b, labels[2]: c, "out": out})
    shape = product_shape(name, a, b, labels)[0]
    if c is not None or activation is not None:
        check_floating(name, labels[0], a)
    if c is not None:
        c = expand_c(name, c, shape, labels[2])
    if out is not None:
        if differentiated(a, b, c, out):
            raise RuntimeError(
                f"{name}: out= is not differentiable, but a tensor of this call requires a gradient; leave out= away, "
                "detach that tensor, or call under torch.no_grad()"
            )
        if unwatched:
            check_out(name, out, shape, a, b, c, labels)
        else:
            check_out_shape(name, out, shape)
    if _dense(a, b, c):
        if not torch.compiler.is_compiling():  # a compiled graph asks torch's switch each time it runs
            precision = resolved(precision)
        A, B = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
        C = None if c is None else as_matrices(c, a, b)
        result = shaped(gemm(A, B, C, float(alpha), float(beta), precision), shape)
    elif precision is None:
        result = by_torch(a, b, c, alpha, beta)
    else:
        raise ValueError(
            f"{name}: torch multiplies sparse and nested tensors and takes no precision; leave precision= away, "
            "or pass dense tensors"
        )
    result = _activated(result, activation)
    return result if out is None else out.copy_(result)


def _unpacked(
    name: str, b: Tensor | Prepared, precision: str | None, labels: tuple[str, str, str]
) -> tuple[Tensor, Planes | None, str | None]:
    """b as a tensor, its planes where it was prepared, and the precision that holds then."""
    if not isinstance(b, Prepared):
        return b, None, precision
    if precision not in (None, b.precision):
        raise ValueError(
            f"{name}: precision is {precision!r} but {labels[1]} was prepared for {b.precision!r}; "
            f"use prepare(b, {precision!r})"
        )
    return b.current(name), b.planes, b.precision


def check_activation(name: str, activation: str | None) -> None:
    """Raises ValueError unless `activation` is None or one of ACTIVATIONS."""
    if activation is not None and activation not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{name}: activation is {activation!r}; use None or one of {names}")


def _activated(result: Tensor, activation: str | None) -> Tensor:
    return result if activation is None else getattr(torch.nn.functional, activation)(result)


def _under_autocast(t: Tensor) -> Tensor:
    """An operand as the operator would take it, where autocast is on: float32 in place of anything shorter."""
    short = isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16)
    return t.float() if short and torch.is_autocast_enabled(t.device.type) else t


def _dense(*tensors: Tensor | None) -> bool:
    return all(t is None or (t.layout == torch.strided and not t.is_nested) for t in tensors)
