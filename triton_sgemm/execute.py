"""Carries out a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import triton
from torch import Tensor

from .algorithms import dot, fma, parts, relay, rows, tensor_core
from .algorithms.split import Planes
from .errors import CaptureError
from .last import thread
from .launch import Launch, cdiv
from .plan import Plan
from .problem import Problem
from .recorded import Alpha, Beta, Recorded

NATIVE = not triton.knobs.runtime.interpret  # as it was when the kernels were defined


@dataclass(frozen=True)
class Execution:
    """A plan for a problem. Its launches are recorded on the first run and replayed on any tensors that lie alike.

    alpha and beta of `p` only tell whether they are 0.
    """

    plan: Plan
    p: Problem
    recorded: dict[Hashable, Recorded] = field(default_factory=dict)

    def run(
        self,
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        out: Tensor,
        alpha: float,
        beta: float,
        prepared: Planes | None = None,
    ) -> None:
        """Computes it into `out`, on `out`'s device and its current stream.

        `prepared` holds B split before, for plans that split.
        """
        if out.numel() == 0:
            return
        thread.execution = self
        alpha = alpha if self.p.alpha else 0.0
        try:
            if out.is_cuda and NATIVE:
                self._run(a, b, c, out, alpha, beta, prepared)
                return
        except torch.OutOfMemoryError:
            pass
        execute(self.plan, replace(self.p, alpha=float(alpha), beta=float(beta)), a, b, c, out, prepared)

    def _run(
        self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, alpha: float, beta: float, prepared: Planes | None
    ) -> None:
        given = [a, b, c, out, *([] if prepared is None else [prepared.room, prepared.rows, prepared.high])]
        key = self._key(a, b, c, out)
        if key in self.recorded:
            self.recorded[key].run(given, alpha, beta)
            return
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"a CUDA graph is being captured, but this product ({self.p.M} x {self.p.N} x {self.p.K}, with these "
                "strides and alignments) has not run yet, and its kernels cannot be loaded now; run it once before"
            )
        a, b, c, out = a.detach(), b.detach(), None if c is None else c.detach(), out.detach()  # no two the same object
        given[:4] = a, b, c, out
        p = replace(self.p, alpha=Alpha(alpha), beta=Beta(beta))
        self.recorded[key] = Recorded(launch(self.plan, p, a, b, c, out, prepared), given, out.device)

    def _key(self, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> Hashable:
        """What decides how operands are read besides their shapes and strides: addresses, and where memory ends."""
        return (
            a.data_ptr() % 16,
            b.data_ptr() % 16,
            None if c is None else c.data_ptr() % 16,
            out.data_ptr() % 16,
            self.p.M % 4 == 0 or relay.ends_whole(a),
            self.p.N % 4 == 0 or relay.ends_whole(b),
        )


def launch(
    plan: Plan, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, prepared: Planes | None = None
) -> Launch:
    """The launch that computes `p` into `out` as `plan` says; raises torch.OutOfMemoryError where its rooms do not fit.

    `prepared` holds B split before, for plans that split.
    """
    if plan.transposed:
        p, a, b = p.transposed(), b, a
    tiled: Callable[..., Launch]
    if isinstance(plan.tile, tensor_core.Tile):
        tiled = partial(tensor_core.launch, tile=plan.tile, prepared=prepared)
    elif isinstance(plan.tile, rows.Tile):
        tiled = partial(rows.launch, tile=plan.tile)
    elif isinstance(plan.tile, fma.Tile):
        tiled = partial(fma.launch, tile=plan.tile, relay_a=plan.relay)
    else:
        tiled = partial(dot.launch, tile=plan.tile, relay_b=plan.relay)
    if plan.depth >= p.K:
        return tiled(p, a, b, c, out)
    room = torch.empty((cdiv(p.K, plan.depth), *p.batch, p.M, p.N), dtype=torch.float32, device=out.device)
    if isinstance(plan.tile, tensor_core.Tile):
        before = tiled(in_parts(p, plan.depth, room), a, b, None, room)
    else:
        part = replace(p, alpha=1.0, beta=0.0, activation=None, c_strides=None, out_strides=room.stride()[1:])
        before = tiled(part, a, b, None, room, depth=plan.depth, stride_part=room.stride(0))
    return parts.launch(p, room, c, out, before)


def in_parts(p: Problem, depth: int, room: Tensor) -> Problem:
    """The products of each `depth` of K, which divides it, as a batch: they are split, and checked, one by one."""
    return replace(
        p,
        batch=(p.K // depth, *p.batch),
        K=depth,
        a_strides=(depth * p.a_strides[-1], *p.a_strides),
        b_strides=(depth * p.b_strides[-2], *p.b_strides),
        c_strides=None,
        out_strides=room.stride(),
        alpha=1.0,
        beta=0.0,
        activation=None,
    )


def execute(
    plan: Plan, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, prepared: Planes | None = None
) -> None:
    """Computes `p` into `out` as `plan` says, on `out`'s device and its current stream.

    Where there is no memory for the planes of tensor cores, see `in_panels`.
    """
    if out.numel() == 0:
        return
    try:
        launch(plan, p, a, b, c, out, prepared).run(out.device)
    except torch.OutOfMemoryError:
        if not isinstance(plan.tile, tensor_core.Tile):
            raise
        in_panels(plan.tile, p, a, b, c, out, prepared)


SMALLEST_PANEL = 1024  # rows or columns


def in_panels(
    tile: tensor_core.Tile,
    p: Problem,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    out: Tensor,
    prepared: Planes | None = None,
) -> None:
    """Computes `p` on tensor cores; where the planes of A or B do not fit into memory, in halves of the larger side.

    Raises torch.OutOfMemoryError where those of a small panel do not fit either; then, of the result, some panels may
    have been written.
    """
    try:
        whole = tensor_core.launch(p, a, b, c, out, tile, prepared)
    except torch.OutOfMemoryError as e:
        by_rows = p.M >= p.N or prepared is not None
        size = p.M if by_rows else p.N
        if size < 2 * SMALLEST_PANEL:
            needed = 2 * tile.planes * p.batches * (p.M + p.N) * p.K
            raise torch.OutOfMemoryError(
                f"a product of {p.M} x {p.N} x {p.K} needs {needed:,} bytes more for its operands' planes than are "
                'free; free some, or pass precision="ieee", which needs no planes'
            ) from e
    else:
        whole.run(out.device)
        return
    half = cdiv(cdiv(size, 2), tile.BLOCK_N) * tile.BLOCK_N
    for first, last in ((0, half), (half, size)):
        if by_rows:
            part = replace(p, M=last - first)
            a_part, b_part, skip = _from(a, part.batch, (part.M, p.K), p.a_strides, first, -2), b, -2
        else:
            part = replace(p, N=last - first)
            a_part, b_part, skip = a, _from(b, part.batch, (p.K, part.N), p.b_strides, first, -1), -1
        size_of_c = (part.M, part.N)
        c_part = None if c is None else _from(c, part.batch, size_of_c, p.c_strides or (), first, skip)
        out_part = _from(out, part.batch, size_of_c, p.out_strides, first, skip)
        in_panels(tile, part, a_part, b_part, c_part, out_part, prepared)


def _from(
    t: Tensor, batch: tuple[int, ...], size: tuple[int, int], strides: tuple[int, ...], first: int, axis: int
) -> Tensor:
    """The view of `t`, whose elements lie as `strides` say, that starts at `first` of a dimension."""
    return torch.as_strided(t, (*batch, *size), strides, t.storage_offset() + first * strides[axis])
