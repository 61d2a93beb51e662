"""Speed against size, from the square suite."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from .style import GREY, LINES, blank, card_of, name_ends, title


def square(data: pd.DataFrame) -> Figure:
    """GFLOP/s against N, a line a precision and its peers, and the ceilings of the GPU where they are known."""
    timed = data[data["gflops"].notna() & (data["M"] == data["N"]) & (data["N"] == data["K"])]
    timed = timed[timed["variant"].isin(LINES)]
    sizes = sorted(n for n in set(timed["N"]) if n & (n - 1) == 0)
    if not sizes:
        raise ValueError(f"no product of a power of two by {', '.join(LINES)} has a time")
    figure, [axes] = blank()
    ends = []  # height, label and colour of what is named at the right
    for name, line in LINES.items():
        gflops = timed[timed["variant"] == name].set_index("N")["gflops"].sort_index()
        at, beside = gflops[gflops.index.isin(sizes)], gflops[~gflops.index.isin(sizes)]
        axes.plot(at.index, at, line.style, color=line.colour, marker=line.marker, markersize=5)
        axes.plot(beside.index, beside, line.marker, color=line.colour, markersize=5, fillstyle="none")
        if not at.empty:
            ends.append((float(at.iloc[-1]), line.label, line.colour))

    for label, height in ceilings(data):
        axes.axhline(height, color=GREY, linewidth=1, zorder=0)
        ends.append((height, f"{label}: {height:,.0f}", GREY))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("M = N = K" + ("   (hollow: beside a power of two)" if set(timed["N"]) - set(sizes) else ""))
    axes.set_ylabel("GFLOP/s, counted as 2 M N K")
    axes.set_title(title("float32 matrix products", data))
    name_ends(axes, ends)
    return figure


def ceilings(data: pd.DataFrame) -> list[tuple[str, float]]:
    """What bounds the lines, by name, in GFLOP/s; nothing for a GPU whose peaks CARDS does not have."""
    card = card_of(data)
    if not (card and card.fma_peak_gflops and card.fp16_tflops and card.tf32_tflops):
        return []
    return [
        ("FMA units", card.fma_peak_gflops),
        ("a third of fp16, for fp32", 1e3 * card.fp16_tflops / 3),
        ("TF32 tensor cores, cuBLAS's", 1e3 * card.tf32_tflops),
        ("fp16 tensor cores, for tf32", 1e3 * card.fp16_tflops),
    ]
