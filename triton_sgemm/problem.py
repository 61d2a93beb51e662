"""One batched product as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """C[z] = activation(alpha * A[z] @ B[z] + beta * C[z]), with A (M, K), B (K, N), C and the result (M, N).

    `batch` is the shape that z runs over, () for one product. A stride tuple holds, in elements,
    one stride for each batch dimension and then the two of the matrix; 0 where an operand is
    broadcast. `c_strides` is None where beta is 0: C is then never read. `activation` is None or one of
    `algorithms._activation`'s.
    """

    batch: tuple[int, ...]
    M: int
    N: int
    K: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    c_strides: tuple[int, ...] | None
    out_strides: tuple[int, ...]
    alpha: float = 1.0
    beta: float = 0.0
    activation: str | None = None

    @property
    def batches(self) -> int:
        """How many products there are."""
        return math.prod(self.batch)

    def transposed(self) -> Problem:
        """The same product as C' = B' @ A'."""

        def turned(strides: tuple[int, ...]) -> tuple[int, ...]:
            return (*strides[:-2], strides[-1], strides[-2])

        return replace(
            self,
            M=self.N,
            N=self.M,
            a_strides=turned(self.b_strides),
            b_strides=turned(self.a_strides),
            c_strides=None if self.c_strides is None else turned(self.c_strides),
            out_strides=turned(self.out_strides),
        )

    @property
    def flops(self) -> int:
        """Floating point operations, a multiply and an add counted as two."""
        return 2 * self.batches * self.M * self.N * self.K

    @property
    def row_major(self) -> bool:
        """Whether each matrix of A, B and the result lies row by row without gaps (A and B: where they are read)."""
        read = [(self.M, self.K, self.a_strides), (self.K, self.N, self.b_strides)] if self.K else []
        return all(
            (rows == 1 or strides[-2] == cols) and (cols == 1 or strides[-1] == 1)
            for rows, cols, strides in (*read, (self.M, self.N, self.out_strides))
        )


def problem(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    out: Tensor,
    alpha: float,
    beta: float,
    activation: str | None = None,
) -> Problem:
    """`out = activation(alpha * a @ b + beta * c)` as a problem, its batch folded where the strides allow.

    Shapes    a (*batch, M, K), b (*batch, K, N), c and out (*batch, M, N), all expanded alike.
    """
    *batch, M, K = a.shape
    N = b.shape[-1]
    if alpha == 0:
        K = 0  # BLAS: A and B are not read, so that a NaN there is harmless
    if K == 0:
        alpha = 0.0
    c_strides = None if c is None or beta == 0 else c.stride()
    return _fold(
        Problem(tuple(batch), M, N, K, a.stride(), b.stride(), c_strides, out.stride(), alpha, beta, activation)
    )


def _fold(p: Problem) -> Problem:
    """Fewer batch dimensions for the same product.

    Dimensions of size 1 go, neighbours that every tensor walks with one stride become one, and where B
    is the same for all of the last dimension, its products are the rows of one taller A.
    """
    strides = [s for s in (p.a_strides, p.b_strides, p.c_strides, p.out_strides) if s is not None]
    if not p.batch:
        return p
    dims: list[tuple[int, tuple[int, ...]]] = []  # size, and the stride of each tensor
    for axis, size in enumerate(p.batch):
        step = tuple(s[axis] for s in strides)
        if size == 1:
            continue
        if dims and all(outer == inner * size for outer, inner in zip(dims[-1][1], step, strict=True)):
            dims[-1] = (dims[-1][0] * size, step)
        else:
            dims.append((size, step))

    rows = [s[-2] for s in strides]
    M = p.M
    if dims:
        size, step = dims[-1]
        others = [i for i in range(len(strides)) if i != 1]  # all but B
        if step[1] == 0 and (M == 1 or all(step[i] == M * rows[i] for i in others)):
            if M == 1:
                rows = [step[i] if i in others else rows[i] for i in range(len(rows))]
            M *= size
            dims.pop()

    folded = [(*(step[i] for _, step in dims), rows[i], s[-1]) for i, s in enumerate(strides)]
    a, b, *c, out = folded
    return replace(
        p,
        batch=tuple(size for size, _ in dims),
        M=M,
        a_strides=a,
        b_strides=b,
        c_strides=c[0] if c else None,
        out_strides=out,
    )
