"""Rung 7: the lanes of a warp share what they read.

The same kernel as rung 6 with `size_per_thread=[4, 4]` and `threads_per_warp=[4, 8]`: a warp owns pieces of
16 x 32 outputs, and the layout repeats over the tile, so that a thread still owns 64 outputs, as 2 x 2 quads.
Loads per output: as in rung 6.
Twin: reference_cuda/warp_tile.cu.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl

from ..launch import Launch
from ..problem import Problem
from ..variants import Variant
from .thread_tile_1d import launch_thread_tile

LANES_SHARE = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 8,
    "num_warps": 8,
    # what a thread owns
    "LAYOUT": gl.BlockedLayout(size_per_thread=[4, 4], threads_per_warp=[4, 8], warps_per_cta=[4, 2], order=[1, 0]),
    # four adjacent elements of each tile per thread, global to shared memory
    "LOAD_A": gl.BlockedLayout(size_per_thread=[1, 4], threads_per_warp=[16, 2], warps_per_cta=[8, 1], order=[1, 0]),
    "LOAD_B": gl.BlockedLayout(size_per_thread=[1, 4], threads_per_warp=[1, 32], warps_per_cta=[8, 1], order=[1, 0]),
    # A's tile is transposed on its way: K-major in shared memory
    "SHARED_A": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0, 1]),
    "SHARED_B": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
}


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The tile whose warps own pieces of 16 x 32 outputs."""
    return launch_thread_tile(p, a, b, c, out, LANES_SHARE)


VARIANT = Variant("warp_tile_gluon", "gluon", "ieee", rung=7, launch=launch, doc=__doc__)
