"""Which algorithm computes a problem, with which tile, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .algorithms import dot
from .device import Gpu
from .problem import Problem


@dataclass(frozen=True)
class Plan:
    """An algorithm's name, its tile, and the rule that chose them."""

    algorithm: str
    tile: dot.Tile
    why: str


def plan(problem: Problem, gpu: Gpu | None) -> Plan:
    """Chooses for a problem and a GPU (None: the interpreter)."""
    if gpu is not None and dot.programs(problem, dot.LARGE) < gpu.sms:
        return Plan("dot", dot.SMALL, f"tiles of {dot.LARGE} would leave some of the {gpu.sms} SMs idle")
    return Plan("dot", dot.LARGE, "strict float32 serves every precision")
