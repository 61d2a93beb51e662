"""Speed against size, drawn from the square suite's results: docs/plots/square-<gpu>.svg and .png.

    python -m bench.plots [--results bench/results] [--out docs/plots]

needs matplotlib and no GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from triton_sgemm.device import CARDS

from . import table

PLOTS = table.ROOT / "docs" / "plots"


# Okabe and Ito's colours, told apart with any colour vision; cuBLAS is dashed, a peer dotted
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
)  # fmt: skip
GREY = "0.4"


@dataclass(frozen=True)
class Line:
    """How a variant is drawn."""

    label: str
    colour: str
    style: str
    marker: str


LINES = {
    "matmul_tf32": Line("matmul, tf32", VERMILION, "-", "D"),
    "cublas_tf32": Line("cuBLAS, TF32", ORANGE, "--", "s"),
    "matmul_fp32": Line("matmul, fp32", BLUE, "-", "D"),
    "dot_bf16x6": Line("tl.dot, bf16x6", PURPLE, ":", "^"),
    "dot_tf32x3": Line("tl.dot, tf32x3", SKY, ":", "v"),
    "matmul_ieee": Line("matmul, ieee", GREEN, "-", "D"),
    "cublas": Line("cuBLAS, fp32", BLACK, "--", "s"),
}
ROOM = 0.05  # between two labels, of the height


def square(data: pd.DataFrame) -> Figure:
    """GFLOP/s against N, a line a precision and its peers, and the ceilings of the GPU where they are known."""
    timed = data[data["gflops"].notna() & (data["M"] == data["N"]) & (data["N"] == data["K"])]
    timed = timed[timed["variant"].isin(LINES)]
    sizes = sorted(n for n in set(timed["N"]) if n & (n - 1) == 0)
    if not sizes:
        raise ValueError(f"no product of a power of two by {', '.join(LINES)} has a time")
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots()
    ends = []  # height, label and colour of what is named at the right
    for name, line in LINES.items():
        gflops = timed[timed["variant"] == name].set_index("N")["gflops"].sort_index()
        at, beside = gflops[gflops.index.isin(sizes)], gflops[~gflops.index.isin(sizes)]
        axes.plot(at.index, at, line.style, color=line.colour, marker=line.marker, markersize=5)
        axes.plot(beside.index, beside, line.marker, color=line.colour, markersize=5, fillstyle="none")
        if not at.empty:
            ends.append((float(at.iloc[-1]), line.label, line.colour))

    gpu = str(data["gpu"].iloc[0])
    top = 1.1 * float(timed["gflops"].max())
    for label, height in ceilings(gpu):
        if height < max(1.3 * top, 70e3):
            axes.axhline(height, color=GREY, linewidth=1, zorder=0)
            ends.append((height, f"{label}: {height:,.0f}", GREY))
    top = max(top, 1.06 * max(height for height, *_ in ends))
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, top)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("M = N = K" + ("   (hollow: beside a power of two)" if set(timed["N"]) - set(sizes) else ""))
    axes.set_ylabel("GFLOP/s, counted as 2 M N K")
    axes.set_title(f"float32 matrix products, {gpu}, {data['date'].iloc[0]}")
    axes.spines[["top", "right"]].set_visible(False)
    name_ends(axes, ends, top)
    return figure


def ceilings(gpu: str) -> list[tuple[str, float]]:
    """What bounds the lines, by name, in GFLOP/s; nothing for a GPU whose peaks CARDS does not have."""
    card = next((card for card in CARDS.values() if card.name == gpu), None)
    if not (card and card.fma_peak_gflops and card.fp16_tflops and card.tf32_tflops):
        return []
    return [
        ("FMA units", card.fma_peak_gflops),
        ("fp16 tensor cores / 3", 1e3 * card.fp16_tflops / 3),
        ("TF32 tensor cores", 1e3 * card.tf32_tflops),
        ("fp16 tensor cores", 1e3 * card.fp16_tflops),
    ]


def name_ends(axes: Axes, ends: list[tuple[float, str, str]], top: float) -> None:
    """A label beside the right end of each line."""
    ends = sorted(ends)
    heights = [height / top for height, *_ in ends]
    for (_, label, colour), height, at in zip(ends, heights, spread(heights), strict=True):
        axes.plot([1, 1.03], [height, at], color=colour, linewidth=0.7, transform=axes.transAxes, clip_on=False)
        axes.text(1.035, at, label, color=colour, va="center", fontsize=9.5, transform=axes.transAxes)


def spread(heights: list[float]) -> list[float]:
    """Ascending heights, moved apart as little as it takes: ROOM between two at least, none below 0."""
    at = list(heights)
    for _ in range(1000):
        moved = False
        for i in range(len(at) - 1):
            lack = ROOM - (at[i + 1] - at[i])
            if lack > 1e-6:
                at[i], at[i + 1], moved = at[i] - lack / 2, at[i + 1] + lack / 2, True
        lift = max(0.0, -at[0]) if at else 0.0
        if not moved and not lift:
            break
        at[:1] = [height + lift for height in at[:1]]
    return at


def main() -> None:
    """Draws a plot for each GPU that has results."""
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=__doc__)
    parser.add_argument("--results", type=Path, default=table.RESULTS, help="folder of <gpu>/square.csv")
    parser.add_argument("--out", type=Path, default=PLOTS, help="folder of the pictures")
    args = parser.parse_args()
    found = sorted(args.results.glob("*/square.csv"))
    if not found:
        parser.error(f"no <gpu>/square.csv in {args.results}; make results measures one")
    args.out.mkdir(parents=True, exist_ok=True)
    # the same file from the same figures: fixed ids, no date of drawing
    matplotlib.rcParams |= {"svg.hashsalt": "square", "svg.fonttype": "none", "font.family": "sans-serif"}
    for path in found:
        figure = square(table.read(path))
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            picture = args.out / f"square-{path.parent.name}.{kind}"
            figure.savefig(picture, dpi=160, metadata=metadata)
            print(f"written: {picture}")


if __name__ == "__main__":
    main()
