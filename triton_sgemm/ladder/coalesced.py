"""Rung 2: one thread computes one output, and the lanes of a warp walk the columns.

The same kernel as rung 1 with another layout: `threads_per_warp=[1, 32]`. At each k a warp reads
32 adjacent elements of B (128 bytes, 4 sectors) and one element of A (a broadcast), and it writes
128 adjacent bytes of C: the chapter's coalescing is a layout.
Loads per output: still 2K from global memory. Still 0.25 FLOP/byte.
Twin: reference_cuda/coalesced.cu. Chapter: "global memory coalescing".
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl

from ..launch import Launch
from ..problem import Problem
from ..variants import Variant
from .naive import launch_outer_product

LANES_WALK_COLUMNS = gl.BlockedLayout(
    size_per_thread=[1, 1], threads_per_warp=[1, 32], warps_per_cta=[32, 1], order=[1, 0]
)


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The outer product with lanes that walk the columns."""
    return launch_outer_product(p, a, b, c, out, LANES_WALK_COLUMNS)


VARIANT = Variant("coalesced_gluon", "gluon", "ieee", rung=2, launch=launch, doc=__doc__)
