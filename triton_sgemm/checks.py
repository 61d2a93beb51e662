"""What a caller passes, checked: each error names the function, what was expected, what came, and the remedy."""

from __future__ import annotations

from numbers import Real

import numpy as np
import torch
from torch import Tensor

from .errors import DeviceError, DtypeError, OverlapError, ShapeError

LABELS = ("a", "b", "c")  # what a caller's operands are called in errors, unless a function has other names
NUMBERS = (int, float, Real, torch.SymInt, torch.SymFloat)


def check_tensors(name: str, **tensors: Tensor | None) -> None:
    """Raises TypeError for what is no tensor."""
    for label, t in tensors.items():
        if not isinstance(t, Tensor):
            if label == "out":
                need = "a torch.Tensor to write into, or leave out= away"
            elif type(t).__name__ == "Prepared":
                need = "a torch.Tensor, for instance its .b; only the right of matmul, sgemm and linear may be prepared"
            else:
                need = f"a torch.Tensor, for instance torch.as_tensor({label})"
            raise TypeError(f"{name}: {label} is of type {type(t).__name__}; need {need}")


def check_operands(name: str, **tensors: Tensor | None) -> None:
    """Raises TypeError, DtypeError or DeviceError unless the tensors share one dtype and one device."""
    first: tuple[str, Tensor] | None = None
    for label, t in tensors.items():
        if t is None:
            continue
        check_tensors(name, **{label: t})
        if first is None:
            first = label, t
        elif t.dtype != first[1].dtype:
            own = first[1].dtype
            remedy = f"pass an out of {own}" if label == "out" else f"convert one, for instance {label}.to({own})"
            raise DtypeError(f"{name}: {first[0]} is {own} but {label} is {t.dtype}; {remedy}")
        elif t.device != first[1].device:
            raise DeviceError(
                f"{name}: {first[0]} is on {first[1].device} but {label} is on {t.device}; "
                f"move one, for instance {label}.to({str(first[1].device)!r})"
            )


def check_numbers(name: str, **numbers: float) -> None:
    """Raises TypeError for a factor that is no real number."""
    for label, number in numbers.items():
        if not isinstance(number, NUMBERS):
            example = f"{label}.item()" if isinstance(number, Tensor) else f"{label}=1.0"
            raise TypeError(
                f"{name}: {label} is of type {type(number).__name__}; need a number, for instance {example}"
            )


def check_floating(name: str, label: str, t: Tensor) -> None:
    """Raises DtypeError for integers, which factors and a C do not go with."""
    if isinstance(t, Tensor) and not (t.is_floating_point() or t.is_complex()):
        raise DtypeError(f"{name}: {label} is {t.dtype}; need a floating dtype, for instance {label}.float()")


def product_shape(
    name: str, a: Tensor, b: Tensor, labels: tuple[str, str, str] = LABELS
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape of `torch.matmul(a, b)`, and those of A and B as broadcast batches of matrices.

    Raises ShapeError for a 0-D operand, inner sizes that differ and batches that do not broadcast.
    """
    of_a, of_b, _ = labels
    shapes = f"{name}: {of_a} is {tuple(a.shape)} but {of_b} is {tuple(b.shape)}"
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"{shapes}: need 1-D tensors at least; multiply by a number with *")
    M, K = (1, a.shape[0]) if a.ndim == 1 else a.shape[-2:]
    inner, N = (b.shape[0], 1) if b.ndim == 1 else b.shape[-2:]
    if inner != K:
        raise ShapeError(
            f"{shapes}: inner sizes {K} and {inner} differ; need {of_a} (..., M, K) and {of_b} (..., K, N)"
        )
    try:
        batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])) if a.ndim > 2 or b.ndim > 2 else ()
    except RuntimeError:
        raise ShapeError(
            f"{shapes}: batch sizes {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast; "
            "each pair, from the right, must be equal or hold a 1"
        ) from None
    result = batch + ((M,) if a.ndim > 1 else ()) + ((N,) if b.ndim > 1 else ())
    return result, (*batch, M, K), (*batch, K, N)


def expand_c(name: str, c: Tensor, shape: tuple[int, ...], label: str = "c") -> Tensor:
    """`c`, called `label`, as a view of the result's shape; raises ShapeError where it does not broadcast to it."""
    try:
        return c.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{name}: {label} is {tuple(c.shape)} but the result is {shape}; need one that broadcasts to it"
        ) from None


def as_matrices(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`t`, of the result's shape, with the rows and columns that 1-D operands leave out of it; a view."""
    if b.ndim == 1:
        t = t[..., None]
    if a.ndim == 1:
        t = t[..., None, :]
    return t


def check_out_shape(name: str, out: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ShapeError unless `out` has the result's shape."""
    if tuple(out.shape) != shape:
        raise ShapeError(f"{name}: out is {tuple(out.shape)} but the result is {shape}; pass an out of that shape")


def check_out(
    name: str,
    out: Tensor,
    shape: tuple[int, ...],
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    labels: tuple[str, str, str] = LABELS,
) -> None:
    """Raises unless `out` has the result's shape and no element of it lies where another value is needed.

    `out` may be `c` itself: each element is read before it is written.
    """
    check_out_shape(name, out, shape)
    if _may_hold_twice(out):
        raise OverlapError(
            f"{name}: out has strides {out.stride()} for shape {shape}, so that elements share memory; "
            "pass a fresh tensor, and copy from it"
        )
    for label, t in zip(labels, (a, b, c), strict=True):
        if t is None or (label == labels[2] and _same_view(t, out)):
            continue
        if _share_memory(t, out):
            raise OverlapError(
                f"{name}: out shares memory (or may) with {label}, which is still being read; "
                f"pass {label}.clone() or a fresh out"
            )


def _same_view(t: Tensor, out: Tensor) -> bool:
    def steps(x: Tensor) -> list[int]:
        return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]

    return t.data_ptr() == out.data_ptr() and t.shape == out.shape and steps(t) == steps(out)


def _may_hold_twice(t: Tensor) -> bool:
    """True unless every larger stride steps over all that the smaller ones span."""
    span = 0
    for stride, size in sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1):
        if stride <= span:
            return t.numel() > 0
        span += stride * (size - 1)
    return False


class _Footprint:
    """Describes a tensor's memory to numpy, which only compares addresses and reads nothing."""

    def __init__(self, t: Tensor) -> None:
        self.__array_interface__ = {
            "data": (t.data_ptr(), False),
            "shape": tuple(t.shape),
            "strides": tuple(s * t.element_size() for s in t.stride()),
            "typestr": f"|V{t.element_size()}",
            "version": 3,
        }


def _end(t: Tensor) -> int:
    """The address behind the last element."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr() + (last + 1) * t.element_size()


def _share_memory(t: Tensor, out: Tensor) -> bool:
    if _end(t) <= out.data_ptr() or _end(out) <= t.data_ptr() or t.numel() == 0 or out.numel() == 0:
        return False
    try:
        return np.shares_memory(np.asarray(_Footprint(t)), np.asarray(_Footprint(out)), max_work=10_000)
    except np.exceptions.TooHardError:
        return True
