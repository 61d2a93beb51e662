"""What tensor cores left of a product, in strict float32: single elements, and pieces of C that hold many of them.

The device has listed and marked them when this starts; the host does not look. Mostly there are none: a program for
each SM looks, and goes. A single element is the sum of K products, a program's threads side by side along K, added in a
fixed order. Marked pieces are computed by `fma`'s tiles, which write what is marked and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..device import gpu
from ..launch import Launch
from ..problem import Problem
from . import fma
from ._activation import activated
from ._walk import count, offset, place

TILE = fma.TILES[0]
STEP = 1024  # of K, for a single element


@dataclass(frozen=True)
class Left:
    """What is left, as the device finds it when it comes to it.

    M, N    rows and columns of a piece
    marks   int32: how many pieces are marked, how many listed, how many elements the listed ones leave, and a spare.
            Then (products, rows of TILE's tiles, columns of tiles, pieces a tile, row by row): not 0 for marked ones
    strays  int32: the listed pieces, counted row by row, product by product, with room for all. Then, for each piece
            there is, a bit an element, row by row: 1 for those that a listed piece leaves
    """

    M: int
    N: int
    marks: Tensor
    strays: Tensor


@gluon.jit
def element(
    row, col, a_ptr, b_ptr, c_ptr, out_ptr, K, alpha, beta,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: gl.constexpr, ACTIVATION: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    """Computes one element of a product."""
    row = row.to(gl.int64)
    col = col.to(gl.int64)
    k = gl.arange(0, STEP, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    a_ptrs = a_ptr + row * stride_am + k.to(gl.int64) * stride_ak
    b_ptrs = b_ptr + col * stride_bn + k.to(gl.int64) * stride_bk
    step = gl.cast(STEP, gl.int64)
    acc = gl.zeros((STEP,), gl.float32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    for first in range(0, K, STEP):
        a = gl.load(a_ptrs, mask=k < K - first, other=0.0)
        b = gl.load(b_ptrs, mask=k < K - first, other=0.0)
        acc = gl.fma(a, b, acc)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    value = alpha * gl.sum(acc, 0)
    if HAS_C:
        value = gl.fma(gl.load(c_ptr + row * stride_cm + col * stride_cn), beta, value)
    gl.store(out_ptr + row * stride_om + col * stride_on, activated(value, ACTIVATION))


@gluon.jit
def lowest_bit(words, lane):
    """The place of the first bit that is set in a row of words; past the last word where none is."""
    bit = (((words & -words).to(gl.float32).to(gl.int32, bitcast=True) >> 23) & 255) - 127
    return gl.min(gl.where(words != 0, lane * 32 + bit, words.shape[0] * 32), 0)


@gluon.jit
def rest_kernel(
    marks_ptr, strays_ptr,
    whole_a, whole_b, whole_a_batch, whole_b_batch, whole_am, whole_ak, whole_bk, whole_bn,
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta, depth,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
    HAS_C: gl.constexpr, ACTIVATION: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, TM: gl.constexpr, TN: gl.constexpr, A_ALONG_K: gl.constexpr,
    WHOLE: gl.constexpr, MARK_M: gl.constexpr, MARK_N: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    products = count(batch)

    # single elements, from A and B where they lie
    WORDS: gl.constexpr = MARK_M * MARK_N // 32
    pieces_m = (M - 1) // MARK_M + 1
    pieces_n = (N - 1) // MARK_N + 1
    for place_in_list in range(gl.program_id(0), gl.load(marks_ptr + 1), gl.num_programs(0)):
        piece = gl.load(strays_ptr + place_in_list)
        lane = gl.arange(0, WORDS, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        words = gl.load(strays_ptr + products * pieces_m * pieces_n + piece.to(gl.int64) * WORDS + lane)
        z = piece // (pieces_m * pieces_n)
        first_m = piece // pieces_n % pieces_m * MARK_M
        first_n = piece % pieces_n * MARK_N
        at = lowest_bit(words, lane)
        while at < MARK_M * MARK_N:
            element(
                first_m + at // MARK_N, first_n + at % MARK_N,
                whole_a + offset(z, batch, whole_a_batch), whole_b + offset(z, batch, whole_b_batch),
                c_ptr + offset(z, batch, c_batch), out_ptr + offset(z, batch, out_batch), K, alpha, beta,
                whole_am, whole_ak, whole_bk, whole_bn, stride_cm, stride_cn, stride_om, stride_on,
                HAS_C, ACTIVATION, STEP,
            )  # fmt: skip
            words = gl.where(lane == at // 32, words & (words - 1), words)
            at = lowest_bit(words, lane)
    if gl.load(marks_ptr) == 0:
        return

    # tiles with a marked piece, from A and B as `fma` reads them
    PIECES: gl.constexpr = BLOCK_M // MARK_M * (BLOCK_N // MARK_N)
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    for pid in range(gl.program_id(0), products * tiles_m * tiles_n, gl.num_programs(0)):
        pid_m, pid_n = place(pid % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        marks = marks_ptr + 4 + ((pid // (tiles_m * tiles_n) * tiles_m + pid_m) * tiles_n + pid_n) * PIECES
        marked = 0
        for nth in gl.static_range(PIECES):
            marked |= gl.load(marks + nth)
        if marked != 0:
            fma.tile_of_c(
                pid, marks, a_ptr, b_ptr, c_ptr, out_ptr,
                M, N, K, alpha, beta, depth,
                batch, a_batch, b_batch, c_batch, out_batch,
                stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
                HAS_C, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, TM, TN, A_ALONG_K, WHOLE, MARK_M, MARK_N,
            )  # fmt: skip


def launch(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, left: Left, before: Launch) -> Launch:
    """The launch that computes of `p` what `before` leaves; the tensors give the addresses only."""
    tiles = fma.launch(p, a, b, c, out, TILE, needed=left.marks)
    programs = min(tiles.programs, gpu(out.device.index).sms) if out.is_cuda else tiles.programs
    lies = (a, b, p.a_strides[-3::-1], p.b_strides[-3::-1], *p.a_strides[-2:], *p.b_strides[-2:])
    args = (left.marks, left.strays, *lies, *tiles.args)
    form = tiles.options | {"MARK_M": left.M, "MARK_N": left.N, "STEP": STEP}
    return Launch(rest_kernel, programs, args, form, (before, *tiles.before))
