"""float32 products from Hopper's tensor cores: fp16x3 (`precision="fp32"`) and fp16x1 (`precision="tf32"`).

The operands are planes (see `split`): x = 2^(e - 14) (hi + 2^-11 lo), hi and lo in fp16, e an integer for each row of A
and each column of B. Then, with i and j a row and a column,

    C = alpha * 2^(ea_i + eb_j - 28) * (sum of hi hi  +  2^-11 * sum of (lo hi + hi lo)) + beta * C

Products of fp16 are exact, but tensor cores truncate when they add up. So hi hi is summed by them over PROMOTE = 32 of
K only and then added to `main` by the CUDA cores, rounding to nearest. The low products are 2^-11 smaller: their sum,
`lo`, stays in the tensor cores and is added to `main` every FOLD of K. The order hides the promotion: while two low
products run, hi hi of the same step is ready and is added. fp16x1 has no low planes and one sum.

A program takes tiles of C in turn, one program an SM. One warp copies the planes' tiles into a ring of STAGES by TMA;
two warpgroups multiply, each half of the tile's rows.
Loads per output from global memory: 2 K (1/128 + 1/128) halves, as many bytes as float32 tiles of that size take.

Safety. An element may lack what the planes do not hold: for each small entry of its row or column 2^-34 (fp16x1: 2^-25)
of the other factor (docs/accuracy.md). The other factors are 2^15 at most, and together no more than the other line's
norm: that is less where many small entries meet few large ones. An element is good where the lesser of the two is 16
units of its own size or less, u for fp16x3 and 2^-11 for fp16x1. One that is not is noted and its half tile listed:
`rest` writes over it. A half tile with more than FEW of them (where C is read, with any), or whose float32 sums could
overflow, is marked and not written at all. `rest` computes exactly those in strict float32, without the host.
Measured: docs/worklog/008-tensor-cores.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..device import gpu
from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant
from . import fma, rest, split
from ._activation import activated
from ._gluon import async_load, barrier, commit_group, tma_load, wait_group
from ._gluon import available as fma_available
from ._walk import count, offset, place
from .split import PARTS, Planes, power_of_2

CONSUMERS = 2  # warpgroups that multiply
LEAST_K, MOST_K = 64, 2**20
LIMIT = 126  # of ea + eb + log2 K: below, no sum of float32 products overflows


@dataclass(frozen=True)
class Tile:
    """A program's share of C, and the depth of one stage of the ring."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    STAGES: int
    TERMS: int  # products: 3 with low planes, 1 without
    GROUP_M: int = 8
    PROMOTE: int = 32
    FOLD: int = 8192
    FEW: int = 32  # elements that a half tile may leave one by one

    @cached_property
    def options(self) -> dict[str, Any]:
        """The kernel's keyword arguments, but for those of the problem."""
        return asdict(self) | {"num_warps": 4}

    @property
    def half(self) -> tuple[int, int]:
        """Rows and columns of what one warpgroup computes: it is written as a whole, or left to `rest`."""
        return self.BLOCK_M // CONSUMERS, self.BLOCK_N

    @property
    def planes(self) -> int:
        """Planes an operand."""
        return 2 if self.TERMS == 3 else 1

    @property
    def name(self) -> str:
        """As the bench names it: `fp16x3_128x128x64`."""
        return f"fp16x{self.TERMS}_{self}"

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}"


@gluon.jit
def line(ptr, first, X, BLOCK: gl.constexpr):
    """BLOCK integers of a line from `first` on; outside X -112, the lowest exponent."""
    x = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    return gl.load(ptr + first + x, mask=x < X - first, other=-112)


@gluon.jit
def fetch(dst, ptr, first, X, BLOCK: gl.constexpr):
    """Starts to copy a line to shared memory."""
    x = gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    async_load(dst, ptr + first + x, mask=x < X - first)


@gluon.jit
def could_overflow(a_exps, b_exps, first_m, first_n, M, N, limit, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Whether a float32 sum of some element of a tile may leave float32's range, or is not finite anyway."""
    e_a = gl.max(line(a_exps, first_m, M, BLOCK_M), 0)
    e_b = gl.max(line(b_exps, first_n, N, BLOCK_N), 0)
    return (e_a + e_b >= limit) | (gl.maximum(e_a, e_b) == 128)


@gluon.jit
def copy_planes(desc, lane, k, bar, his, los, s, pitch, ALONG_K: gl.constexpr, TERMS: gl.constexpr):
    """Starts to copy a tile of an operand's planes into stage s."""
    if ALONG_K:
        tma_load(desc, [lane, k], bar, his.index(s))
        if TERMS == 3:
            tma_load(desc, [lane + pitch, k], bar, los.index(s))
    else:
        tma_load(desc, [k, lane], bar, his.index(s))
        if TERMS == 3:
            tma_load(desc, [k, lane + pitch], bar, los.index(s))


@gluon.jit
def producer(
    a_desc, b_desc, a_his, a_los, b_his, b_los, ready, empty, a_rows, b_rows, extreme,
    M, N, K, limit, batch, a_index, b_index, a_pitch, b_pitch,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    GROUP_M: gl.constexpr, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr,
):  # fmt: skip
    """Fills the ring, tile after tile."""
    PLANES: gl.constexpr = 2 if TERMS == 3 else 1
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    products = count(batch)
    it = 0
    for tile in range(gl.program_id(0), products * tiles_m * tiles_n, gl.num_programs(0)):
        z = tile // (tiles_m * tiles_n)
        pid_m, pid_n = place(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        a_at = offset(z, batch, a_index)
        b_at = offset(z, batch, b_index)
        a_lane = (a_at * a_pitch * PLANES).to(gl.int32) + pid_m * BLOCK_M
        b_lane = (b_at * b_pitch * PLANES).to(gl.int32) + pid_n * BLOCK_N
        steps = (K - 1) // BLOCK_K + 1
        if extreme:
            a_line = a_rows + a_at * 3 * a_pitch
            b_line = b_rows + b_at * 3 * b_pitch
            left = could_overflow(a_line, b_line, pid_m * BLOCK_M, pid_n * BLOCK_N, M, N, limit, BLOCK_M, BLOCK_N)
            steps = gl.where(left, 0, steps)
        for k in range(steps):
            s = it % STAGES
            mbarrier.wait(empty.index(s), (it // STAGES & 1) ^ 1)
            bar = ready.index(s)
            mbarrier.expect(bar, PLANES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
            copy_planes(a_desc, a_lane, k * BLOCK_K, bar, a_his, a_los, s, a_pitch, A_ALONG_K, TERMS)
            copy_planes(b_desc, b_lane, k * BLOCK_K, bar, b_his, b_los, s, b_pitch, B_ALONG_K, TERMS)
            it += 1


@gluon.jit
def part_a(tiles, s, k, W: gl.constexpr, WM: gl.constexpr, STEP: gl.constexpr, ALONG_K: gl.constexpr):
    """Warpgroup W's rows of a tile of A and STEP of its K from k on: (WM, STEP)."""
    x = tiles.index(s)
    if not ALONG_K:
        x = x.permute((1, 0))
    return x.slice(W * WM, WM, dim=0).slice(k, STEP, dim=1)


@gluon.jit
def part_b(tiles, s, k, STEP: gl.constexpr, ALONG_K: gl.constexpr):
    """STEP of a tile of B's K from k on: (STEP, BLOCK_N)."""
    x = tiles.index(s)
    if ALONG_K:
        x = x.permute((1, 0))
    return x.slice(k, STEP, dim=0)


@gluon.jit
def bfloat16_above(x):
    """The least bfloat16 that is not below x, a float32 that is not below 0, as its 16 bits."""
    return (x.to(gl.int32, bitcast=True) + 65535) >> 16


@gluon.jit
def smalls_and_norm(lines, K, TERMS: gl.constexpr, ACC: gl.constexpr, axis: gl.constexpr):
    """The small entries of each row or column, and its norm, each times what |acc| must reach for them.

    A register holds both: of a tile's columns there would be more than fit beside `main`.
    """
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    weight: gl.constexpr = 2.0 if TERMS == 3 else 0.125
    smalls = lines.index(1).load(LINE).to(gl.float32) * weight
    norm = (K * PARTS - lines.index(2).load(LINE)).to(gl.float32) * (weight / PARTS)
    both = bfloat16_above(smalls) << 16 | bfloat16_above(norm)
    both = gl.expand_dims(gl.convert_layout(both, gl.SliceLayout(axis, ACC)), axis)
    return (both & -65536).to(gl.float32, bitcast=True), (both << 16).to(gl.float32, bitcast=True)


@gluon.jit
def fails(main, inside, rows, cols, K, TERMS: gl.constexpr, ACC: gl.constexpr):
    """1 for each element that may lack too much: for all of its small entries, or for all that they can meet."""
    smalls_a, norm_a = smalls_and_norm(rows, K, TERMS, ACC, 1)
    smalls_b, norm_b = smalls_and_norm(cols, K, TERMS, ACC, 0)
    lost = gl.minimum(smalls_a, norm_b) + gl.minimum(smalls_b, norm_a)
    return (inside & (lost > gl.abs(main))).to(gl.int32)


@gluon.jit
def consumer(
    a_his, a_los, b_his, b_los, rows, cols, ready, empty, a_rows, b_rows, extreme, c_ptr, out_ptr,
    left_ptr, strays_ptr, M, N, K, alpha, beta, limit,
    batch, a_index, b_index, c_batch, out_batch, a_pitch, b_pitch,
    stride_cm, stride_cn, stride_om, stride_on, W: gl.constexpr, HAS_C: gl.constexpr, ACTIVATION: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    GROUP_M: gl.constexpr, PROMOTE: gl.constexpr, FOLD: gl.constexpr, FEW: gl.constexpr,
    A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr, CONSUMERS: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr,
):  # fmt: skip
    """Computes half W of each tile."""
    WM: gl.constexpr = BLOCK_M // CONSUMERS
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    products = count(batch)
    it = 0
    for tile in range(gl.program_id(0), products * tiles_m * tiles_n, gl.num_programs(0)):
        z = tile // (tiles_m * tiles_n)
        pid_m, pid_n = place(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        a_line = a_rows + offset(z, batch, a_index) * 3 * a_pitch
        b_line = b_rows + offset(z, batch, b_index) * 3 * b_pitch
        steps = (K - 1) // BLOCK_K + 1
        if extreme:
            left = could_overflow(a_line, b_line, pid_m * BLOCK_M, pid_n * BLOCK_N, M, N, limit, BLOCK_M, BLOCK_N)
            steps = gl.where(left, 0, steps)

        # what the end of the tile needs of its rows and columns comes meanwhile
        first_m = pid_m * BLOCK_M + W * WM
        first_n = pid_n * BLOCK_N
        for nth in gl.static_range(3):
            fetch(rows.index(nth), a_line + nth * a_pitch, first_m, M, WM)
            fetch(cols.index(nth), b_line + nth * b_pitch, first_n, N, BLOCK_N)
        commit_group()

        # walk K: multiply, release the stage before
        main = gl.zeros((WM, BLOCK_N), gl.float32, ACC)
        if TERMS == 3:
            hi = gl.zeros((WM, BLOCK_N), gl.float32, ACC)
            for first in range(0, steps, FOLD // BLOCK_K):
                lo = warpgroup_mma_init(gl.zeros((WM, BLOCK_N), gl.float32, ACC))
                for k in range(first, gl.minimum(first + FOLD // BLOCK_K, steps)):
                    s = it % STAGES
                    mbarrier.wait(ready.index(s), it // STAGES & 1)
                    for i in gl.static_range(BLOCK_K // PROMOTE):
                        a_hi = part_a(a_his, s, i * PROMOTE, W, WM, PROMOTE, A_ALONG_K)
                        b_hi = part_b(b_his, s, i * PROMOTE, PROMOTE, B_ALONG_K)
                        a_lo = part_a(a_los, s, i * PROMOTE, W, WM, PROMOTE, A_ALONG_K)
                        b_lo = part_b(b_los, s, i * PROMOTE, PROMOTE, B_ALONG_K)
                        hi = warpgroup_mma(a_hi, b_hi, hi, use_acc=False, is_async=True)
                        lo = warpgroup_mma(a_lo, b_hi, lo, is_async=True)
                        lo = warpgroup_mma(a_hi, b_lo, lo, is_async=True)
                        hi = warpgroup_mma_wait(2, deps=(hi,))
                        if i == 0 and k > first:
                            mbarrier.arrive(empty.index((it - 1) % STAGES))
                        main += hi
                    it += 1
                lo = warpgroup_mma_wait(0, deps=(lo,))
                mbarrier.arrive(empty.index((it - 1) % STAGES))
                main += lo * 0.00048828125  # 2^-11
        else:
            acc = warpgroup_mma_init(main)
            for k in range(steps):
                s = it % STAGES
                mbarrier.wait(ready.index(s), it // STAGES & 1)
                a_hi = part_a(a_his, s, 0, W, WM, BLOCK_K, A_ALONG_K)
                b_hi = part_b(b_his, s, 0, BLOCK_K, B_ALONG_K)
                acc = warpgroup_mma(a_hi, b_hi, acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=(acc,))
                acc = warpgroup_mma_init(acc)
                if k > 0:
                    mbarrier.arrive(empty.index((it - 1) % STAGES))
                it += 1
            main = warpgroup_mma_wait(0, deps=(acc,))
            if steps > 0:
                mbarrier.arrive(empty.index((it - 1) % STAGES))

        # may it be written? only if the split lost too little to matter in any of its elements
        ROW: gl.constexpr = gl.SliceLayout(1, ACC)
        COL: gl.constexpr = gl.SliceLayout(0, ACC)
        LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        row = gl.expand_dims(first_m + gl.arange(0, WM, ROW), 1)
        col = gl.expand_dims(first_n + gl.arange(0, BLOCK_N, COL), 0)
        inside = (row < M) & (col < N)
        wait_group(0)
        barrier()
        failed = 0  # as in most tiles: nothing in their rows and columns is small
        if gl.max(rows.index(1).load(LINE), 0) + gl.max(cols.index(1).load(LINE), 0) > 0:
            failed = gl.sum(gl.sum(fails(main, inside, rows, cols, K, TERMS, ACC), 1), 0)
        # beta C of an element that is left must stay where it is: then nothing of its half tile is written
        many = (failed > (0 if HAS_C else FEW)) | (steps == 0)
        piece_m = pid_m * CONSUMERS + W
        if many & (first_m < M):
            # marks lie tile by tile of TILE_M x TILE_N, row by row
            PIECES_M: gl.constexpr = TILE_M // WM
            PIECES_N: gl.constexpr = TILE_N // BLOCK_N
            tile_m = z * ((M - 1) // TILE_M + 1) + piece_m // PIECES_M
            tile_n = pid_n // PIECES_N
            mark = (tile_m * ((N - 1) // TILE_N + 1) + tile_n) * (PIECES_M * PIECES_N)
            gl.store(left_ptr + 4 + mark + piece_m % PIECES_M * PIECES_N + pid_n % PIECES_N, 1)
            gl.atomic_add(left_ptr, 1)
        elif failed > 0:
            # a bit an element
            WORDS: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
            bits = fails(main, inside, rows, cols, K, TERMS, ACC)  # again: they would not fit beside `main`
            bits = bits << (gl.expand_dims(gl.arange(0, BLOCK_N, COL), 0) % 32)
            words = gl.convert_layout(gl.sum(gl.reshape(bits, [WM, BLOCK_N // 32, 32]), 2), WORDS)
            word_m = gl.expand_dims(gl.arange(0, WM, gl.SliceLayout(1, WORDS)), 1)
            word_n = gl.expand_dims(gl.arange(0, BLOCK_N // 32, gl.SliceLayout(0, WORDS)), 0)
            pieces_m = (M - 1) // WM + 1
            piece = (z * pieces_m + piece_m) * tiles_n + pid_n
            strays_ptrs = (
                strays_ptr
                + products * pieces_m * tiles_n
                + piece.to(gl.int64) * (WM * BLOCK_N // 32)
                + word_m * (BLOCK_N // 32)
                + word_n
            )
            gl.store(strays_ptrs, words)
            gl.store(strays_ptr + gl.atomic_add(left_ptr + 1, 1), piece)
            gl.atomic_add(left_ptr + 2, failed)

        # write activation(alpha * 2^(ea + eb - 28) * main + beta * C); A's power in two steps, the first at most 2^64
        # either way: nothing leaves float32's range, or rounds, before the product does
        up_a = rows.index(0).load(LINE) - 14
        up_b = cols.index(0).load(LINE) - 14
        up_first = gl.minimum(gl.maximum(up_a, -64), 64)
        rows_first = gl.convert_layout(power_of_2(up_first), ROW)
        rows_then = gl.convert_layout(power_of_2(up_a - up_first), ROW)
        cols_between = gl.convert_layout(power_of_2(up_b), COL)
        value = main * gl.expand_dims(rows_first, 1) * gl.expand_dims(cols_between, 0) * gl.expand_dims(rows_then, 1)
        value = alpha * value
        inside = inside & ~many
        row = row.to(gl.int64)
        col = col.to(gl.int64)
        if HAS_C:
            c = gl.load(c_ptr + offset(z, batch, c_batch) + row * stride_cm + col * stride_cn, mask=inside)
            value = gl.fma(c, beta, value)
        value = activated(value, ACTIVATION)
        gl.store(out_ptr + offset(z, batch, out_batch) + row * stride_om + col * stride_on, value, mask=inside)


@gluon.jit
def tensor_core_kernel(
    a_desc, b_desc, a_rows, b_rows, a_high, b_high, c_ptr, out_ptr,
    left_ptr, strays_ptr,
    M, N, K, alpha, beta, limit,
    batch, a_index, b_index, c_batch, out_batch, a_pitch, b_pitch,
    stride_cm, stride_cn, stride_om, stride_on, HAS_C: gl.constexpr, ACTIVATION: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    GROUP_M: gl.constexpr, PROMOTE: gl.constexpr, FOLD: gl.constexpr, FEW: gl.constexpr,
    A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr, CONSUMERS: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr,
):  # fmt: skip
    A_TILES: gl.constexpr = [STAGES, BLOCK_M, BLOCK_K] if A_ALONG_K else [STAGES, BLOCK_K, BLOCK_M]
    B_TILES: gl.constexpr = [STAGES, BLOCK_N, BLOCK_K] if B_ALONG_K else [STAGES, BLOCK_K, BLOCK_N]
    a_his = gl.allocate_shared_memory(gl.float16, A_TILES, a_desc.layout)
    b_his = gl.allocate_shared_memory(gl.float16, B_TILES, b_desc.layout)
    a_los = a_his
    b_los = b_his
    if TERMS == 3:
        a_los = gl.allocate_shared_memory(gl.float16, A_TILES, a_desc.layout)
        b_los = gl.allocate_shared_memory(gl.float16, B_TILES, b_desc.layout)
    LINES: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[0])
    rows_0 = gl.allocate_shared_memory(gl.int32, [3, BLOCK_M // CONSUMERS], LINES)
    rows_1 = gl.allocate_shared_memory(gl.int32, [3, BLOCK_M // CONSUMERS], LINES)
    cols_0 = gl.allocate_shared_memory(gl.int32, [3, BLOCK_N], LINES)
    cols_1 = gl.allocate_shared_memory(gl.int32, [3, BLOCK_N], LINES)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(empty.index(s), count=CONSUMERS)
    fence_async_shared()
    extreme = (gl.load(a_high) | gl.load(b_high)) != 0

    gl.warp_specialize(
        [
            (consumer, (
                a_his, a_los, b_his, b_los, rows_0, cols_0, ready, empty, a_rows, b_rows, extreme,
                c_ptr, out_ptr, left_ptr, strays_ptr, M, N, K, alpha, beta, limit,
                batch, a_index, b_index, c_batch, out_batch, a_pitch, b_pitch,
                stride_cm, stride_cn, stride_om, stride_on, 0, HAS_C, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                TERMS, GROUP_M, PROMOTE, FOLD, FEW, A_ALONG_K, B_ALONG_K, CONSUMERS, TILE_M, TILE_N,
            )),
            (consumer, (
                a_his, a_los, b_his, b_los, rows_1, cols_1, ready, empty, a_rows, b_rows, extreme,
                c_ptr, out_ptr, left_ptr, strays_ptr, M, N, K, alpha, beta, limit,
                batch, a_index, b_index, c_batch, out_batch, a_pitch, b_pitch,
                stride_cm, stride_cn, stride_om, stride_on, 1, HAS_C, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                TERMS, GROUP_M, PROMOTE, FOLD, FEW, A_ALONG_K, B_ALONG_K, CONSUMERS, TILE_M, TILE_N,
            )),
            (producer, (
                a_desc, b_desc, a_his, a_los, b_his, b_los, ready, empty, a_rows, b_rows, extreme,
                M, N, K, limit, batch, a_index, b_index, a_pitch, b_pitch,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, TERMS, GROUP_M, A_ALONG_K, B_ALONG_K,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


available = tma_load is not None and fma_available

TILES = (Tile(128, 128, 64, 3, TERMS=3), Tile(128, 64, 64, 4, TERMS=3))
TF32_TILES = (Tile(128, 256, 64, 4, TERMS=1), Tile(128, 128, 64, 6, TERMS=1))


def why_not(batches: int, M: int, N: int, K: int, tile: Tile) -> str | None:
    """Why a problem is left to strict float32, or None where it need not be."""
    if K < LEAST_K:
        return f"K is below {LEAST_K}: there strict float32 is as fast as memory"
    if K > MOST_K:
        return f"K is above {MOST_K}: counts of small entries could pass an integer's range"
    if max(batches * tile.planes * (max(M, N) + split.ALIGNED), K) >= 2**31:
        return "TMA counts lanes in 32 bits"
    return None


def source_of_a(p: Problem, a: Tensor) -> split.Source:
    """A as the split reads it."""
    return split.Source(a, p.batch, p.M, p.K, p.a_strides)


def source_of_b(p: Problem, b: Tensor) -> split.Source:
    """B as the split reads it."""
    return split.Source(b, p.batch, p.N, p.K, (*p.b_strides[:-2], p.b_strides[-1], p.b_strides[-2]))


def launch(
    p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile, prepared: Planes | None = None
) -> Launch:
    """The launch that computes `p`: what the split and the tensor cores leave is done by `rest`, last.

    The tensors give the addresses only, `p` has their strides. `prepared` are B's planes, split before.
    Memory of its own: two bytes an element of A and B for each plane; four for an operand that `fma` cannot read where
    it lies.
    """
    if why_not(p.batches, p.M, p.N, p.K, tile):
        return fma.launch(p, a, b, c, out, rest.TILE)
    half_m, half_n = tile.half
    pieces = rest.TILE.BLOCK_M // half_m * (rest.TILE.BLOCK_N // half_n)
    marks = p.batches * cdiv(p.M, rest.TILE.BLOCK_M) * cdiv(p.N, rest.TILE.BLOCK_N) * pieces
    sources = [source_of_a(p, a)] if prepared else [source_of_a(p, a), source_of_b(p, b)]
    (own, *others), splitting, zeros = split.launch(sources, tile.planes, 4 + marks)
    halves = p.batches * cdiv(p.M, half_m) * cdiv(p.N, half_n)
    strays = torch.empty(halves * (1 + half_m * half_n // 32), dtype=torch.int32, device=out.device)
    left = rest.Left(half_m, half_n, zeros, strays)
    multiplying = _multiply(p, own, prepared or others[0], c, out, left, tile, splitting)
    return rest.launch(p, a, b, c, out, left, multiplying)


def fallback(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, tile: Tile) -> float:
    """Computes `p` and returns the share of its elements that was left to strict float32; waits for the device."""
    launched = launch(p, a, b, c, out, tile)
    launched.run(out.device)
    return share_left(launched, p, tile)


def share_left(launched: Launch, p: Problem, tile: Tile) -> float:
    """The share of elements of `p` that was left to strict float32, once `launched` has run; waits for the device."""
    left = next((each.args[0] for each in launched.all() if each.kernel is rest.rest_kernel), None)
    if left is None:
        return 1.0
    marked, _, strays = left[:3].tolist()
    half_m, half_n = tile.half
    return marked / (p.batches * cdiv(p.M, half_m) * cdiv(p.N, half_n)) + strays / (p.batches * p.M * p.N)


def _multiply(
    p: Problem, a: Planes, b: Planes, c: Tensor | None, out: Tensor, left: rest.Left, tile: Tile, splitting: Launch
) -> Launch:
    tiles = p.batches * cdiv(p.M, tile.BLOCK_M) * cdiv(p.N, tile.BLOCK_N)
    programs = min(tiles, gpu(out.device.index).sms) if out.is_cuda else tiles
    c_strides = p.c_strides or p.out_strides
    args = (
        _descriptor(a, tile.BLOCK_M, tile.BLOCK_K), _descriptor(b, tile.BLOCK_N, tile.BLOCK_K),
        a.rows, b.rows, a.high, b.high, out if c is None else c, out,
        left.marks, left.strays,
        p.M, p.N, p.K, p.alpha, p.beta, LIMIT - (p.K - 1).bit_length(),
        p.batch[::-1], a.steps_in(p.batch), b.steps_in(p.batch), c_strides[-3::-1], p.out_strides[-3::-1],
        a.pitch, b.pitch, *c_strides[-2:], *p.out_strides[-2:],
    )  # fmt: skip
    form = tile.options | {
        "HAS_C": p.c_strides is not None,
        "ACTIVATION": p.activation,
        "A_ALONG_K": a.along_k,
        "B_ALONG_K": b.along_k,
        "CONSUMERS": CONSUMERS,
        "TILE_M": rest.TILE.BLOCK_M,
        "TILE_N": rest.TILE.BLOCK_N,
    }
    return Launch(tensor_core_kernel, programs, args, form, (splitting,))


def _descriptor(planes: Planes, lanes: int, depth: int) -> TensorDescriptor:
    """How TMA reads tiles of (lanes x depth): zeros beyond K."""
    tile = [lanes, depth] if planes.along_k else [depth, lanes]
    return TensorDescriptor.from_tensor(planes.lanes, tile, gl.NVMMASharedLayout.get_default_for(tile, gl.float16))


VARIANTS = tuple(
    Variant(
        tile.name,
        "gluon",
        "fp32" if tile.TERMS == 3 else "tf32",
        launch=partial(launch, tile=tile),
        fallback=partial(fallback, tile=tile),
        doc=__doc__,
        batched=True,
        archs=(90,),
    )
    for tile in (*TILES, *TF32_TILES)
)
