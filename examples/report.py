"""What an example found: printed, and kept as a results file for docs/examples.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from bench import table
from bench.environment import environment
from triton_sgemm.device import gpu


def report(name: str, rows: Sequence[Any], folder: Path | None) -> None:
    """Prints the dataclasses `rows` as the table of the example `name`; writes them where they came from a GPU."""
    data = pd.DataFrame([asdict(row) for row in rows]).assign(**asdict(environment()))
    print(table.EXAMPLES[name](data))
    if folder and torch.cuda.is_available():
        path = folder / gpu(torch.cuda.current_device()).slug / f"example_{name}.csv"
        table.save_frame(data, path)
        print(f"\nwritten: {path}")
    elif folder:
        print("\nnothing written: no CUDA GPU")
