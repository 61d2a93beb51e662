"""Float64 reference, error measures and bounds: what tests and bench both mean by "right".

u = 2^-24 is float32's unit roundoff. Errors are measured against S = |alpha| (|A||B| + 2^-125) + |beta| |C| + 2^-125,
element by element: it is what a dot product's error is proportional to, and cancellation does not shrink it. Below
2^-125 float32's spacing no longer shrinks with the number: u 2^-125 is the 2^-149 that it stays at. docs/accuracy.md
derives the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

U = 2.0**-24
FLAT = 2.0**-125  # where float32's numbers are 2^-149 apart, that is 1u of this
PROMOTE = 32  # K between two promotions of fp16x3's high sums to float32
FOLD = 8192  # ... of its low sums
LOST = 16  # unit roundoffs that entries too small for the planes may cost; an element falls back where it may be more
SHALLOW, DEEPEST = 64, 2**20  # K outside is done in float32 at once


@dataclass(frozen=True)
class Reference:
    """`value` is alpha * A @ B + beta * C in float64, `scale` is S, both (..., M, N); `depth` is K."""

    value: Tensor
    scale: Tensor
    depth: int


def reference(a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None) -> Reference:
    """The float64 product of float32 operands a (..., M, K) and b (..., K, N), and its scale.

    NaN and Inf in the operands are the caller's to compare: `scale` is then NaN or Inf too.
    """
    a, b = a.double(), b.double()
    K = a.shape[-1]
    value = alpha * (a @ b)
    scale = abs(alpha) * (a.abs() @ b.abs() + FLAT) + FLAT
    if c is not None and beta != 0:
        value += beta * c.double()
        scale += abs(beta) * c.double().abs()
    return Reference(value, scale, K)


def random_bound(K: int) -> float:
    """(4 + 1.5 sqrt(K)) u: honest float32 keeps it on random data with room to spare, TF32 misses it."""
    return (4 + 1.5 * K**0.5) * U


def ieee_bound(K: int) -> float:
    """gamma_(K+3) = (K+3) u / (1 - (K+3) u): no float32 dot product in any order, scaled and added to C, is worse.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    return _first_and_higher_orders(K + 3)


def fp32_bound(K: int) -> float:
    """What every element of precision "fp32" keeps, on any finite operands, unless it fell back to float32.

    (8 + LOST + K / PROMOTE + eps_K) u, where 8u is what two fp16 planes an operand miss and eps_K what tensor cores
    cut off and the end rounds: 20 in the high sums, up to 15 in the low ones, one a fold, 2 for alpha and beta.
    An element that fell back keeps `ieee_bound`, and so do all for K below SHALLOW or above DEEPEST.
    """
    if not SHALLOW <= K <= DEEPEST:
        return ieee_bound(K)
    eps = 20 + 15 * min(1.0, K / FOLD) + math.ceil(K / FOLD) + 2
    return _first_and_higher_orders(8 + LOST + math.ceil(K / PROMOTE) + eps)


def tf32_bound(K: int) -> float:
    """What every element of precision "tf32" keeps, on any finite operands, unless it fell back to float32.

    (3 + LOST) 2^-11, one for each operand's plane and one for what is of higher order up to K = DEEPEST, and 10u for
    each 16 of K cut off. cuBLAS's TF32, which rounds its operands to as many bits and adds in the same way, keeps it.
    """
    return (3 + LOST) * 2.0**-11 + _first_and_higher_orders(10 * math.ceil(K / 16) + 3)


def _first_and_higher_orders(n: float) -> float:
    """n roundings of u each, one upon the other: n u / (1 - n u)."""
    return n * U / (1 - n * U) if n * U < 1 else float("inf")


@dataclass(frozen=True)
class Errors:
    """What a result is off by.

    `relative` is the Frobenius norm of the error over that of the reference, `largest` is max |error| / S, and
    `bias` the mean of error / S with its sign: rounding to nearest leaves none, on positive data truncation does.
    """

    relative: float
    largest: float
    bias: float = 0.0

    def within(self, bound: float) -> bool:
        """Whether every element keeps `bound`; NaN never does."""
        return self.largest <= bound


def errors(result: Tensor, expected: Reference) -> Errors:
    """Measures a result; with a NaN in it `largest` is NaN. Raises ValueError for another shape."""
    if result.shape != expected.value.shape:
        raise ValueError(f"the result is {tuple(result.shape)} but the reference is {tuple(expected.value.shape)}")
    if result.numel() == 0:
        return Errors(0.0, 0.0)
    difference = result.double() - expected.value
    ratio = torch.where(difference == 0, 0.0, difference / expected.scale)
    norm = expected.value.norm().item()
    relative = difference.norm().item() / norm if norm else (0.0 if not difference.any() else float("inf"))
    return Errors(relative, ratio.abs().max().item(), ratio.mean().item())


def guarded(
    shape: tuple[int, ...],
    device: str | torch.device = "cpu",
    *,
    fill: float = float("nan"),
    pad: int = 0,
    offset: int = 64,
) -> tuple[Tensor, Callable[[], bool]]:
    """A tensor inside a larger buffer of NaN, and a function that tells whether the bytes around it are as they were.

    `pad` more elements follow each row (the leading dimension grows), `offset` elements come before.
    """
    *batch, rows, cols = shape
    parent = torch.full((offset + 64 + (rows * (cols + pad)) * math.prod(batch),), float("nan"), device=device)
    inner = parent[offset : parent.numel() - 64].view(*batch, rows, cols + pad)[..., :cols]
    outside = torch.ones_like(parent, dtype=torch.bool)
    outside[offset : parent.numel() - 64].view(*batch, rows, cols + pad)[..., :cols] = False
    inner.fill_(fill)
    before = parent[outside].view(torch.int32).clone()
    return inner, lambda: torch.equal(parent[outside].view(torch.int32), before)


def classes(t: Tensor) -> Tensor:
    """Of each element 0 for finite, 1 and -1 for Inf and -Inf, 2 for NaN."""
    return torch.where(t.isnan(), 2.0, torch.where(t.isinf(), t.sign(), 0.0))
