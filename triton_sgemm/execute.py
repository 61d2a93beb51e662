"""Carries out a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .algorithms import dot, fma, parts, rows
from .launch import Launch, cdiv
from .plan import Plan
from .problem import Problem


def execute(plan: Plan, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """Computes `p` into `out` as `plan` says, on `out`'s device and its current stream."""
    if out.numel() == 0:
        return
    if plan.transposed:
        p, a, b = p.transposed(), b, a
    if isinstance(plan.tile, rows.Tile):
        rows.launch(p, a, b, c, out, plan.tile).run(out.device)
        return
    launch: Callable[..., Launch]
    if isinstance(plan.tile, fma.Tile):
        launch = partial(fma.launch, tile=plan.tile, relay_a=plan.relay)
    else:
        launch = partial(dot.launch, tile=plan.tile, relay_b=plan.relay)
    if plan.depth >= p.K:
        launch(p, a, b, c, out).run(out.device)
        return
    room = torch.empty((cdiv(p.K, plan.depth), *p.batch, p.M, p.N), dtype=torch.float32, device=out.device)
    part = replace(p, alpha=1.0, beta=0.0, c_strides=None, out_strides=room.stride()[1:])
    launch(part, a, b, None, room, depth=plan.depth, stride_part=room.stride(0)).run(out.device)
    parts.launch(p, room, c, out).run(out.device)
