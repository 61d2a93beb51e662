"""Every rung under two roofs, from the chapter suite: what memory and what shared memory let a tile reach.

Where a rung stands across follows from its tile alone, as in the chapter; how high it stands was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from math import atan, degrees, sqrt

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from triton_sgemm.device import ARCHS, Card

from ..predicted import Tiling, tiling
from .ladder import steps
from .style import BLACK, CUDA, GREY, NAMES, OVER, TWIN, blank, card_of, fraction, name_ends, spread, title

NEAR = 1.5  # times: rungs no further apart across are named in one column


def dram(data: pd.DataFrame) -> Figure:
    """GFLOP/s against arithmetic intensity, under the slope of the GPU's memory."""
    card = _known(data)
    figure, axes = _under_a_roof(data, card, lambda t: t.flop_per_byte, card.ridge, f"{card.dram_gbs:,.0f} GB/s")
    axes.set_xlabel("FLOP per byte if every global load came from memory (above the slope: served by caches)")
    axes.set_title(title("The ladder under the roof of memory", data))
    return figure


def shared(data: pd.DataFrame) -> Figure:
    """GFLOP/s against FMAs for each element loaded, under the slope of shared memory."""
    card = _known(data)
    balance = ARCHS[card.capability].balance
    says = f"{balance:g} FMAs a shared load"
    figure, axes = _under_a_roof(data, card, _fma_per_load, balance, says)
    axes.set_xlabel("FMAs for each element that a thread loads from shared memory (rungs 1 and 2: from global memory)")
    axes.set_title(title("The ladder under the roof of shared memory", data))
    return figure


def _fma_per_load(t: Tiling) -> float:
    return t.fma_per_load or 1 / t.rim  # what is not staged comes through the same memory, as L1


def _known(data: pd.DataFrame) -> Card:
    """The GPU that was measured; raises ValueError where what it could do is not known."""
    card = card_of(data)
    if not (card and card.fma_peak_gflops):
        raise ValueError(f"what {data['gpu'].iloc[0]} could do is not known")
    return card


def _under_a_roof(
    data: pd.DataFrame, card: Card, across: Callable[[Tiling], float], knee: float, slope: str
) -> tuple[Figure, Axes]:
    """The rungs, at `across` of their tiles and the speed measured, below the FMA units and a slope up to `knee`."""
    rungs, peak = steps(data), card.fma_peak_gflops or 0.0
    figure, [axes] = blank()
    points: list[tuple[float, float, str]] = []
    for step in rungs:
        pair = []
        for (v, row), marker, colour, size in ((step.cuda, "s", CUDA, 10), (step.twin, "D", TWIN, 6)):
            tile = tiling(v)
            if tile is None:
                raise ValueError(f"{v.name} has no tile")
            pair.append((across(tile), float(row["gflops"])))
            axes.plot(*pair[-1], marker, color=colour, markeredgecolor="white", markersize=size, zorder=3)
        axes.plot(*zip(*pair, strict=True), color=GREY, linewidth=0.7)
        x, y = (sqrt(one * other) for one, other in zip(*pair, strict=True))
        points.append((x, y, step.name))

    left, right = min(x for x, *_ in points) / 2, 8 * max(x for x, *_ in points)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(0.6 * min(y for _, y, _ in points), 2 * peak))
    axes.plot([left, knee, right], [peak * left / knee, peak, peak], color=GREY, linewidth=1.5, zorder=0)
    ends = [(peak, f"FMA units: {peak:,.0f}", GREY)]
    cublas = data[data["variant"] == "cublas"]["gflops"]
    if not cublas.empty:
        axes.axhline(cublas.iloc[0], color=BLACK, linestyle="--", linewidth=1, zorder=0)
        ends.append((float(cublas.iloc[0]), f"cuBLAS SGEMM: {cublas.iloc[0]:,.0f}", BLACK))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.9g}")
    axes.set_ylabel(f"GFLOP/s, M = N = K = {rungs[0].cuda[1]['N']}")
    axes.plot([], [], "s", color=CUDA, markersize=10, label="CUDA")
    axes.plot([], [], "D", color=TWIN, markersize=6, label="Triton or Gluon")
    axes.legend(loc="lower right", frameon=False)
    x, climb = 0.6 * knee, peak / knee
    axes.text(
        x, 0.94 * climb * x, slope, color=GREY, fontsize=NAMES, ha="center", va="top",
        rotation=degrees(atan(climb)), rotation_mode="anchor", transform_rotates_text=True,
    )  # fmt: skip
    _name_points(axes, points)
    name_ends(axes, ends)
    return figure, axes


def _name_points(axes: Axes, points: list[tuple[float, float, str]]) -> None:
    """A label at the right of each point, those of points that are NEAR one below the other."""
    columns: list[list[tuple[float, float, str]]] = []
    for point in sorted(points):
        if columns and point[0] <= NEAR * columns[-1][-1][0]:
            columns[-1].append(point)
        else:
            columns.append([point])
    for column in columns:
        column.sort(key=lambda point: point[1])
        at = [fraction(axes, x, y) for x, y, _ in column]
        right = max(x for x, _ in at) + 0.03
        for (x, y), height, (*_, name) in zip(at, spread([y for _, y in at]), column, strict=True):
            axes.plot([x, right], [y, height], color=GREY, linewidth=0.7, transform=axes.transAxes, zorder=1)
            axes.text(right + 0.005, height, name, va="center", fontsize=NAMES, bbox=OVER, transform=axes.transAxes)
