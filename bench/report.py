"""All tables and pictures of the results in one page that needs nothing else: build/report.html.

    python -m bench.report [--results bench/results] [--out build/report.html]

needs matplotlib and no GPU.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from . import explain, table
from .catalog import select
from .plots import PICTURES
from .plots.style import card_of

PAGE = table.ROOT / "build" / "report.html"


@dataclass(frozen=True)
class Section:
    """A results file as it is shown: what it is, its pictures, and its tables as Markdown."""

    results: str
    heading: str
    says: str
    pictures: tuple[str, ...] = ()
    tables: Callable[[pd.DataFrame], str] = table.published


def predicted(data: pd.DataFrame) -> str:
    """What the tiles of the ladder predict for the GPU that was measured, as Markdown."""
    card = card_of(data)
    if not card:
        return "Nothing: what this GPU could do is not known."
    found = explain.explained(select(explain.LADDER), card, {})
    return f"{explain.facts(card)}.\n\n{explain.side_by_side(found, 'predicted', 'pipe')}"


SECTIONS = (
    Section(
        "square",
        "How fast",
        "Percent of cuBLAS in the same precision, M = N = K, the whole call. matmul_* is the public call in each "
        "precision; the others are what it chooses from, and what Triton itself offers between TF32 and float32.",
        ("square",),
    ),
    Section(
        "chapter",
        "The chapter, measured",
        "Each rung in raw CUDA and in Triton or Gluon; fma_* and dot_* are what matmul(precision=ieee) chooses among, "
        "beside a kernel for a few columns.",
        ("ladder",),
    ),
    Section(
        "chapter",
        "The chapter, predicted",
        "From the tile alone: where it puts a rung under the roofs of memory and of shared memory. Memory serves every "
        "global load here, where caches may in truth.",
        ("roofline-dram", "roofline-shared"),
        predicted,
    ),
    Section(
        "profile",
        "The chapter, counted",
        "By the GPU's own counters: how busy the pipes are, and what warps wait for most.",
        (),
        table.counted,
    ),
    Section("ladder", "The ladder at other sizes", "One off a multiple on both sides, and where launches rule."),
    Section("layouts", "Layouts", "The same product from memory in other orders, with gaps, misaligned."),
    Section("skinny", "Few rows or columns", "The large operand is read once, so memory rules."),
    Section("deep", "Deep K", "A small result of long sums: too few tiles for the SMs unless K is cut."),
    Section("batched", "Batches", "Many small products: none fills the GPU alone."),
    Section("data", "Other numbers", "What reaches a matmul in use; rows of many powers of two; an Inf in every row."),
    Section(
        "precision",
        "How right",
        "Against float64; the fallback is what tensor cores left to strict float32.",
        ("errors",),
        table.accuracy,
    ),
    Section(
        "choices",
        "What the plan chooses",
        "The best it knows in strict float32 beside the best it knows on tensor cores, where the two come close.",
        (),
        table.choices,
    ),
    Section("calls", "What a call costs", "The host's time, gradients, their memory.", (), table.calls),
    Section("example_transformer", "A training step", "Whole models, by what multiplies.", (), table.transformer),
    Section("example_orthogonalise", "Orthogonalisation", "An iteration of products.", (), table.orthogonalise),
)

STYLE = """
:root { color: #1a1a1a; background: #fff; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem 1.5rem 4rem; }
h1, h2, h3, h4 { line-height: 1.2; text-wrap: balance; }
h3 { margin: 3rem 0 .5rem; padding-top: .75rem; border-top: 1px solid #ccc; }
p { max-width: 46rem; }
nav ul { columns: 15rem; padding-left: 1.2rem; }
a { color: #0072b2; }
figure { margin: 1.5rem 0; max-width: 58rem; }
figure svg { width: 100%; height: auto; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #e4e4e4; }
td { white-space: nowrap; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
td.left, th.left { text-align: left; } td.right, th.right { text-align: right; }
tbody tr:hover { background: #f3f7fa; }
.origin { color: #595959; font-size: .85rem; }
@media print { h3 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


TITLE = "triton_sgemm, measured"
HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{TITLE}</h1>
<p>float32 matrix products on GPUs: all tables and pictures of the results. What the names mean and how it was measured
is in README.md; where and when, below each table.</p>
"""


def page(folders: list[Path]) -> tuple[str, list[str]]:
    """The page, a part for each GPU's folder of results, and what is not in it for want of some."""
    parts = [part(folder) for folder in folders]
    body = "\n".join(text for text, _ in parts)
    return f"{HEAD}{body}\n</body>\n</html>\n", [why for _, lacking in parts for why in lacking]


def part(folder: Path) -> tuple[str, list[str]]:
    """What there is of one GPU, and what is lacking."""
    entries, sections, lacking, gpu = [], [], [], folder.name
    for i, section in enumerate(SECTIONS):
        path = folder / f"{section.results}.csv"
        if not path.exists():
            lacking.append(f"{section.heading}: no {path}")
            continue
        data, at = table.read(path), f"{folder.name}-{i}"
        gpu = str(data["gpu"].iloc[0])
        entries.append(f'<li><a href="#{at}">{section.heading}</a></li>')
        sections += [f'<h3 id="{at}">{section.heading}</h3>', f"<p>{escape(section.says)}</p>"]
        for name in section.pictures:
            try:
                sections.append(figure(name, folder))
            except ValueError as why:
                lacking.append(f"{section.heading}: {why}")
        sections.append(html(section.tables(data)))
    return "\n".join([f"<h2>{escape(gpu)}</h2>", "<nav><ul>", *entries, "</ul></nav>", *sections]), lacking


def figure(name: str, folder: Path) -> str:
    """A picture as a part of the page; ids, which two pictures may share, get its name."""
    picture = PICTURES[name]
    svg = picture.of(folder, "svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-{folder.name}-", svg)
    return f'<figure role="img" aria-label="{escape(picture.says)}">{svg}</figure>'


def html(markdown: str) -> str:
    """What table makes of results, which is headings, tables and lines, as HTML."""
    return "\n".join(_block(block) for block in markdown.split("\n\n") if block.strip())


def _block(block: str) -> str:
    if block.startswith("|"):
        head, rule, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        sides = ["right" if cell.endswith(":") else "left" for cell in rule]
        body = "\n".join(_row("td", row, sides) for row in rows)
        return (
            f'<div class="table"><table>\n<thead>{_row("th", head, sides)}</thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table></div>"
        )
    if heading := re.fullmatch(r"\*\*(.*)\*\*", block):
        return f"<h4>{escape(heading[1])}</h4>"
    return f'<p class="origin">{escape(block)}</p>'


def _row(tag: str, cells: list[str], sides: list[str]) -> str:
    written = (re.sub(r"^\*(.*)\*$", r"<em>\1</em>", escape(cell)) for cell in cells)
    row = (f'<{tag} class="{side}">{cell}</{tag}>' for side, cell in zip(sides, written, strict=True))
    return f"<tr>{''.join(row)}</tr>"


def main() -> None:
    """Writes the page and says what is left out."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=table.RESULTS, help="folder of <gpu>/<suite>.csv")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    args = parser.parse_args()
    folders = table.folders(args.results)
    if not folders:
        parser.error(f"no <gpu>/<suite>.csv in {args.results}; make results measures one")
    text, lacking = page(folders)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    for why in lacking:
        print(f"left out: {why}")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
