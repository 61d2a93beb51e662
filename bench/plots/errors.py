"""Error against K, from the figures of `python -m bench.precision`."""

from __future__ import annotations

from math import log10

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from triton_sgemm.testing import U, random_bound

from ..precision import VARIANTS
from .style import GREY, LINES, NAMES, blank, name_ends, title

OPERANDS = {"normal": "N(0,1)", "uniform": "U(0,1)"}


def errors(data: pd.DataFrame) -> Figure:
    """The largest error of an element against K, a line a precision, operands of either sign and positive ones."""
    found = data[data["data"].isin(OPERANDS) & data["variant"].isin(VARIANTS) & (data["max_err"] > 0)]
    if found["K"].nunique() < 2:
        raise ValueError(f"no errors at several K on data {' or '.join(OPERANDS)}")
    figure, panels = blank(columns=len(OPERANDS))
    depths = sorted(set(found["K"]))
    low, high = 0.5 * min(U, found["max_err"].min()), 2 * max(found["max_err"].max(), random_bound(depths[-1]))
    for axes, (kind, operands) in zip(panels, OPERANDS.items(), strict=True):
        axes.set(xscale="log", yscale="log", xlim=(0.7 * depths[0], 1.4 * depths[-1]), ylim=(low, high))
        ends = _draw(axes, found[found["data"] == kind])
        axes.plot(depths, [random_bound(K) for K in depths], color=GREY, linewidth=1, zorder=0)
        axes.axhline(U, color=GREY, linewidth=1, zorder=0)
        axes.set_xticks([16**i for i in range(9) if 16**i <= depths[-1]])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter(lambda y, _: f"1e{round(log10(y))}")
        axes.minorticks_off()
        axes.set_title(operands, fontsize=NAMES)
    panels[0].set_ylabel("largest error of an element, over (|A||B|)")
    panels[1].tick_params(labelleft=False)
    # the lines are the same in both: named once
    name_ends(panels[1], [*ends, (U, "2⁻²⁴", GREY), (random_bound(depths[-1]), "(4 + 1.5 √K) 2⁻²⁴", GREY)])
    *shallow, (deep, _) = found.groupby("M", sort=False)["K"].max().items()
    sizes = [*(f"{M} up to K = {K:,}" for M, K in shallow), f"{deep}{' beyond' if shallow else ''}"]
    figure.supxlabel(f"K   (M = N = {', '.join(sizes)})", fontsize="medium")
    figure.suptitle(title("Error against K", data))
    return figure


def _draw(axes: Axes, found: pd.DataFrame) -> list[tuple[float, str, str]]:
    """The lines, each with smaller markers than those below it; their ends with label and colour."""
    ends = []
    for size, name in zip((9, 7.5, 6, 4.5, 3), VARIANTS, strict=True):
        line = LINES[name]
        at = found[found["variant"] == name].set_index("K")["max_err"].sort_index()
        axes.plot(at.index, at, line.style, color=line.colour, marker=line.marker, markersize=size)
        if not at.empty:
            ends.append((float(at.iloc[-1]), line.label, line.colour))
    return ends
