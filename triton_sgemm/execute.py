"""Carries out a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .algorithms import dot, fma, parts, rows
from .launch import cdiv
from .plan import Plan
from .problem import Problem


def execute(plan: Plan, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """Computes `p` into `out` as `plan` says, on `out`'s device and its current stream."""
    if plan.transposed:
        p, a, b = p.transposed(), b, a
    if isinstance(plan.tile, rows.Tile):
        rows.launch(p, a, b, c, out, plan.tile).run(out.device)
        return
    launch = fma.launch if isinstance(plan.tile, fma.Tile) else partial(dot.launch, relay_b=plan.relay_b)
    if plan.depth >= p.K:
        launch(p, a, b, c, out, plan.tile).run(out.device)
        return
    room = torch.empty((cdiv(p.K, plan.depth), *p.batch, p.M, p.N), dtype=torch.float32, device=out.device)
    part = replace(p, alpha=1.0, beta=0.0, c_strides=None, out_strides=room.stride()[1:])
    launch(part, a, b, None, room, plan.tile, plan.depth, room.stride(0)).run(out.device)
    parts.launch(p, room, c, out).run(out.device)
