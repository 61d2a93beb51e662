"""Each raw CUDA rung beside its Triton twin: times, ratio, and whether the bits are the same.

    python -m bench.compare [--size 4096]

Without a CUDA GPU both are run on the CPU (see `python -m bench`) and only the results are compared.
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd
import torch
from rich.console import Console

from triton_sgemm.device import gpu
from triton_sgemm.errors import first_line

from . import measure
from .catalog import twins
from .environment import environment
from .run import NO_TIME
from .suites import Case


def results(x: measure.Operands, pair: tuple) -> list[torch.Tensor]:
    """What both of a pair compute from the same operands, each into NaN."""
    made = []
    for variant in pair:
        x.out.fill_(float("nan"))
        x.run(variant)
        made.append(x.out.clone())
    return made


def compared(case: Case) -> pd.DataFrame:
    """One row a rung."""
    on_gpu = torch.cuda.is_available()
    x = measure.Operands.random(case, "cuda" if on_gpu else "cpu")
    pairs = twins()
    rows: list[dict[str, Any]] = []
    usable = []
    for pair in pairs:
        cuda, twin = pair
        row: dict[str, Any] = {
            "rung": cuda.rung,
            "CUDA": cuda.name,
            "Triton": twin.name,
            "ms CUDA": "",
            "ms Triton": "",
        }
        row |= {"CUDA / Triton": "", "largest difference": "", "bit-identical": "", "note": "" if on_gpu else NO_TIME}
        rows.append(row)
        reason = cuda.why_not(x.problem) or twin.why_not(x.problem)
        if not reason and twin.backend == "gluon" and not on_gpu:
            reason = f"{NO_TIME}, and Gluon has no interpreter to compare with"
        if not reason:
            try:
                ours, theirs = results(x, pair)
            except Exception as e:
                reason = f"failed: {first_line(e)}"
        if reason:
            row["note"] = reason
            continue
        row["largest difference"] = f"{(ours - theirs).abs().max().item():.2e}"
        row["bit-identical"] = "yes" if torch.equal(ours.view(torch.int32), theirs.view(torch.int32)) else "no"
        usable.append((row, pair))

    if on_gpu:
        variants = [v for _, pair in usable for v in pair]
        times = measure.time_all(variants, x, case, gpu(torch.cuda.current_device()), lambda: None)
        for row, (cuda, twin) in usable:
            a, b = times[cuda.name].ms, times[twin.name].ms
            row |= {"ms CUDA": f"{a:.4g}", "ms Triton": f"{b:.4g}", "CUDA / Triton": f"{a / b:.3f}"}
    return pd.DataFrame(rows)


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Case.parse("4096" if torch.cuda.is_available() else "96")
    parser.add_argument("--size", type=Case.parse, default=default, metavar="SIZE", help=f"shape (default: {default})")
    case = parser.parse_args().size
    print(environment().header(), end="\n\n")
    with Console(stderr=True).status(f"comparing at {case}"):
        table = compared(case)
    print(f"**{case.title}**\n")
    print(table.to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    main()
