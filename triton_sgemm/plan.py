"""Which tile computes a problem, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .algorithms import dot, fma
from .device import Gpu
from .problem import Problem

FILLED = 0.9  # the share of the SMs that must have a program


@dataclass(frozen=True)
class Plan:
    """How a problem is computed, and the rule that chose it.

    `depth` is the share of K of one program; `transposed` computes C' = B' @ A'.
    """

    tile: dot.Tile | fma.Tile
    why: str
    depth: int
    transposed: bool = False


def plan(problem: Problem, gpu: Gpu | None) -> Plan:
    """Chooses for a problem and a GPU (None: the interpreter).

    The largest tile that still gives (nearly) every SM a program: larger tiles load less an output, but
    idle SMs cost more than that. Measured on an H200: docs/worklog/001-dot-tiles.md; since 004 the
    order of the two largest wants another measurement.
    """
    enough = FILLED * (gpu.sms if gpu else 1)
    for tile in dot.TILES:
        if dot.programs(problem, tile) >= enough:
            return Plan(tile, f"the largest tile with {enough:.0f} programs or more", problem.K)
    return Plan(dot.TILES[-1], "the smallest tile: the output is too small to fill the GPU", problem.K)
