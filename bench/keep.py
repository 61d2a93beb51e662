"""Rows kept as they come: an interrupted measurement leaves what it has in <name>.part.csv, and the old file whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from . import table
from .environment import Environment


def frame(rows: Iterable[Any], where: Environment) -> pd.DataFrame:
    """Rows, which are dataclasses, as a table that says where they were measured."""
    return pd.DataFrame(map(asdict, rows)).assign(**asdict(where))


def kept(rows: Iterable[Any], where: Environment, path: Path | None) -> pd.DataFrame:
    """The rows as a table, written to `path`, where there is one, once all have come."""
    found: list[Any] = []
    part = path.with_suffix(".part.csv") if path else None
    for row in rows:
        found.append(row)
        if part:
            table.save_frame(frame(found, where), part)
    if path and part and found:
        part.replace(path)
    return frame(found, where)
