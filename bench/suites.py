"""What is measured: named lists of shapes."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One product: A (M, K) and B (K, N), row-major."""

    M: int
    N: int
    K: int

    def __str__(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"

    @property
    def flops(self) -> int:
        """A multiply and an add counted as two."""
        return 2 * self.M * self.N * self.K

    @classmethod
    def parse(cls, text: str) -> Case:
        """`4096` for a square product, `512x1024x64` for M x N x K; raises ArgumentTypeError for anything else."""
        parts = text.lower().split("x")
        if len(parts) not in (1, 3) or not all(p.isdigit() and int(p) > 0 for p in parts):
            raise ArgumentTypeError(f"size {text!r}: need a number such as 4096, or MxNxK such as 512x1024x64")
        return cls(*(map(int, parts * 3 if len(parts) == 1 else parts)))


def square(*sizes: int) -> tuple[Case, ...]:
    """M = N = K for each size."""
    return tuple(Case(n, n, n) for n in sizes)


@dataclass(frozen=True)
class Suite:
    """The shapes, and the variants (globs) that are measured where the caller names none."""

    cases: tuple[Case, ...]
    variants: tuple[str, ...] = ("*",)


SUITES = {
    # the chapter's own size
    "chapter": Suite(square(4096)),
    # where launch overhead, wave quantisation and the power limit rule; one off a multiple on both sides.
    # Of the tiles, the one that matmul picks
    "square": Suite(
        square(256, 512, 1024, 2048, 4095, 4096, 4097, 8192, 16384),
        ("cublas", "*_cuda", "*_gluon", "*_triton", "matmul_*"),
    ),
}

# small enough for the interpreter and the fibers: one tile, several of them, a K of several steps
ON_CPU = (Case(32, 32, 32), Case(128, 128, 256))
