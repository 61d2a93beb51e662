"""Moves an operand to where it is read fastest: its rows along X (M, N or K), each beginning on 128 bytes.

One program moves a BLOCK_X x BLOCK_K tile: it reads along the operand's own contiguous dimension and writes along X
(Triton turns the tile round in shared memory). 8 bytes an element; at 4096^3 that is 1.5 % of the product's time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, cdiv
from ..problem import Problem


@triton.jit
def relay_kernel(
    src_ptr, dst_ptr, X, K, batch, src_batch, dst_batch, stride_x, stride_k, lda, needed_ptr,
    BLOCK_X: tl.constexpr, BLOCK_K: tl.constexpr, IF_NEEDED: tl.constexpr,
):  # fmt: skip
    if IF_NEEDED:  # noqa: SIM102 (a constexpr, and what the device finds)
        if tl.load(needed_ptr) == 0:
            return

    # which matrix of the batch, its last dimension first; offsets are int64
    tiles_x = (X - 1) // BLOCK_X + 1
    tiles_k = (K - 1) // BLOCK_K + 1
    z = tl.program_id(0) // (tiles_x * tiles_k)
    for axis in tl.static_range(len(batch)):
        index = (z % batch[axis]).to(tl.int64)
        src_ptr += index * src_batch[axis]
        dst_ptr += index * dst_batch[axis]
        z = z // batch[axis]

    # which tile: neighbours walk K, along which a row-major A is contiguous
    tile = tl.program_id(0) % (tiles_x * tiles_k)
    first_k = tile % tiles_k * BLOCK_K
    first_x = tile // tiles_k * BLOCK_X
    src_ptr += first_x.to(tl.int64) * stride_x + first_k.to(tl.int64) * stride_k
    dst_ptr += first_k.to(tl.int64) * lda + first_x

    # move it
    x = tl.arange(0, BLOCK_X)[:, None]
    k = tl.arange(0, BLOCK_K)[None, :]
    inside = (x < X - first_x) & (k < K - first_k)
    moved = tl.load(src_ptr + x.to(tl.int64) * stride_x + k.to(tl.int64) * stride_k, mask=inside)
    tl.store(dst_ptr + k.to(tl.int64) * lda + x, moved, mask=inside)


BLOCK = {"BLOCK_X": 64, "BLOCK_K": 64, "num_warps": 8}
ALIGNED = 32  # elements: 128 bytes


def in_place(p: Problem, a: Tensor) -> bool:
    """Whether A may be read where it lies, 16 bytes at a time along M.

    A last vector that is not whole reads past its row, which must still be the tensor's own memory.
    """
    *rest, stride_am, stride_ak = p.a_strides
    if stride_am != 1 or a.data_ptr() % 16 or any(s % 4 for s in (*rest, stride_ak)):
        return False
    return p.M % 4 == 0 or ends_whole(a)


def ends_whole(t: Tensor) -> bool:
    """Whether the tensor's memory reaches to the end of the 16 bytes that hold its last element."""
    end = int(t.storage_offset()) + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    return 4 * cdiv(end, 4) * 4 <= t.untyped_storage().nbytes()


def moved(p: Problem, a: Tensor, needed: Tensor | None = None) -> tuple[Problem, Tensor, Launch]:
    """`p` with A moved, M side by side, and the launch that moves it; with `needed`: unless it finds a 0 there."""
    room, strides, launch = move(a, p.batch, p.M, p.K, p.a_strides, needed)
    return replace(p, a_strides=strides), room, launch


def move(
    src: Tensor, batch: tuple[int, ...], X: int, K: int, strides: tuple[int, ...], needed: Tensor | None = None
) -> tuple[Tensor, tuple[int, ...], Launch]:
    """Room for `src`, (*batch, X, K) with `strides`, its new strides and the launch that moves it there.

    A batch that `src` is broadcast over is moved once.
    """
    batch = tuple(size if stride else 1 for size, stride in zip(batch, strides, strict=False))
    room = torch.empty((*batch, K, cdiv(X, ALIGNED) * ALIGNED), dtype=torch.float32, device=src.device)
    *steps, lda, _ = room.stride()
    args = (
        src,
        room,
        X,
        K,
        batch[::-1],
        strides[-3::-1],
        tuple(steps[::-1]),
        *strides[-2:],
        lda,
        room if needed is None else needed,
    )
    programs = math.prod(batch) * cdiv(X, BLOCK["BLOCK_X"]) * cdiv(K, BLOCK["BLOCK_K"])
    places = tuple(s if size > 1 else 0 for s, size in zip(steps, batch, strict=True))
    return room, (*places, 1, lda), Launch(relay_kernel, programs, args, BLOCK | {"IF_NEEDED": needed is not None})
