"""Where a program works: which product of a batch, and which tile of its result. For Triton's and Gluon's kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count(batch):
    """How many products a batch has."""
    products = 1
    for axis in tl.static_range(len(batch)):
        products *= batch[axis]
    return products


@triton.jit
def offset(z, batch, steps):
    """The sum of the steps to the z-th product, the batch's last dimension first; int64: a parent may be very large."""
    at = tl.cast(0, tl.int64)
    for axis in tl.static_range(len(batch)):
        at += (z % batch[axis]).to(tl.int64) * steps[axis]
        z = z // batch[axis]
    return at


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile: GROUP_M rows of tiles are walked column by column, so that the L2 cache holds them."""
    strip = tile // (GROUP_M * tiles_n)
    rows = tl.minimum(tiles_m - strip * GROUP_M, GROUP_M)
    return strip * GROUP_M + tile % (GROUP_M * tiles_n) % rows, tile % (GROUP_M * tiles_n) // rows
