"""Which thread owns what in `fma`, as functions of a tile's sizes that run when the kernel is compiled.

A row of a tile is counted as quad (its two lowest bits), lane, repetition, warp; a column likewise.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

LANES_M, LANES_N = gl.constexpr(4), gl.constexpr(8)  # how the lanes of a warp stand in the tile


@constexpr_function
def powers(first, end):
    """first, 2 * first, .. below end: the bases that count from 0 to end in steps of first."""
    return [1 << i for i in range((first - 1).bit_length(), (end - 1).bit_length())]


@constexpr_function
def places(BLOCK_M, BLOCK_N, TM, TN):
    """What lanes and warps own: the bases (row, column), in quads; a warp's tile is LANES_M * TM by LANES_N * TN."""
    m0, *lanes_m = powers(4, 4 * LANES_M)
    n0, *lanes_n = powers(4, 4 * LANES_N)
    warps_m, warps_n = powers(LANES_M * TM, BLOCK_M), powers(LANES_N * TN, BLOCK_N)
    lanes = [[0, n0], [m0, 0], *([m, 0] for m in lanes_m), *([0, n] for n in lanes_n)]  # neighbours share rows
    return lanes, [[0, n] for n in warps_n] + [[m, 0] for m in warps_m]


@constexpr_function
def fragments(BLOCK_M, BLOCK_N, TM, TN):
    """The outputs that a thread owns, and with them the elements of A and of B that it reads at each k."""
    lanes, warps = places(BLOCK_M, BLOCK_N, TM, TN)
    rows = powers(1, 4) + powers(4 * LANES_M, LANES_M * TM)
    cols = powers(1, 4) + powers(4 * LANES_N, LANES_N * TN)
    registers = [[0, n] for n in cols] + [[m, 0] for m in rows]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [BLOCK_M, BLOCK_N])


@constexpr_function
def owned(BLOCK_M, BLOCK_N, TM, TN):
    """One of a thread's rows: (place along M, place along N, one of TN columns)."""

    def place(base):
        m, n = base
        m = m // 4 if m < 4 * LANES_M else m // TM
        n = n // 4 if n < 4 * LANES_N else n // TN
        return [m, n, 0]

    lanes, warps = places(BLOCK_M, BLOCK_N, TM, TN)
    registers = [[0, 0, n] for n in powers(1, TN)]
    shape = [BLOCK_M // TM, BLOCK_N // TN, TN]
    return gl.DistributedLinearLayout(registers, [place(b) for b in lanes], [place(b) for b in warps], [], shape)


@constexpr_function
def copies(SIZE, WARPS):
    """How the threads copy a (BLOCK_K, SIZE) tile, 16 bytes at a time."""
    lanes = min(32, SIZE // 4)
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [WARPS, 1], order=[1, 0])


@constexpr_function
def copies_of_a(SIZE, WARPS, ALONG_K):
    """How they copy A's (SIZE, BLOCK_K); along K two adjacent elements of 16 rows: whole sectors of global memory."""
    if ALONG_K:
        return gl.BlockedLayout([1, 1], [16, 2], [WARPS, 1], order=[1, 0])
    lanes = min(32, SIZE // 4)
    return gl.BlockedLayout([4, 1], [lanes, 32 // lanes], [1, WARPS], order=[0, 1])


@constexpr_function
def k_major(SIZE, BLOCK_K, TOGETHER):
    """How a tile of A lies in shared memory: TOGETHER rows side by side at each k, then the next rows."""
    m, k = [[i, 0] for i in powers(1, SIZE)], [[0, i] for i in powers(1, BLOCK_K)]
    apart = len(powers(1, TOGETHER))
    return gl.SharedLinearLayout(m[:apart] + k + m[apart:])
