"""Rung 6: four elements a load, and A kept K-major in shared memory.

The same kernel as rung 5 with other layouts of A's and B's tiles: `size_per_thread=[1, 4]` makes a global load of
four elements (where the strides let it), and `order=[0, 1]` lays the rows of As side by side, so that the eight
elements which a thread needs at one k are two loads of four, as those of Bs are.
Loads per output: the elements of rung 5, in a quarter of the instructions. 32 FLOP/byte.
FMA per shared load: 4 an element, 64/4 = 16 an instruction.
Twin: reference_cuda/vector_loads.cu.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl

from ..launch import Launch
from ..problem import Problem
from ..variants import Variant
from .thread_tile_1d import launch_thread_tile

FOUR_A_LOAD = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 8,
    "num_warps": 8,
    # what a thread owns
    "LAYOUT": gl.BlockedLayout(size_per_thread=[8, 8], threads_per_warp=[2, 16], warps_per_cta=[8, 1], order=[1, 0]),
    # four adjacent elements of each tile per thread, global to shared memory
    "LOAD_A": gl.BlockedLayout(size_per_thread=[1, 4], threads_per_warp=[16, 2], warps_per_cta=[8, 1], order=[1, 0]),
    "LOAD_B": gl.BlockedLayout(size_per_thread=[1, 4], threads_per_warp=[1, 32], warps_per_cta=[8, 1], order=[1, 0]),
    # A's tile is transposed on its way: K-major in shared memory
    "SHARED_A": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0, 1]),
    "SHARED_B": gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0]),
}


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Launch:
    """The tiles that are read four elements at a time."""
    return launch_thread_tile(p, a, b, c, out, FOUR_A_LOAD)


VARIANT = Variant("vector_loads_gluon", "gluon", "ieee", rung=6, launch=launch, doc=__doc__)
