"""Why a variant is as fast as it is: what its tile predicts, what the compilers made of it, what was measured.

    python -m bench.explain [--variants 'smem_*'] [--gpu rtx-5080 h200] [--markdown]

Needs no GPU: predictions are arithmetic, code is compiled for the GPU's architecture, and times come from
bench/results. One variant is told figure by figure, several side by side. `--docs` writes the tables of docs/ladder.md,
between the markers `<!-- explain predicted GPU -->` or `<!-- explain compiled GPU -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import triton
from rich.console import Console
from tabulate import tabulate

from triton_sgemm.device import ARCHS, CARDS, Arch, Card
from triton_sgemm.variants import Variant

from . import sass, table
from .catalog import VARIANTS, select
from .compiled import Compiled, nvcc_version, read_all
from .occupancy import Occupancy, occupancy
from .predicted import Tiling, tiling

N = 4096  # M, N and K of every figure, as in the chapter
LADDER = [name for name, v in VARIANTS.items() if v.rung]
GPUS = ["rtx-5080", "h200"]
LADDER_MD = table.ROOT / "docs" / "ladder.md"
KINDS = {
    "predicted": "from the tile alone; as in the chapter, memory serves every global load, where caches may in truth",
    "compiled": "for this architecture; instructions of one turn of the main loop, a load of several elements once",
    "measured": f"M = N = K = {N}",
}
Figures = dict[str, str]  # by what they say, as shown


@dataclass(frozen=True)
class Explained:
    """A variant on a GPU."""

    variant: Variant
    card: Card
    tiling: Tiling | None
    before: Tiling | None  # of the rung before
    compiled: Compiled

    @property
    def arch(self) -> Arch:
        """The GPU's architecture."""
        return ARCHS[self.card.capability]

    def figures(self, kind: str) -> Figures:
        """Its figures of one of KINDS, all that there are."""
        return {"predicted": predicted, "compiled": compiled, "measured": measured}[kind](self)


def explained(variants: list[Variant], card: Card, code: dict[tuple[str, int], Compiled]) -> list[Explained]:
    """The variants on a GPU, rung by rung; `code` by variant and architecture."""
    return [
        Explained(
            v,
            card,
            tiling(v),
            next((tiling(b) for b in VARIANTS.values() if _is_before(b, v)), None),
            code.get((v.name, card.capability), Compiled(v.name, card.capability, note="not compiled")),
        )
        for v in sorted(variants, key=lambda v: (v.rung or 99, list(VARIANTS).index(v.name)))
    ]


def _is_before(b: Variant, v: Variant) -> bool:
    return bool(v.rung and b.rung == v.rung - 1 and (b.backend == "cuda") == (v.backend == "cuda"))


def predicted(e: Explained) -> Figures:
    """What follows from the tile."""
    t = e.tiling
    if not t:
        return {"note": "runs other variants' kernels or cuBLAS"}
    rows, columns, depth = t.block
    f = {
        "tile": f"{rows}x{columns}" + (f"x{depth}" if t.stages else ""),
        "a thread owns": f"{t.thread[0]} x {t.thread[1]}{' or so' if t.free else ''}" if t.thread else "",
        "steps of K": f"{N // depth:,}",
        "global loads a block": f"{t.block_loads(N):,.0f}",
        "global loads an output": f"{t.loads(N):,.0f}",
        "from the rung before": _fewer(e.before, t) if e.before else "",
        "FLOP/byte": f"{t.flop_per_byte:.3g}",
    }
    if t.thread:
        f["of the ridge"] = f"{e.card.ridge:.1f}: {_short(e.card.ridge / t.flop_per_byte)}"
    if loads := t.shared_loads(N):
        per, most = N / loads, "at most " if t.free else ""
        f |= {
            "shared loads an output": f"{loads:,.0f}",
            "FMAs a shared load": f"{most}{per:.3g}" + (f", {t.vector * per:.3g} a vector" if t.vector > 1 else ""),
            "of the balance": f"{e.arch.balance:.3g}: {_short(e.arch.balance / per)}",
            "FMA units idle": f"{max(0.0, 1 - per / e.arch.balance):.1%}",
        }
    if t.wants:
        f["a warp wants at each k"] = f"{t.wants[0]} + {t.wants[1]} {t.wants[2]}"
    f["bytes of tiles"] = f"{t.shared_bytes:,}"
    if fit := t.occupancy(e.arch):
        f |= _occupancy(fit)
    if short := t.short_of(e.card, e.arch):
        worst = max(short, key=lambda level: short[level])
        f["binds"] = worst if short[worst] > 1 else "neither"
    return f


def _fewer(before: Tiling, t: Tiling) -> str:
    loads, times = before.loads(N), before.rim / t.rim
    return f"{loads:,.0f}: {times:.3g} times fewer" if times > 1 else f"{loads:,.0f}: as many"


def _short(times: float) -> str:
    if times <= 1:
        return "reached"
    return f"{times:.2g} times short" if times < 10 else f"{times:,.0f} times short"


def _occupancy(fit: Occupancy) -> Figures:
    return {
        "threads": f"{fit.threads:,}",
        "blocks an SM": f"{fit.blocks}",
        "threads unused": f"{fit.unused:,} of {fit.sm_threads:,}",
        "occupancy": f"{fit.share:.1%}",
        "bound by": fit.bound_by,
    }


def compiled(e: Explained) -> Figures:
    """What the compilers made of it."""
    c, main = e.compiled, e.compiled.main
    if not main:
        return {"note": c.note}
    fit = occupancy(e.arch, main.threads, main.shared_bytes, main.registers)
    f = {"registers": f"{main.registers}", "spills": f"{c.spills}", "shared bytes": f"{main.shared_bytes:,}"}
    f |= _occupancy(fit)
    loads = {(name, width): main.count(f"{name}.{width}") for name in ("LDS", "LDSM") for width in (32, 64, 128)}
    f["FFMA"] = f"{main.count(*sass.FMAS)}"
    f |= {f"{name}.{width}": f"{n}" for (name, width), n in loads.items()}
    f |= {name: f"{main.count(*(f'{name}.{w}' for w in (32, 64, 128)))}" for name in ("LDG", "LDGSTS")}
    f |= {name: f"{main.count(name)}" for name in ("UTMALDG", "HMMA", "HGMMA", "BAR")}
    if e.tiling and e.tiling.fma_per_load and (instructions := sum(loads.values())):
        elements = sum(n * width // 32 for (_, width), n in loads.items())
        fmas = main.count("FFMA") + 2 * main.count("FFMA2")
        f["FMAs a shared load"] = f"{fmas / instructions:.3g}"
        f["predicted"] = f"{'at most ' if e.tiling.free else ''}{e.tiling.fma_per_load:.3g}"
        f["FMAs an element"] = f"{fmas / elements:.3g}"
        f["loads of several elements"] = f"{sum(n for (_, width), n in loads.items() if width > 32)} of {instructions}"
        if not main.count("BAR"):
            f["note"] = "the loop over k is not unrolled: what moves the tiles is around it"
    return f


def measured(e: Explained) -> Figures:
    """What is in bench/results for this GPU."""
    f: Figures = {}
    row = _row(e, ["chapter.csv", "ladder.csv", "square.csv"])
    if row is not None:
        f |= {
            "ms": f"{row['ms']:.4g}",
            "GFLOP/s": f"{row['gflops']:,.0f}",
            "% of cuBLAS": f"{row['pct_cublas']:.1f}",
            "% of the FMA peak": f"{100 * row['gflops'] / (e.card.fma_peak_gflops or 1):.1f}",
        }
    row = _row(e, ["profile.csv"])
    if row is not None:
        flop = 2 * row["M"] * row["N"] * row["K"]
        shown = {
            "DRAM bytes": ("{:.3g}", row["dram_bytes"]),
            "L2 bytes": ("{:.3g}", row["l2_bytes"]),
            "FLOP/byte of DRAM": ("{:.3g}", flop / row["dram_bytes"]),
            "FMA pipe": ("{:.1f} %", row["fma_pct"]),
            "tensor pipe": ("{:.1f} %", row["tensor_pct"]),
            "stalls": ("{}", table.stalls(row)),
            "registers": ("{:.0f}", row["registers"]),
            "occupancy": ("{:.1f}%", row["occupancy_pct"]),
        }
        f |= {name: form.format(value) for name, (form, value) in shown.items() if pd.notna(value)}
    return f or {"note": "no results"}


def _row(e: Explained, files: list[str]) -> pd.Series | None:
    """The first row of the files with a time of this variant at N."""
    for path in (table.RESULTS / e.card.slug / name for name in files):
        if path.exists():
            data = table.read(path)
            at = data[(data["variant"] == e.variant.name) & data["ms"].notna() & (data["data"] == "normal")]
            at = at[(at[["M", "N", "K"]] == N).all(axis=1)]
            if "layout" in at:
                at = at[(at["layout"] == "NN") & (at["batch"] == 1)]
            if not at.empty:
                return at.iloc[0]
    return None


# of the figures those that stand side by side
COLUMNS = {
    "predicted": [
        "tile", "a thread owns", "global loads an output", "from the rung before", "FLOP/byte", "of the ridge",
        "FMAs a shared load", "of the balance", "a warp wants at each k", "blocks an SM", "occupancy", "bound by",
        "binds", "note",
    ],
    "compiled": [
        "registers", "spills", "shared bytes", "blocks an SM", "occupancy", "bound by", "FFMA", "LDS.32", "LDS.64",
        "LDS.128", "LDSM.32", "LDSM.64", "LDSM.128", "LDG", "LDGSTS", "UTMALDG", "HMMA", "HGMMA", "BAR",
        "FMAs a shared load", "predicted", "FMAs an element", "note",
    ],
    "measured": [
        "ms", "GFLOP/s", "% of cuBLAS", "% of the FMA peak", "DRAM bytes", "L2 bytes", "FLOP/byte of DRAM", "FMA pipe",
        "tensor pipe", "stalls", "registers", "occupancy", "note",
    ],
}  # fmt: skip


def facts(card: Card) -> str:
    """A GPU in a line."""
    arch = ARCHS[card.capability]
    return (
        f"{card.name}, sm_{card.capability}: {card.sms} SMs at {card.max_clock_mhz:,.0f} MHz do "
        f"{(card.fma_peak_gflops or 0) / 1e3:.1f} TFLOP/s in float32, memory {card.dram_gbs:,.0f} GB/s, so that the "
        f"ridge is at {card.ridge:.1f} FLOP/byte; an SM holds {arch.sm_threads} threads and {arch.sm_blocks} blocks, "
        f"and is balanced at {arch.balance:.3g} FMAs a shared load"
    )


def side_by_side(found: list[Explained], kind: str, form: str) -> str:
    """The figures of one kind of several variants on one GPU; what is 0 or unknown everywhere is left out."""
    rows = [e.figures(kind) for e in found]
    if kind == "measured" and not any("ms" in row for row in rows):
        return (
            f"no results: bench/results/{found[0].card.slug} has none of these; `make results` on that GPU writes them"
        )
    columns = [name for name in COLUMNS[kind] if any(_says(name, row) for row in rows)]
    body = [
        [e.variant.name, *(row[name] if _says(name, row) else "" for name in columns)]
        for e, row in zip(found, rows, strict=True)
    ]
    align = ("left", *("left" if name == "note" else "right" for name in columns))
    return tabulate(body, headers=["variant", *columns], tablefmt=form, colalign=align, disable_numparse=True)


def _says(name: str, figures: Figures) -> bool:
    """Whether a figure is worth its place: instructions that there are none of are not, no spills are."""
    return figures.get(name, "") not in ("", "0") or (name == "spills" and name in figures)


def sheet(found: list[Explained], form: str) -> str:
    """All figures of one variant, a column a GPU."""
    body = []
    for kind in KINDS:
        each = [e.figures(kind) for e in found]
        for name in dict.fromkeys(name for figures in each for name in figures):
            if any(_says(name, figures) for figures in each):
                body.append([kind, name, *(figures.get(name, "") for figures in each)])
    headers = ["", "", *(f"{e.card.name} (sm_{e.card.capability})" for e in found)]
    return tabulate(body, headers=headers, tablefmt=form, disable_numparse=True)


def told(found: list[Explained], form: str) -> str:
    """One variant: its idea, its figures, what comes next."""
    v = found[0].variant
    following = [n for n in VARIANTS.values() if _is_before(v, n)]
    parts = [(v.doc or "").strip(), sheet(found, form), *(facts(e.card) + "." for e in found)]
    return "\n\n".join([*parts, *(f"Next, {n.name}. {(n.doc or '').strip().splitlines()[0]}" for n in following)])


def of_a_card(found: list[Explained], form: str) -> str:
    """Several variants on one GPU: a table a kind."""
    parts = [f"{'## ' if form == 'pipe' else ''}{facts(found[0].card)}"]
    for kind, what in KINDS.items():
        title = f"**{kind.capitalize()}**" if form == "pipe" else kind.upper()
        parts += [f"{title} ({what})", side_by_side(found, kind, form)]
    return "\n\n".join(parts)


def filled(markdown: str, code: dict[tuple[str, int], Compiled]) -> str:
    """`markdown` with the tables between markers made anew; those of compiled code stay where `code` has none."""

    def anew(m: re.Match[str]) -> str:
        kind, card = m[2], CARDS[m[3]]
        if kind == "compiled" and not code:
            return m[0]
        found = explained(select(LADDER), card, code)
        source = f"\n\n{compilers()}" if kind == "compiled" else ""
        return f"{m[1]}\n{facts(card)}.\n\n{side_by_side(found, kind, 'pipe')}{source}\n\n{m[4]}"

    pattern = r"(<!-- explain (predicted|compiled) (\S+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, anew, markdown, flags=re.DOTALL)


def compilers() -> str:
    """What makes the figures of compiled code."""
    return f"Triton {triton.__version__}; nvcc {nvcc_version()}."


def card_of(name: str) -> Card:
    """The GPU of a name such as `rtx-5080`, or of its results folder; raises ValueError for one that is not known."""
    by_name = CARDS | {card.slug: card for card in CARDS.values()}
    if name.lower() not in by_name:
        raise ValueError(f"no GPU is called {name!r}; there are {', '.join(CARDS)}")
    return by_name[name.lower()]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.explain", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variants", nargs="+", metavar="GLOB", default=LADDER, help="default: the ladder")
    parser.add_argument("--gpu", nargs="+", metavar="GPU", default=GPUS, help=f"of {', '.join(CARDS)}")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/ladder.md instead")
    args = parser.parse_args()
    try:
        variants = select(args.variants)
        cards = [card_of(name) for name in args.gpu]
    except ValueError as e:
        parser.error(str(e))
    if args.docs and (args.variants != LADDER or args.gpu != GPUS):
        parser.error(
            "--docs writes the ladder's tables, of the GPUs that docs/ladder.md names; leave out --variants and --gpu"
        )
    if args.docs:
        variants, cards = select(LADDER), [card_of(name) for name in _documented(LADDER_MD)]
    archs = sorted({card.capability for card in cards})
    with Console(stderr=True).status(f"compiling {len(variants)} variants for sm_{', sm_'.join(map(str, archs))}"):
        code = {(c.variant, c.arch): c for c in read_all(archs, [v.name for v in variants])}
    if args.docs:
        if lacking := [c.variant for c in code.values() if not c.main]:
            parser.error(f"nothing was written: {', '.join(sorted(set(lacking)))}: {code[lacking[0], archs[0]].note}")
        LADDER_MD.write_text(filled(LADDER_MD.read_text(), code))
        print(f"written: {LADDER_MD.relative_to(table.ROOT)}")
        return
    form = "pipe" if args.markdown else "simple"
    by_card = [explained(variants, card, code) for card in cards]
    if len(variants) == 1:
        print(told([found for (found,) in by_card], form))
    else:
        print("\n\n\n".join(of_a_card(found, form) for found in by_card))


def _documented(path: Path) -> list[str]:
    return re.findall(r"<!-- explain \w+ (\S+) -->", path.read_text())


if __name__ == "__main__":
    main()
