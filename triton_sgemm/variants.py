"""A variant: one way to compute the product, and one row of the bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from .device import ARCHS
from .launch import Launch
from .problem import Problem

Precision = Literal["ieee", "fp32", "tf32"]
Run = Callable[[Problem, Tensor, Tensor, Tensor | None, Tensor], None]


@dataclass(frozen=True)
class Variant:
    """A named kernel, with what it can take and how to run it.

    name         unique; CUDA rungs and their twins are told apart by the suffix (`naive_cuda`, `naive_gluon`)
    backend      the language it is written in; "torch" is cuBLAS
    precision    the bound its results keep (see `testing`)
    doc          what it does and why: a variant nobody explained is refused
    rung         its number on the ladder, shared by a CUDA kernel and its twin
    multiple_of  what M, N and K must be multiples of
    row_major    whether it needs A, B and the result row by row without gaps
    batched      whether it takes batches
    archs        compute capabilities that it is compiled for
    launch       (problem, a, b, c, out) -> Launch, for Triton and Gluon
    run_with     (problem, a, b, c, out), where it is not one launch of Triton's
    fallback     (problem, a, b, c, out) -> the share of elements done in ieee, for one that leaves some to it; it runs
                 outside any timing and may wait for the device. None: on this problem there is nothing to leave
    """

    name: str
    backend: Literal["triton", "gluon", "cuda", "torch"]
    precision: Precision
    doc: str | None
    rung: int | None = None
    multiple_of: int = 1
    row_major: bool = False
    batched: bool = False
    archs: tuple[int, ...] = tuple(ARCHS)
    launch: Callable[[Problem, Tensor, Tensor, Tensor | None, Tensor], Launch] | None = None
    run_with: Run | None = None
    fallback: Callable[[Problem, Tensor, Tensor, Tensor | None, Tensor], float | None] | None = None

    def __post_init__(self) -> None:
        if not (self.doc or "").strip():
            raise ValueError(f"variant {self.name!r} has no docstring; say what it does and why")
        if (self.launch is None) == (self.run_with is None):
            raise ValueError(f"variant {self.name!r} needs either launch or run_with")

    def why_not(self, p: Problem) -> str | None:
        """Why it cannot compute `p`, or None where it can."""
        if p.batch and not self.batched:
            return f"{self.name} takes one product, not a batch of {p.batches}"
        if any(size % self.multiple_of for size in (p.M, p.N, p.K)):
            return f"{self.name} needs M, N and K that are multiples of {self.multiple_of}"
        if self.row_major and not p.row_major:
            return f"{self.name} needs A, B and the result row by row without gaps"
        return None

    def run(self, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
        """Computes `p` into `out`; raises ValueError where `why_not` has a reason."""
        reason = self.why_not(p)
        if reason:
            raise ValueError(f"{reason}; got M={p.M}, N={p.N}, K={p.K}")
        if self.launch:
            self.launch(p, a, b, c, out).run(out.device)
        elif self.run_with:
            self.run_with(p, a, b, c, out)


def unique(variants: Iterable[Variant]) -> dict[str, Variant]:
    """The variants by name, in order; raises ValueError for a name used twice."""
    by_name: dict[str, Variant] = {}
    for v in variants:
        if v.name in by_name:
            raise ValueError(f"two variants are called {v.name!r}; names must differ")
        by_name[v.name] = v
    return by_name
