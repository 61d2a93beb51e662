"""Rung 8: strict float32 at the speed of the FMA units, in Gluon (sm_80 and newer). What "ieee" runs on large products.

One program computes a BLOCK_M x BLOCK_N tile of C, 128 x 256 at most. A thread owns TM x TN = 16 x 8 of its outputs: at
each k it reads 24 elements from shared memory, in 6 instructions, for 128 FMAs.
Loads per output: K (1/128 + 1/256) = 2K/171 from global memory. 43 FLOP/byte. FMA per shared load: 5.3 an element,
21 an instruction. Beyond the rungs before, four things keep the issue slots for the FMAs:

* A ring of STAGES tiles is filled by cp.async behind the arithmetic, each stage a buffer of its own: Triton would
  otherwise put a barrier between the copy into one stage and the loads from another.
* Fragments are read one k ahead. Lanes 2i and 2i + 1 share rows of A, i and i + 2 columns of B, so that a load of four
  elements takes two passes through shared memory.
* The outer product turns at the end of each row (right, then left), even columns before odd ones. An SM reads two
  registers a cycle and lane, one of each bank; an FMA needs three. The order leaves one of them in the operand cache.
* FMAs are written as PTX: LLVM would gather them into vectors and lose the order.

Both tiles lie K-major in shared memory. An operand that does so in global memory, on 16 bytes, is copied 16 bytes at a
time. An A that is contiguous along K may be copied one element at a time, 16 rows side by side so that a warp's stores
take 32 banks; that takes up to 1.3 times as long. Anything else is moved by `relay` first (plan.py decides).
Measured: docs/worklog/006-outer-products.md. Twin: reference_cuda/async_ring.cu.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from ..launch import Launch, cdiv
from ..problem import Problem
from ..variants import Variant
from . import relay
from ._activation import activated
from ._fma_layouts import LANES_M, LANES_N, copies, copies_of_a, fragments, k_major, owned
from ._gluon import async_load, barrier, commit_group, wait_group
from ._walk import place


@dataclass(frozen=True)
class Tile:
    """A program's share of C and what a thread owns of it; BLOCK_K is the depth of one stage of the ring."""

    BLOCK_M: int
    BLOCK_N: int
    TM: int = 16
    TN: int = 8
    BLOCK_K: int = 8
    STAGES: int = 2
    GROUP_M: int = 8

    @property
    def num_warps(self) -> int:
        """Warps a program."""
        return self.BLOCK_M * self.BLOCK_N // (self.TM * self.TN) // 32

    @cached_property
    def options(self) -> dict[str, Any]:
        """The kernel's keyword arguments, but for those of the problem."""
        return asdict(self) | {"num_warps": self.num_warps}

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}"


TILES = (
    Tile(128, 256),
    Tile(64, 256),
    Tile(256, 64),
    Tile(128, 128),
    Tile(64, 128, TM=8),
    Tile(128, 64, TM=8),
)


@gluon.jit
def half(x):
    """(X, n) as its first and its last n/2 columns."""
    first, last = gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    return first, last


@gluon.jit
def halves(parts):
    out = ()
    for i in gl.static_range(len(parts)):
        first, last = half(parts[i])
        out = out + (first, last)
    return out


@gluon.jit
def singles(x, LANES: gl.constexpr, EACH: gl.constexpr):
    """A fragment of which each thread holds EACH elements (quads, LANES apart) as EACH tensors (X / EACH, 1)."""
    X: gl.constexpr = x.shape[0] * x.shape[1]
    x = gl.permute(gl.reshape(x, [X // (EACH * LANES), EACH // 4, LANES, 4]), (0, 2, 1, 3))
    parts = halves(halves(halves((gl.reshape(x, [X // EACH, EACH]),))))
    if EACH == 16:
        parts = halves(parts)
    return parts


@constexpr_function
def column(row, n):
    """Which of its 8 columns the n-th FMA of a row takes: even before odd ones, odd rows from the right."""
    n = 7 - n if row % 2 else n
    return n % 4 * 2 + n // 4


@gluon.jit
def in_order(b, row: gl.constexpr, OWNED: gl.constexpr):
    """The 8 columns of a fragment of B, in the order that `row` takes them: (1, X, 8)."""
    front = gl.join(gl.join(b[column(row, 0)], b[column(row, 1)]), gl.join(b[column(row, 2)], b[column(row, 3)]))
    back = gl.join(gl.join(b[column(row, 4)], b[column(row, 5)]), gl.join(b[column(row, 6)], b[column(row, 7)]))
    x = gl.permute(gl.join(front, back), (1, 0, 4, 3, 2))
    return gl.convert_layout(gl.reshape(x, [1, x.shape[1], 8]), OWNED)


@gluon.jit
def outer_product(a, b, acc, TM: gl.constexpr, TN: gl.constexpr, OWNED: gl.constexpr):
    """acc + a @ b for fragments a (BLOCK_M, 1) and b (1, BLOCK_N); acc has a tensor for each of a thread's rows."""
    rows = singles(a, LANES_M, TM)
    cols = singles(gl.permute(b, (1, 0)), LANES_N, TN)
    right = in_order(cols, 0, OWNED)
    left = in_order(cols, 1, OWNED)
    out = ()
    for i in gl.static_range(TM):
        row = gl.convert_layout(gl.expand_dims(rows[i], 2), OWNED)  # (BLOCK_M / TM, 1, 1)
        turn = right if i % 2 == 0 else left
        out = out + (
            gl.inline_asm_elementwise(
                "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [row, turn, acc[i]], gl.float32, is_pure=True, pack=1
            ),
        )
    return out


@gluon.jit
def fetch(As, Bs, a_ptrs, b_ptrs, in_m, in_n, a_k, b_k, left, WHOLE: gl.constexpr):
    """Starts to copy a tile of A and one of B; what lies outside, or beyond the `left` elements of K, becomes 0."""
    async_load(As, a_ptrs, mask=left > 0 if WHOLE else in_m & (a_k < left))
    async_load(Bs, b_ptrs, mask=left > 0 if WHOLE else in_n & (b_k < left))
    commit_group()


@gluon.jit
def tile_of_c(
    pid, marks_ptr,
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta, depth,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
    HAS_C: gl.constexpr, ACTIVATION: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, TM: gl.constexpr, TN: gl.constexpr, A_ALONG_K: gl.constexpr,
    WHOLE: gl.constexpr, MARK_M: gl.constexpr, MARK_N: gl.constexpr,
):  # fmt: skip
    """Computes one tile of C and writes it; with MARK_M only its marked pieces."""
    FRAGMENTS: gl.constexpr = fragments(BLOCK_M, BLOCK_N, TM, TN)
    OWNED: gl.constexpr = owned(BLOCK_M, BLOCK_N, TM, TN)
    COPY_A: gl.constexpr = copies_of_a(BLOCK_M, gl.num_warps(), A_ALONG_K)
    COPY_B: gl.constexpr = copies(BLOCK_N, gl.num_warps())
    SHARED_A: gl.constexpr = k_major(
        BLOCK_M, BLOCK_K, 16 if A_ALONG_K else BLOCK_M
    )  # 16: a warp's stores take 32 banks
    SHARED_B: gl.constexpr = gl.SwizzledSharedLayout(vec=1, per_phase=1, max_phase=1, order=[1, 0])

    # which product of the batch, its last dimension first; offsets are int64: a view's parent may be very large
    tiles_m = (M - 1) // BLOCK_M + 1  # not cdiv: M + BLOCK_M - 1 may pass 2^31
    tiles_n = (N - 1) // BLOCK_N + 1
    z = pid // (tiles_m * tiles_n)
    for axis in gl.static_range(len(batch)):
        index = (z % batch[axis]).to(gl.int64)
        a_ptr += index * a_batch[axis]
        b_ptr += index * b_batch[axis]
        out_ptr += index * out_batch[axis]
        if HAS_C:
            c_ptr += index * c_batch[axis]
        z = z // batch[axis]

    # which tile of C
    pid_m, pid_n = place(pid % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)

    # which part of K: what is left of z
    first_k = z * depth
    K = gl.minimum(K - first_k, depth)

    # move each pointer to the top left corner of this tile
    first_m = pid_m * BLOCK_M
    first_n = pid_n * BLOCK_N
    a_ptr += first_m.to(gl.int64) * stride_am + first_k.to(gl.int64) * stride_ak
    b_ptr += first_n.to(gl.int64) * stride_bn + first_k.to(gl.int64) * stride_bk
    c_ptr += first_m.to(gl.int64) * stride_cm + first_n.to(gl.int64) * stride_cn
    out_ptr += first_m.to(gl.int64) * stride_om + first_n.to(gl.int64) * stride_on + z.to(gl.int64) * stride_part

    # pointers to the first step of K; vectors of four lie on 16 bytes, the last of a row is read whole
    if not A_ALONG_K:
        a_ptr = gl.multiple_of(a_ptr, 16)
        stride_ak = gl.multiple_of(stride_ak, 4)
    b_ptr = gl.multiple_of(b_ptr, 16)
    stride_bk = gl.multiple_of(stride_bk, 4)
    VEC_A: gl.constexpr = 1 if A_ALONG_K else 4
    a_m = gl.expand_dims(gl.arange(0, BLOCK_M, gl.SliceLayout(1, COPY_A)), 1)
    a_k = gl.expand_dims(gl.arange(0, BLOCK_K, gl.SliceLayout(0, COPY_A)), 0)
    b_k = gl.expand_dims(gl.arange(0, BLOCK_K, gl.SliceLayout(1, COPY_B)), 1)
    b_n = gl.expand_dims(gl.arange(0, BLOCK_N, gl.SliceLayout(0, COPY_B)), 0)
    in_m = a_m // VEC_A < (M - first_m - 1) // VEC_A + 1
    in_n = b_n // 4 < (N - first_n - 1) // 4 + 1
    a_ptrs = a_ptr + a_m.to(gl.int64) * stride_am + a_k.to(gl.int64) * stride_ak  # (BLOCK_M, BLOCK_K)
    b_ptrs = b_ptr + b_k.to(gl.int64) * stride_bk + b_n.to(gl.int64) * stride_bn  # (BLOCK_K, BLOCK_N)
    step = gl.cast(BLOCK_K, gl.int64)

    # fill the ring but for one stage, and read the first fragments
    As = ()
    Bs = ()
    for _s in gl.static_range(STAGES):
        As = As + (gl.allocate_shared_memory(gl.float32, [BLOCK_M, BLOCK_K], SHARED_A),)
        Bs = Bs + (gl.allocate_shared_memory(gl.float32, [BLOCK_K, BLOCK_N], SHARED_B),)
    for s in gl.static_range(STAGES - 1):
        fetch(As[s], Bs[s], a_ptrs, b_ptrs, in_m, in_n, a_k, b_k, K - s * BLOCK_K, WHOLE)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    wait_group(STAGES - 2)
    barrier()
    a = As[0].slice(0, 1, dim=1).load(FRAGMENTS)  # (BLOCK_M, 1)
    b = Bs[0].slice(0, 1, dim=0).load(FRAGMENTS)  # (1, BLOCK_N)

    # walk K, once around the ring at a time, so that a stage's place is known: refill, multiply, advance
    acc = ()
    for _i in gl.static_range(TM):
        acc = acc + (gl.zeros((BLOCK_M // TM, BLOCK_N // TN, TN), gl.float32, OWNED),)
    for i in range(0, (K - 1) // BLOCK_K + 1, STAGES):
        for s in gl.static_range(STAGES):
            left = K - (i + s + STAGES - 1) * BLOCK_K
            fetch(
                As[s - 1 if s else STAGES - 1], Bs[s - 1 if s else STAGES - 1],
                a_ptrs, b_ptrs, in_m, in_n, a_k, b_k, left, WHOLE,
            )  # fmt: skip
            a_ptrs += step * stride_ak
            b_ptrs += step * stride_bk
            for k in gl.static_range(BLOCK_K):
                if k + 1 < BLOCK_K:
                    a_next = As[s].slice(k + 1, 1, dim=1).load(FRAGMENTS)
                    b_next = Bs[s].slice(k + 1, 1, dim=0).load(FRAGMENTS)
                else:
                    wait_group(STAGES - 2)
                    barrier()
                    a_next = As[(s + 1) % STAGES].slice(0, 1, dim=1).load(FRAGMENTS)
                    b_next = Bs[(s + 1) % STAGES].slice(0, 1, dim=0).load(FRAGMENTS)
                acc = outer_product(a, b, acc, TM, TN, OWNED)
                a = a_next
                b = b_next
    wait_group(0)

    # write activation(alpha * acc + beta * C), one of the thread's rows after the other
    lane_m = gl.expand_dims(
        gl.expand_dims(gl.arange(0, BLOCK_M // TM, gl.SliceLayout(1, gl.SliceLayout(2, OWNED))), 1), 2
    )
    lane_n = gl.expand_dims(
        gl.expand_dims(gl.arange(0, BLOCK_N // TN, gl.SliceLayout(0, gl.SliceLayout(2, OWNED))), 0), 2
    )
    n = gl.expand_dims(gl.expand_dims(gl.arange(0, TN, gl.SliceLayout(0, gl.SliceLayout(0, OWNED))), 0), 0)
    for i in gl.static_range(TM):
        turn = n if i % 2 == 0 else TN - 1 - n  # the columns lie in the order of `column`
        j = turn % (TN // 2) * 2 + turn // (TN // 2)
        row = lane_m // LANES_M * (TM * LANES_M) + i // 4 * (4 * LANES_M) + lane_m % LANES_M * 4 + i % 4
        col = lane_n // LANES_N * (TN * LANES_N) + j // 4 * (4 * LANES_N) + lane_n % LANES_N * 4 + j % 4
        inside = (row < M - first_m) & (col < N - first_n)
        if MARK_M:
            piece = row // MARK_M * (BLOCK_N // MARK_N) + col // MARK_N
            inside = inside & (gl.load(marks_ptr + piece, mask=inside, other=0) != 0)
        value = alpha * acc[i]
        if HAS_C:
            c = gl.load(c_ptr + row.to(gl.int64) * stride_cm + col.to(gl.int64) * stride_cn, mask=inside)
            value = gl.fma(c, beta, value)
        value = activated(value, ACTIVATION)
        gl.store(out_ptr + row.to(gl.int64) * stride_om + col.to(gl.int64) * stride_on, value, mask=inside)


@gluon.jit
def fma_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr,
    M, N, K, alpha, beta, depth,
    batch, a_batch, b_batch, c_batch, out_batch,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
    HAS_C: gl.constexpr, ACTIVATION: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, TM: gl.constexpr, TN: gl.constexpr, A_ALONG_K: gl.constexpr,
    WHOLE: gl.constexpr,
):  # fmt: skip
    tile_of_c(
        gl.program_id(0), out_ptr, a_ptr, b_ptr, c_ptr, out_ptr,
        M, N, K, alpha, beta, depth,
        batch, a_batch, b_batch, c_batch, out_batch,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on, stride_part,
        HAS_C, ACTIVATION, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, TM, TN, A_ALONG_K, WHOLE, 0, 0,
    )  # fmt: skip


def programs(p: Problem, tile: Tile) -> int:
    """How many tiles the problem's output has."""
    return p.batches * cdiv(p.M, tile.BLOCK_M) * cdiv(p.N, tile.BLOCK_N)


def launch(
    p: Problem,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    out: Tensor,
    tile: Tile,
    depth: int | None = None,
    stride_part: int = 0,
    relay_a: bool = False,
    needed: Tensor | None = None,
) -> Launch:
    """The launch that computes `p`; the tensors give the addresses only, `p` has their strides.

    `relay_a` moves A first even where it could be read along K, which is slower.
    An operand that the kernel does not read where it lies is moved first, into memory of its own, as much as it takes.
    With `needed`, it is moved unless the device finds a 0 there.
    With `depth`, K is cut into parts of that size, each written `stride_part` elements behind the one before.
    """
    before: list[Launch] = []
    a_along_k = not relay_a and reads_along_k(p)
    if not a_along_k and not relay.in_place(p, a):
        p, a, move = relay.moved(p, a, needed)
        before.append(move)
    if not relay.in_place(p.transposed(), b):
        turned, b, move = relay.moved(p.transposed(), b, needed)
        p = turned.transposed()
        before.append(move)
    c_strides = p.c_strides or p.out_strides
    depth = depth or max(p.K, 1)
    args = (
        a, b, out if c is None else c, out,
        p.M, p.N, p.K, p.alpha, p.beta, depth,
        p.batch[::-1], p.a_strides[-3::-1], p.b_strides[-3::-1], c_strides[-3::-1], p.out_strides[-3::-1],
        *p.a_strides[-2:], *p.b_strides[-2:], *c_strides[-2:], *p.out_strides[-2:], stride_part,
    )  # fmt: skip
    parts = max(cdiv(p.K, depth), 1)
    form = tile.options | {
        "HAS_C": p.c_strides is not None,
        "ACTIVATION": p.activation,
        "A_ALONG_K": a_along_k,
        "WHOLE": not (p.M % tile.BLOCK_M or p.N % tile.BLOCK_N or p.K % tile.BLOCK_K or depth % tile.BLOCK_K),
    }
    return Launch(fma_kernel, parts * programs(p, tile), args, form, tuple(before))


def reads_along_k(p: Problem) -> bool:
    """Whether A is read where it lies, one element at a time, because its rows are contiguous."""
    return p.a_strides[-1] == 1 and p.a_strides[-2] != 1


VARIANTS = tuple(
    Variant(
        f"fma_{tile}",
        "gluon",
        "ieee",
        rung=8 if tile is TILES[0] else None,
        launch=partial(launch, tile=tile),
        doc=__doc__,
        batched=True,
    )
    for tile in TILES
)
