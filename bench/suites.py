"""What is measured: named lists of shapes."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace

from .data import DATA

# How A and B are stored. N: row by row without gaps. T: transposed, column by column, BLAS's letters for the two.
# ld+1: row by row, each row followed by one more element. offset1: as N, one element behind the start of the memory.
LAYOUTS = {
    "NN": ("N", "N"),
    "NT": ("N", "T"),
    "TN": ("T", "N"),
    "TT": ("T", "T"),
    "ld+1": ("ld+1", "ld+1"),
    "offset1": ("offset1", "offset1"),
}

WRITTEN = re.compile(r"(\d+)|(?:(\d+)x)?(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Case:
    """`batch` products: A (M, K) and B (K, N), stored as `layout` says (see LAYOUTS), holding `data` (see DATA)."""

    M: int
    N: int
    K: int
    batch: int = 1
    layout: str = "NN"
    data: str = "normal"

    def __str__(self) -> str:
        """The shortest text that `parse` reads back."""
        shape = f"{self.M}" if self.M == self.N == self.K and self.batch == 1 else f"{self.M}x{self.N}x{self.K}"
        batch = f"{self.batch}x" if self.batch > 1 else ""
        data = f":{self.data}" if self.data != "normal" else ""
        return f"{batch}{shape}" + (f":{self.layout}" if self.layout != "NN" or data else "") + data

    @property
    def title(self) -> str:
        """The heading of its table."""
        return (
            f"M = {self.M}, N = {self.N}, K = {self.K}"
            + (f", batch of {self.batch}" if self.batch > 1 else "")
            + (f", layout {self.layout}" if self.layout != "NN" else "")
            + (f", data {self.data}" if self.data != "normal" else "")
        )

    @property
    def flops(self) -> int:
        """A multiply and an add counted as two."""
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def bytes_moved(self) -> int:
        """A and B read once, the result written once."""
        return 4 * self.batch * (self.M * self.K + self.K * self.N + self.M * self.N)

    @classmethod
    def parse(cls, text: str) -> Case:
        """`4096` is a square product, `512x1024x64` is M x N x K, `16x512x1024x64` a batch of 16 of them.

        A layout may follow (`4096:TN`), and what the operands hold after it (`4096:NN:softmax`). Raises
        ArgumentTypeError for anything else.
        """
        shape, *suffixes = text.split(":")
        if len(suffixes) > 2:
            raise ArgumentTypeError(f"size {text!r}: {1 + len(suffixes)} fields; need SHAPE[:LAYOUT[:DATA]]")
        layout, data = (*suffixes, *("NN", "normal")[len(suffixes) :])
        match = WRITTEN.fullmatch(shape.lower())
        if not match or 0 in (sizes := [int(n) for n in match.groups() if n]):
            raise ArgumentTypeError(
                f"size {text!r}: need a number from 1 on such as 4096, or MxNxK such as 512x1024x64, or BATCHxMxNxK"
            )
        if layout not in LAYOUTS:
            raise ArgumentTypeError(f"size {text!r}: the layout is one of {', '.join(LAYOUTS)}")
        if data not in DATA:
            raise ArgumentTypeError(f"size {text!r}: the data is one of {', '.join(DATA)}")
        *batch, M, N, K = sizes if len(sizes) > 1 else sizes * 3
        return cls(M, N, K, batch[0] if batch else 1, layout, data)


def square(*sizes: int) -> tuple[Case, ...]:
    """M = N = K for each size."""
    return tuple(Case(n, n, n) for n in sizes)


@dataclass(frozen=True)
class Suite:
    """The shapes, and the variants (globs) that are measured where the caller names none."""

    cases: tuple[Case, ...]
    variants: tuple[str, ...] = ("*",)


SQUARES = square(256, 512, 1024, 2048, 4095, 4096, 4097, 8192, 16384)
BASELINES_AND_MATMUL = ("cublas*", "matmul_*")
FEW = (1, 8, 16, 64)

SUITES = {
    # the chapter's own size
    "chapter": Suite(square(4096)),
    # where launch overhead, wave quantisation and the power limit rule; one off a multiple on both sides
    "square": Suite(
        SQUARES,
        (*BASELINES_AND_MATMUL, "fma_128x256x8", "fp16x*", "dot_tf32x3", "dot_bf16x6"),
    ),
    # the chapter's rungs at the same sizes
    "ladder": Suite(SQUARES, ("cublas", "*_cuda", "*_gluon", "*_triton")),
    # the same product from memory in other orders; the last two, and odd rows, forbid loads of four elements at once
    "layouts": Suite(
        (*(replace(Case(4096, 4096, 4096), layout=layout) for layout in LAYOUTS), Case(4095, 4097, 4093)),
        BASELINES_AND_MATMUL,
    ),
    # few rows (a decoder's tokens) or few columns: the large operand is read once, so memory rules
    "skinny": Suite(
        (
            *(Case(m, n, k) for n, k in ((4096, 4096), (16384, 16384), (65536, 4096)) for m in FEW),
            *(Case(m, n, k) for m, k in ((4096, 4096), (16384, 16384), (65536, 4096)) for n in FEW),
        ),
        BASELINES_AND_MATMUL,
    ),
    # a small result of long sums (gradients of weights): too few tiles for the SMs unless K is split
    "deep": Suite(
        tuple(Case(mn, mn, k) for mn in (64, 128, 256, 512) for k in (4096, 32768, 131072, 500_000)),
        BASELINES_AND_MATMUL,
    ),
    # many small products (attention heads, blocks of a factorisation): none fills the GPU alone
    "batched": Suite(
        tuple(
            Case(n, n, n, batch) for n in (16, 32, 64, 128, 256) for batch in (16, 256, 4096 if n < 256 else 1024)
        ),
        BASELINES_AND_MATMUL,
    ),
    # the same product of other numbers: what reaches a matmul in use; rows that span many powers of two; and, last,
    # an Inf in every row of A, so that tensor cores can serve nothing
    "data": Suite(
        tuple(
            Case(4096, 4096, 4096, data=data)
            for data in (
                "normal", "softmax", "relu", "relu_squared", "unscaled",
                "features", "gradients", "lognormal_4", "infinite",
            )
        ),
        BASELINES_AND_MATMUL,
    ),
}  # fmt: skip

# small enough for the interpreter and the fibers: one tile, several of them, a K of several steps; a batch of
# transposed operands with sizes that no tile divides
ON_CPU = (Case(32, 32, 32), Case(128, 128, 256), Case(33, 17, 40, batch=2, layout="TT"))
