"""The pictures of docs/plots, drawn from results: one file each, in a style that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from .. import table
from .errors import errors
from .ladder import ladder
from .rooflines import dram, shared
from .square import square
from .style import drawn

PLOTS = table.ROOT / "docs" / "plots"


@dataclass(frozen=True)
class Picture:
    """A plot, what it shows in a few words, and the results file that it is drawn from."""

    name: str
    says: str
    results: str
    draw: Callable[[pd.DataFrame], Figure]

    def of(self, folder: Path, kind: str) -> bytes:
        """The file, from a GPU's results; raises ValueError where these have not what it takes."""
        path = folder / f"{self.results}.csv"
        if not path.exists():
            raise ValueError(f"no {path}")
        return drawn(self.draw(table.read(path)), self.name, kind)


PICTURES = {
    picture.name: picture
    for picture in (
        Picture("square", "GFLOP/s against N", "square", square),
        Picture("ladder", "The ladder, percent of cuBLAS", "chapter", ladder),
        Picture("roofline-dram", "The ladder under the roof of memory", "chapter", dram),
        Picture("roofline-shared", "The ladder under the roof of shared memory", "chapter", shared),
        Picture("errors", "Error against K", "precision", errors),
    )
}
