"""Results as CSV files and as tables: the format, and README's tables made from the files.

    python -m bench.table

writes the tables between the markers `<!-- results SUITE GPU -->`, `<!-- precision GPU -->`, `<!-- calls GPU -->`,
`<!-- profile GPU -->`, `<!-- choices GPU -->` or `<!-- example NAME GPU -->` and `<!-- end -->` of every Markdown file.
"""

from __future__ import annotations

import argparse
import json
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

CASE = ["M", "N", "K", "batch", "layout", "data"]  # the columns that make a Case, in its order
BASELINES = {"cublas": "cuBLAS", "cublas_tf32": "cuBLAS TF32"}  # variants, as a table names them
ERRORS = {
    "rel_err": "Relative error, Frobenius",
    "max_err": "Largest error of an element, over (|A||B|)",
    "bias": "Mean signed error, over (|A||B|)",
}
MARKDOWN, PLAIN = "pipe", "simple"  # forms of a table, as tabulate calls them
MANY = 10  # shapes: more than these are the rows of a table, not its columns


@dataclass(frozen=True)
class Row:
    """One variant at one shape: the columns of a results file, in their order.

    `gflops` and `pct_cublas` (100 * cuBLAS's time over this one's, same run, cuBLAS with TF32 for a tf32 row) follow
    from `ms`; `rel_err` is relative Frobenius and `max_err` max |dC| / (|A||B|), both against float64; `fallback` is
    the share of elements that a faster algorithm left to strict float32; `ms_eager` is the time of an eager call where
    `ms` is of graph replays; `note` says why a figure is missing; `data` is what the operands hold.
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
    data: str = "normal"

    @property
    def case(self) -> Case:
        """What was measured."""
        return Case(self.M, self.N, self.K, self.batch, self.layout, self.data)


COLUMNS = [f.name for f in fields(Row)]


def frame(rows: list[Row]) -> pd.DataFrame:
    """The rows as a table with the columns of a results file."""
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)


def save(rows: list[Row], path: Path) -> None:
    """Writes a results file."""
    save_frame(frame(rows), path)


def save_frame(data: pd.DataFrame, path: Path) -> None:
    """Writes a CSV file; the old one stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    data.to_csv(partial, index=False, float_format="%.6g")
    os.replace(partial, path)


def json_text(data: pd.DataFrame) -> str:
    """The rows as JSON, numbers as a CSV file has them, null where it has nothing."""
    return json.dumps([{k: _plain(v) for k, v in row.items()} for row in data.to_dict("records")], indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    return value


def read(path: Path) -> pd.DataFrame:
    """A results file; one written before it said what the operands held has N(0,1)."""
    data = pd.read_csv(path, dtype={"commit": str})
    return data if "data" in data else data.assign(data="normal")


def text(data: pd.DataFrame, compiled: dict[str, Compiled] | None = None, form: str = MARKDOWN) -> str:
    """One table a shape, as printed and as put into README; with the figures of compiled code, where given."""
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
        if shape["fallback"].notna().any():
            columns["fallback"] = shape["fallback"].map(SHARE)
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
        title = emphasised(_case(key).title, "**", form)
        parts.append(
            f"{title}\n\n" + body.to_markdown(index=False, tablefmt=form, colalign=align, disable_numparse=True)
        )
    return "\n\n".join(parts)


def across(data: pd.DataFrame, form: str = MARKDOWN) -> str:
    """Percent of cuBLAS of every variant at every shape, cuBLAS itself in GFLOP/s: a suite in one table.

    Of more than MANY shapes each is a row, and the last row has geometric means, of variants that took every shape.
    The shares of tiles that fell back are there for variants of which any did.
    """
    data = data.assign(shape=_labels(data))
    rows, columns = list(dict.fromkeys(data["variant"])), list(dict.fromkeys(data["shape"]))
    percent = data.pivot(index="variant", columns="shape", values="pct_cublas").reindex(index=rows, columns=columns)
    baselines = {
        label: data[data["variant"] == name].set_index("shape").reindex(columns)
        for name, label in BASELINES.items()
        if name == "cublas" or name in rows
    }
    shares = {
        name: data[data["variant"] == name].set_index("shape")["fallback"].reindex(columns).map(SHARE)
        for name in rows
        if (data.loc[data["variant"] == name, "fallback"] > 0).any()
    }
    if len(columns) <= MANY:
        body = percent.map(_number("{:.1f}")).reset_index()
        for label, theirs in baselines.items():
            body.loc[len(body)] = [
                emphasised(f"{label}, GFLOP/s", "*", form),
                *theirs["gflops"].map(_number("{:,.0f}")),
            ]
        for name, share in shares.items():
            body.loc[len(body)] = [emphasised(f"{name}, fallback", "*", form), *share]
    else:
        shape = ("batch x " if data["batch"].nunique() > 1 else "") + "M x N x K"
        body = pd.DataFrame({shape: [*columns, emphasised("geometric mean", "*", form)]})
        for label, theirs in baselines.items():
            body[f"{label}, ms"] = [*theirs["ms"].map(_number("{:.4g}")), ""]
            body[f"{label}, GFLOP/s"] = [*theirs["gflops"].map(_number("{:,.0f}")), ""]
        for variant in [name for name in rows if name not in BASELINES]:
            percents = percent.loc[variant]
            mean = geometric_mean(percents) if percents.notna().all() else math.nan
            body[f"{variant}, %"] = [_number("{:.1f}")(value) for value in (*percents, mean)]
            if variant in shares:
                body[f"{variant}, fallback"] = [*shares[variant], ""]
    align = ("left",) + ("right",) * (len(body.columns) - 1)
    return body.to_markdown(index=False, tablefmt=form, colalign=align, disable_numparse=True)


def emphasised(words: str, mark: str, form: str) -> str:
    """The words between Markdown's marks where the table is to be Markdown."""
    return f"{mark}{words}{mark}" if form == MARKDOWN else words


def _case(key: Iterable[Any]) -> Case:
    """From the values of the columns CASE."""
    return Case(*key)


def _labels(data: pd.DataFrame) -> list[str]:
    """Each row's shape as `Case` writes it, NN too where there are other layouts; its data where only that differs."""
    cases = [_case(key) for key in data[CASE].itertuples(index=False)]
    if len({replace(case, data="normal") for case in cases}) == 1 < len(set(cases)):
        return [case.data for case in cases]
    if data["layout"].nunique() == 1:
        return [str(case) for case in cases]
    return [str(case) if case.data != "normal" else f"{replace(case, layout='NN')}:{case.layout}" for case in cases]


def printed(data: pd.DataFrame, form: str = MARKDOWN) -> str:
    """A suite as the bench shows it: `text`, or, of more than MANY shapes, `across` and every note."""
    if len(data.groupby(CASE)) <= MANY:
        return text(data, form=form)
    noted = data.assign(shape=_labels(data))[data["note"].astype(bool)]
    notes = [f"{row.variant} at {row.shape}: {row.note}" for row in noted.itertuples()]
    return "\n\n".join([across(data, form), *(["\n".join(notes)] if notes else [])])


def _number(form: str) -> Callable[[float], str]:
    return lambda value: "" if pd.isna(value) else form.format(value)


SHARE = _number("{:.2%}")


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)


def provenance(data: pd.DataFrame) -> str:
    """Where and when the figures were measured."""
    shapes = data[CASE].drop_duplicates()
    operands = "N(0,1) operands" if set(shapes["data"]) == {"normal"} else "operands as named"
    if len(shapes) > 1 and shapes["data"].nunique() == len(shapes):  # the table names nothing but the data
        operands += f", {_case(next(shapes.itertuples(index=False))).title.partition(', data')[0]}"
    run = "the same run" if data["commit"].nunique() == 1 else "each row's own run"
    baseline = f"cuBLAS with TF32 off in {run}" + (
        ", tf32 rows against cuBLAS with TF32 on" if "tf32" in set(data["precision"]) else ""
    )
    return f"{origin(data)}; medians, {operands}, {baseline}."


def origin(data: pd.DataFrame) -> str:
    """The GPU, the versions, the date and the commit of a results file; of a file of several runs, all commits."""
    first, commits = data.iloc[0], list(dict.fromkeys(data["commit"]))
    return (
        f"{first['gpu']}, driver {first['driver'] or '-'}, torch {first['torch']}, Triton {first['triton']}, "
        + f"{first['date']}, "
        + (f"commit {commits[0]}" if len(commits) == 1 else f"put together from commits {' and '.join(commits)}")
    )


def folders(results: Path) -> list[Path]:
    """The folders of GPUs in a folder of results."""
    return sorted({path.parent for path in results.glob("*/*.csv")})


def rendered(suite: str, gpu: str) -> str:
    """A suite's committed results as Markdown."""
    return published(read(RESULTS / gpu / f"{suite}.csv"))


def published(data: pd.DataFrame) -> str:
    """A suite's results as Markdown, and where they are from."""
    body = text(data) if len(data.groupby(CASE)) == 1 else across(data)
    return f"{body}\n\n{provenance(data)}"


def accuracy(data: pd.DataFrame) -> str:
    """The errors of `python -m bench.precision` as Markdown: one table a measure."""
    variants = list(dict.fromkeys(data["variant"]))
    falls_back = [name for name in variants if data.loc[data["variant"] == name, "fallback"].notna().any()]
    rows = list(dict.fromkeys(data[["data", "K"]].itertuples(index=False, name=None)))
    parts = []
    for measure, heading in ERRORS.items():
        figures = data.pivot(index=["data", "K"], columns="variant", values=measure).reindex(rows)
        shares = data.pivot(index=["data", "K"], columns="variant", values="fallback").reindex(rows)
        columns: dict[str, Any] = {"data": [d for d, _ in rows], "K": [f"{k:,}" for _, k in rows]}
        for name in variants:
            columns[name] = [*figures[name].map(_number("{:.2e}"))]
            if name in falls_back:
                columns[f"fallback of {name}"] = [*shares[name].map(SHARE)]
        parts.append(f"**{heading}**\n\n{_markdown(columns)}")
    notes = [f"{row.variant}, {row.data}, K = {row.K:,}: {row.note}" for row in _noted(data).itertuples()]
    return "\n\n".join([*parts, *notes, f"{origin(data)}; against float64."])


def transformer(data: pd.DataFrame) -> str:
    """The training steps of `python -m examples.transformer` as Markdown: one table a model."""
    parts = []
    for model, steps in data.groupby("model", sort=False):
        first = steps.iloc[0]
        columns = {
            "products by": steps["way"],
            "ms a step": steps["ms"].map(_number("{:.4g}")),
            "speed-up": (first["ms"] / steps["ms"]).map(_number("{:.2f}")),
            "error of the output": steps["output_error"].map("{:.1e}".format),
            "error of the gradients": steps["gradient_error"].map("{:.1e}".format),
        }
        parts.append(f"**{model}, {first['parameters'] / 1e6:,.0f} million parameters**\n\n{_markdown(columns)}")
    return "\n\n".join(
        [*parts, f"{origin(data)}; medians; errors relative, Frobenius, against the same step in float64."]
    )


def orthogonalise(data: pd.DataFrame) -> str:
    """The iterations of `python -m examples.orthogonalise` as Markdown, a column a way."""
    ways, first = list(dict.fromkeys(data["way"])), data.iloc[0]
    residuals = data.pivot(index="iteration", columns="way", values="residual")
    ends = data[data["iteration"] == data["iteration"].max()].set_index("way")
    columns: dict[str, Any] = {
        "iteration": [*map(str, residuals.index), "*error of the factor*", "*ms, all iterations*"]
    }
    for way in ways:
        figures = [*residuals[way], ends.loc[way, "error"]]
        columns[way] = [*map("{:.1e}".format, figures), _number("{:.4g}")(ends.loc[way, "ms"])]
    return (
        f"{_markdown(columns)}\n\n{origin(data)}; |X' X - I| and, at the end, |X - U V'|, over |I|, Frobenius, in "
        f"float64; n = {first['n']}, condition {first['condition']:g}."
    )


def calls(data: pd.DataFrame) -> str:
    """What calls cost, from `python -m bench.calls`, as Markdown."""
    columns: dict[str, Any] = {
        "call": data["call"],
        "n": data["n"].map("{:,}".format),
        "of it": data["unit"],
        "torch": data["by_torch"].map(_number("{:,.4g}")),
    }
    for precision in ("ieee", "fp32"):
        mine = data[f"by_{precision}"]
        columns[precision] = mine.map(_number("{:,.4g}"))
        columns[f"torch / {precision}"] = (data["by_torch"] / mine).map(_number("{:.2f}"))
    notes = [f"{row.call}, {row.n:,}, {row.unit}: {row.note}" for row in _noted(data).itertuples()]
    about = f"{origin(data)}; medians, N(0,1) matrices n x n, torch with TF32 off."
    return "\n\n".join([_markdown(columns), *notes, about])


def counted(data: pd.DataFrame) -> str:
    """What the GPU counted while variants ran, from `python -m bench.profile`, as Markdown: one table a shape."""
    parts = []
    for (M, N, K), of_shape in data.groupby(["M", "N", "K"], sort=False):
        columns = {
            "variant": of_shape["variant"],
            "ms": of_shape["ms"].map(_number("{:.4g}")),
            "MB from DRAM": (1e-6 * of_shape["dram_bytes"]).map(_number("{:,.0f}")),
            "MB through L2": (1e-6 * of_shape["l2_bytes"]).map(_number("{:,.0f}")),
            "FMA pipe": of_shape["fma_pct"].map(_number("{:.1f} %")),
            "tensor pipe": of_shape["tensor_pct"].map(_number("{:.1f} %")),
            "occupancy": of_shape["occupancy_pct"].map(_number("{:.1f} %")),
            "warps wait for": of_shape.apply(stalls, axis=1),
        }
        parts.append(f"**M = {M:,}, N = {N:,}, K = {K:,}**\n\n{_markdown(columns, last='left')}")
    notes = [
        f"{_named(list(rows['variant']), len(data))}: {note}" for note, rows in _noted(data).groupby("note", sort=False)
    ]
    return "\n\n".join([*parts, *notes, f"{origin(data)}; ncu."])


def choices(data: pd.DataFrame) -> str:
    """What the plan chose and what it left, from `python -m bench.choices`, as Markdown."""
    better = data[["strict_ms", "tensor_ms"]].min(axis=1)
    taken = data["strict_ms"].where(data["chosen"] == "strict", data["tensor_ms"])
    columns: dict[str, Any] = {
        "precision": data["precision"],
        **{name: data[name].map("{:,}".format) for name in ("batch", "M", "N", "K")},
        "strict float32": data["strict"],
        "us": (1e3 * data["strict_ms"]).map(_number("{:,.1f}")),
        "on tensor cores": data["tensor"],
        "us ": (1e3 * data["tensor_ms"]).map(_number("{:,.1f}")),
        "chosen": data["chosen"],
        "chosen / faster": (taken / better).map(_number("{:.2f}")),
    }
    notes = [
        f"{row.precision}, {row.batch} x {row.M} x {row.N} x {row.K}: {row.note}" for row in _noted(data).itertuples()
    ]
    measured = data["strict_ms"].notna() & data["tensor_ms"].notna()
    off = int((taken / better)[measured].gt(1.05).sum())
    verdict = f"The slower one was chosen, by more than 5 %, in {off} of {int(measured.sum())} rows."
    about = f"{verdict} {origin(data)}; medians, N(0,1)."
    return "\n\n".join([_markdown(columns), *notes, about])


def _noted(data: pd.DataFrame) -> pd.DataFrame:
    return data[data["note"].notna() & (data["note"] != "")]


def _named(variants: list[str], of: int) -> str:
    return ", ".join(variants) if len(variants) <= 5 else f"{len(variants)} of {of} rows, {variants[0]} among them"


def stalls(row: pd.Series) -> str:
    """The reasons of a row of profile.csv for which warps wait, with their shares."""
    found = [(row[f"stall_{i}"], row[f"stall_{i}_pct"]) for i in (1, 2, 3)]
    return ", ".join(f"{reason} {share:.1f} %" for reason, share in found if pd.notna(reason))


# by file, which is also the command of make that measures it
OF_A_FILE = {"precision": accuracy, "calls": calls, "profile": counted, "choices": choices}
EXAMPLES = {"transformer": transformer, "orthogonalise": orthogonalise}  # of the folder examples, by file


def _markdown(columns: dict[str, Any], last: str = "right") -> str:
    align = ("left", *("right",) * (len(columns) - 2), last)
    return pd.DataFrame(columns).to_markdown(index=False, colalign=align, disable_numparse=True)


def filled(markdown: str) -> str:
    """`markdown` with every table between markers made anew from its results file."""

    def anew(m: re.Match[str]) -> str:
        start, what, gpu, end = m.groups()
        kind, *names = what.split()
        if kind == "results":
            body = rendered(names[0], gpu)
        elif kind == "example":
            body = _if_measured(EXAMPLES[names[0]], RESULTS / gpu / f"example_{names[0]}.csv", "make examples")
        else:
            body = _if_measured(OF_A_FILE[kind], RESULTS / gpu / f"{kind}.csv", f"make {kind}")
        return f"{start}\n{body}\n\n{end}"

    markers = rf"(<!-- ((?:results|example) \S+|{'|'.join(OF_A_FILE)}) (\S+) -->\n).*?(<!-- end -->)"
    return re.sub(markers, anew, markdown, flags=re.DOTALL)


def _if_measured(made: Callable[[pd.DataFrame], str], path: Path, command: str) -> str:
    return made(read(path)) if path.exists() else f"Not measured yet: `{command}`."


def documents() -> list[Path]:
    """The Markdown files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Rewrites the tables of README and docs."""
    argparse.ArgumentParser(prog="python -m bench.table", description=main.__doc__).parse_args()
    for path in documents():
        old = path.read_text()
        new = filled(old)
        if new != old:
            path.write_text(new)
        print(f"{path.relative_to(ROOT)}: {'rewritten' if new != old else 'up to date'}")


if __name__ == "__main__":
    main()
