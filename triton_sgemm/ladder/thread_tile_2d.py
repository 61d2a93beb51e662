"""Rung 5: one thread computes 8 x 8 outputs.

The same kernel as rung 4 with `size_per_thread=[8, 8]` in a tile of C that grows to 128 x 128. What a thread
reads from shared memory grows with the rim of its tile, what it multiplies with the area.
Loads per output: 2K/128 from global memory, K (1/8 + 1/8) from shared memory. 32 FLOP/byte.
FMA per shared load: 64/16 = 4, the balance of an SM (128 FMA lanes, 32 banks).
Twin: reference_cuda/thread_tile_2d.cu.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl

from ..launch import Launch
from ..problem import Problem
from ..variants import Variant
from .thread_tile_1d import launch_thread_tile

SQUARE_OF_8 = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 8,
    "num_warps": 8,
    # what a thread owns
    "LAYOUT": gl.BlockedLayout(size_per_thread=[8, 8], threads_per_warp=[2, 16], warps_per_cta=[8, 1], order=[1, 0]),
    # four single elements of each tile per thread, global to shared memory
    "LOAD_A": gl.BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[4, 8], warps_per_cta=[8, 1], order=[1, 0]),
    "LOAD_B": gl.BlockedLayout(size_per_thread=[1, 1], threads_per_warp=[1, 32], warps_per_cta=[2, 4], order=[1, 0]),
    # both tiles row-major in shared memory
    "SHARED_A": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
    "SHARED_B": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
}


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The tile whose threads own a square of 8 x 8 outputs."""
    return launch_thread_tile(p, a, b, c, out, SQUARE_OF_8)


VARIANT = Variant("thread_tile_2d_gluon", "gluon", "ieee", rung=5, launch=launch, doc=__doc__)
