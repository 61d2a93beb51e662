"""The ladder as bars, from the chapter suite."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from triton_sgemm.variants import Variant

from ..catalog import twins
from .style import BLACK, CUDA, NAMES, OVER, TWIN, blank, title

BAR = 0.38  # of the height that a rung has


@dataclass(frozen=True)
class Step:
    """A rung as measured: its raw CUDA and its twin, each beside its row."""

    name: str
    cuda: tuple[Variant, pd.Series]
    twin: tuple[Variant, pd.Series]


def steps(data: pd.DataFrame) -> list[Step]:
    """The rungs of which both kernels have a time, from the lowest up; raises ValueError where there is none."""
    rows = {row["variant"]: row for _, row in data[data["gflops"].notna()].iterrows()}
    found = [
        Step(f"{cuda.rung} {cuda.name.removesuffix('_cuda')}", (cuda, rows[cuda.name]), (twin, rows[twin.name]))
        for cuda, twin in twins()
        if {cuda.name, twin.name} <= rows.keys()
    ]
    if not found:
        raise ValueError("no rung has a time")
    return found


def ladder(data: pd.DataFrame) -> Figure:
    """Percent of cuBLAS, two bars a rung."""
    rungs = steps(data)
    size = rungs[0].cuda[1]
    figure, [axes] = blank()
    for colour, what, shift in ((CUDA, "CUDA", -BAR / 2), (TWIN, "Triton or Gluon", BAR / 2)):
        kernels = [step.cuda if what == "CUDA" else step.twin for step in rungs]
        percents = [row["pct_cublas"] for _, row in kernels]
        at = [i + shift for i in range(len(rungs))]
        axes.barh(at, percents, BAR, color=colour, label=what)
        for y, percent, (v, _) in zip(at, percents, kernels, strict=True):
            name = v.backend.capitalize() if v.name.endswith(v.backend) else v.name
            says = f"{percent:.1f}" if v.backend == "cuda" else f"{percent:.1f}  {name}"
            axes.text(percent + 0.8, y, says, va="center", fontsize=NAMES, bbox=OVER)
    cublas = data[data["variant"] == "cublas"]["gflops"]
    axes.axvline(100, color=BLACK, linestyle="--", linewidth=1, zorder=0)
    if not cublas.empty:
        axes.text(99.2, -0.45, f"cuBLAS SGEMM: {cublas.iloc[0]:,.0f} GFLOP/s", ha="right", fontsize=NAMES)
    axes.set_yticks(range(len(rungs)), [step.name for step in rungs])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * max(100, *(row["pct_cublas"] for step in rungs for _, row in (step.cuda, step.twin))))
    axes.set_xlabel(f"percent of cuBLAS, M = N = K = {size['N']}")
    axes.set_title(title("The ladder", data))
    axes.legend(loc="center right", frameon=False)
    return figure
