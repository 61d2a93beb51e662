"""What the pictures share: colours, how a variant is drawn, names beside what they name, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from triton_sgemm.device import CARDS, Card

# Okabe and Ito's colours, told apart with any colour vision; cuBLAS is dashed, a peer dotted
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
)  # fmt: skip
GREY = "0.4"
CUDA, TWIN = SKY, GREEN  # a rung in raw CUDA, and in Triton or Gluon


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
    "cublas": Line("cuBLAS SGEMM", BLACK, "--", "s"),
}
ROOM = 0.05  # between two labels, of the height
NAMES = 9.5  # points
OVER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # a name hides the line that it stands on


def blank(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of the size that all have, and its axes side by side."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = [*figure.subplots(1, columns, squeeze=False)[0]]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def title(what: str, data: pd.DataFrame) -> str:
    """What a picture shows, the GPU and the date."""
    return f"{what}, {data['gpu'].iloc[0]}, {data['date'].iloc[0]}"


def card_of(data: pd.DataFrame) -> Card | None:
    """The GPU that was measured, as its maker describes it; None where CARDS does not have it."""
    return next((card for card in CARDS.values() if card.name == data["gpu"].iloc[0]), None)


def fraction(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point of the data is, of the width and of the height; limits and scales are set by then."""
    across, up = (axes.transScale + axes.transLimits).transform((x, y))
    return float(across), float(up)


def name_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """A label beside the right end of each line, from its height, label and colour."""
    ends = sorted(ends)
    heights = [fraction(axes, 1, height)[1] for height, *_ in ends]
    for (_, label, colour), height, at in zip(ends, heights, spread(heights), strict=True):
        axes.plot([1, 1.03], [height, at], color=colour, linewidth=0.7, transform=axes.transAxes, clip_on=False)
        axes.text(1.035, at, label, color=colour, va="center", fontsize=NAMES, transform=axes.transAxes)


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


def drawn(figure: Figure, name: str, kind: str) -> bytes:
    """The figure as a file, the same from the same figures: ids from its name, no date of drawing."""
    file = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(file, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()
