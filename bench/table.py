"""Results as CSV files and as tables: the format, and README's tables made from the files.

    python -m bench.table

writes the tables between the markers `<!-- results SUITE GPU -->` and `<!-- end -->` of every Markdown file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd

from .compiled import Compiled
from .suites import Case

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"

CASE = ["M", "N", "K", "batch", "layout"]  # the columns that make a Case, in its order
MANY = 10  # shapes: more than these are the rows of a table, not its columns


@dataclass(frozen=True)
class Row:
    """One variant at one shape: the columns of a results file, in their order.

    `gflops` and `pct_cublas` (100 * cuBLAS's time over this one's, same run) follow from `ms`; `rel_err` is relative
    Frobenius and `max_err` max |dC| / (|A||B|), both against float64; `fallback` is the share of tiles that
    a faster algorithm left to strict float32; `ms_eager` is the time of an eager call where `ms` is of graph replays;
    `note` says why a figure is missing.
    """

    variant: str
    backend: str
    algorithm: str
    precision: str
    layout: str
    batch: int
    M: int
    N: int
    K: int
    ms: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    gflops: float | None = None
    pct_cublas: float | None = None
    rel_err: float | None = None
    max_err: float | None = None
    fallback: float | None = None
    gpu: str = ""
    driver: str = ""
    torch: str = ""
    triton: str = ""
    commit: str = ""
    date: str = ""
    ms_eager: float | None = None
    note: str = ""


COLUMNS = [f.name for f in fields(Row)]


def frame(rows: list[Row]) -> pd.DataFrame:
    """The rows as a table with the columns of a results file."""
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)


def save(rows: list[Row], path: Path) -> None:
    """Writes a results file; the old one stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    frame(rows).to_csv(partial, index=False, float_format="%.6g")
    os.replace(partial, path)


def text(data: pd.DataFrame, compiled: dict[str, Compiled] | None = None) -> str:
    """One Markdown table a shape, as printed and as put into README; with the figures of compiled code, where given."""
    parts = []
    for key, shape in data.groupby(CASE, sort=False):
        columns: dict[str, Any] = {
            "variant": shape["variant"],
            "backend": shape["backend"],
            "precision": shape["precision"],
            "ms": shape["ms"].map(_number("{:.4g}")),
            "GFLOP/s": shape["gflops"].map(_number("{:,.0f}")),
            "% of cuBLAS": shape["pct_cublas"].map(_number("{:.1f}")),
            "rel. error": shape["rel_err"].map(_number("{:.2e}")),
            "max error": shape["max_err"].map(_number("{:.2e}")),
        }
        if shape["ms_eager"].notna().any():
            columns["ms eager"] = shape["ms_eager"].map(_number("{:.4g}"))
        if compiled:
            code = [compiled[name] for name in shape["variant"]]
            columns[f"registers (sm_{code[0].arch})"] = [_or_empty(c.registers) for c in code]
            columns["shared bytes"] = [_or_empty(c.shared_bytes) for c in code]
            columns["spills"] = [_or_empty(c.spills if c.opcodes else None) for c in code]
        note = shape["note"].map("{}".format).replace("nan", "")
        if note.any():
            columns["note"] = note
        body = pd.DataFrame(columns)
        align = ("left", "left", "left") + ("right",) * (len(columns) - 3)
        if "note" in columns:
            align = (*align[:-1], "left")
        parts.append(
            f"**{_case(key).title}**\n\n" + body.to_markdown(index=False, colalign=align, disable_numparse=True)
        )
    return "\n\n".join(parts)


def across(data: pd.DataFrame) -> str:
    """Percent of cuBLAS of every variant at every shape, cuBLAS itself in GFLOP/s: a suite in one table.

    Of more than MANY shapes each is a row, and the last row has geometric means, of variants that took every shape.
    """
    data = data.assign(shape=_labels(data))
    rows, columns = list(dict.fromkeys(data["variant"])), list(dict.fromkeys(data["shape"]))
    percent = data.pivot(index="variant", columns="shape", values="pct_cublas").reindex(index=rows, columns=columns)
    cublas = data[data["variant"] == "cublas"].set_index("shape").reindex(columns)
    gflops = cublas["gflops"].map(_number("{:,.0f}"))
    if len(columns) <= MANY:
        body = percent.map(_number("{:.1f}")).reset_index()
        body.loc[len(body)] = ["*cuBLAS, GFLOP/s*", *gflops]
    else:
        body = pd.DataFrame(
            {
                ("batch x " if data["batch"].nunique() > 1 else "") + "M x N x K": [*columns, "*geometric mean*"],
                "cuBLAS, ms": [*cublas["ms"].map(_number("{:.4g}")), ""],
                "cuBLAS, GFLOP/s": [*gflops, ""],
            }
        )
        for variant, percents in percent.drop(index="cublas", errors="ignore").iterrows():
            mean = geometric_mean(percents) if percents.notna().all() else math.nan
            body[f"{variant}, %"] = [_number("{:.1f}")(value) for value in (*percents, mean)]
    align = ("left",) + ("right",) * (len(body.columns) - 1)
    return body.to_markdown(index=False, colalign=align, disable_numparse=True)


def _case(key: Iterable[Any]) -> Case:
    """From the values of the columns CASE."""
    return Case(*key)


def _labels(data: pd.DataFrame) -> list[str]:
    """Each row's shape as `Case` writes it, NN too where there are other layouts."""
    cases = [_case(key) for key in data[CASE].itertuples(index=False)]
    if data["layout"].nunique() == 1:
        return [str(case) for case in cases]
    return [f"{replace(case, layout='NN')}:{case.layout}" for case in cases]


def printed(data: pd.DataFrame) -> str:
    """A suite as the bench shows it: `text`, or, of more than MANY shapes, `across` and every note."""
    if len(data.groupby(CASE)) <= MANY:
        return text(data)
    noted = data.assign(shape=_labels(data))[data["note"].astype(bool)]
    notes = [f"{row.variant} at {row.shape}: {row.note}" for row in noted.itertuples()]
    return "\n\n".join([across(data), *(["\n".join(notes)] if notes else [])])


def _number(form: str) -> Callable[[float], str]:
    return lambda value: "" if pd.isna(value) else form.format(value)


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)


def provenance(data: pd.DataFrame) -> str:
    """Where and when the figures were measured."""
    first = data.iloc[0]
    return (
        f"{first['gpu']}, driver {first['driver']}, torch {first['torch']}, Triton {first['triton']}, "
        f"{first['date']}, commit {first['commit']}; medians, N(0,1) operands, cuBLAS with TF32 off in the same run."
    )


def rendered(suite: str, gpu: str) -> str:
    """A suite's committed results as Markdown."""
    data = pd.read_csv(RESULTS / gpu / f"{suite}.csv", dtype={"commit": str})
    body = text(data) if len(data.groupby(CASE)) == 1 else across(data)
    return f"{body}\n\n{provenance(data)}"


def filled(markdown: str) -> str:
    """`markdown` with every table between markers made anew from its results file."""
    pattern = re.compile(r"(<!-- results (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda m: f"{m[1]}\n{rendered(m[2], m[3])}\n\n{m[4]}", markdown)


def documents() -> list[Path]:
    """The Markdown files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Rewrites the tables of README and docs."""
    for path in documents():
        old = path.read_text()
        new = filled(old)
        if new != old:
            path.write_text(new)
        print(f"{path.relative_to(ROOT)}: {'rewritten' if new != old else 'up to date'}")


if __name__ == "__main__":
    main()
