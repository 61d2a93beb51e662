"""Rung 7: a warp computes a tile of its own, and its lanes share what they read.

The same kernel as rung 6 with another layout of C: the lanes of a warp stand 4 x 8, each with a quad of 4 x 4 outputs.
The layout repeats over the tile of C, so that a thread still owns 64 outputs, in four quads. (Those lie 64 apart; the
CUDA rung has a warp's quads side by side. What the lanes read is as much.) At each k a warp wants 32 elements of
As and 64 of Bs, from 16 and 128, and eight lanes read eight adjacent groups of four, every bank once.
Loads per output: as in rung 6. 32 FLOP/byte.
FMA per shared load: as in rung 6; for each element that a warp wants 2048/96 = 21, from 2048/144 = 14.
Twin: reference_cuda/warp_tile.cu.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl

from ..launch import Launch
from ..problem import Problem
from ..variants import Variant
from .thread_tile_1d import launch_thread_tile

QUADS_OF_4 = {
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
    """The tile whose lanes own quads of 4 x 4 outputs."""
    return launch_thread_tile(p, a, b, c, out, QUADS_OF_4)


VARIANT = Variant("warp_tile_gluon", "gluon", "ieee", rung=7, launch=launch, doc=__doc__)
