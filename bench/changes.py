"""What changed between two results files: `python -m bench --compare OLD.csv NEW.csv`.

A row is a variant at a shape. It is faster or slower where the 20th to 80th percentiles of its two measurements do not
overlap and the medians are more than BEYOND apart; anything less is noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from . import table
from .suites import Case

BEYOND = 0.02
KEY = ["variant", *table.CASE]
TIMES = ["ms", "ms_p20", "ms_p80"]
SETTING = ["gpu", "driver", "torch", "triton"]  # what should be the same in both
NEEDED = [name for name in KEY if name != "data"] + TIMES + SETTING + ["commit", "date"]
QUICK = "quick"  # the note of rows that `--quick` measured


@dataclass(frozen=True)
class Results:
    """The rows of a file, and what to call it."""

    name: str
    rows: pd.DataFrame

    @property
    def timed(self) -> pd.DataFrame:
        """The rows with a time; where several suites have a shape, the last of its rows."""
        rows = self.rows[self.rows["ms"].notna()].drop_duplicates(KEY, keep="last")
        return rows.astype(dict.fromkeys(TIMES, float))


def load(path: Path) -> Results:
    """A results file; raises ValueError where it is not one, or has no times."""
    how = "`python -m bench --csv NEW.csv` writes one"
    if not path.is_file():
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; need a results file: {how}")
    try:
        data = table.read(path)
    except (ValueError, OSError) as e:  # empty, binary, or rows of different lengths
        raise ValueError(f"{path} is not a CSV file ({str(e).strip()}); need a results file: {how}") from e
    if lacking := [name for name in NEEDED if name not in data]:
        raise ValueError(f"{path} lacks the columns {', '.join(lacking)}; need {', '.join(NEEDED)}: {how}")
    if data["ms"].isna().all():
        raise ValueError(f"{path} has no times, as a run without a GPU writes it; need a file measured on one")
    return Results(str(path), data)


def changes(old: Results, new: Results) -> pd.DataFrame:
    """A row for each variant at each shape of either: ms of both, new over old with its noise band, and the verdict.

    The band is what the ratio is between when each time is anywhere in its percentiles.
    """
    both = pd.concat([new.timed[KEY], old.timed[KEY]]).drop_duplicates()
    for results, suffix in ((old, "_old"), (new, "_new")):
        times = results.timed[KEY + TIMES].rename(columns={name: name + suffix for name in TIMES})
        both = both.merge(times, on=KEY, how="left")
    ratio = both["ms_new"] / both["ms_old"]
    low, high = both["ms_p20_new"] / both["ms_p80_old"], both["ms_p80_new"] / both["ms_p20_old"]
    verdict = pd.Series("same", both.index)
    verdict[(high < 1) & (ratio < 1 - BEYOND)] = "faster"
    verdict[(low > 1) & (ratio > 1 + BEYOND)] = "slower"
    verdict[both["ms_new"].isna()] = "only in old"
    verdict[both["ms_old"].isna()] = "only in new"
    return pd.DataFrame(
        {
            "case": [str(Case(*key)) for key in both[table.CASE].itertuples(index=False)],
            "variant": both["variant"],
            "ms_old": both["ms_old"],
            "ms_new": both["ms_new"],
            "ratio": ratio,
            "ratio_low": low,
            "ratio_high": high,
            "verdict": verdict,
        }
    )


def text(old: Results, new: Results, form: str) -> str:
    """The table, between where both files come from and what is in one of them only."""
    found = changes(old, new)
    shared = found[found["ratio"].notna()]
    parts = ["\n".join([f"old: {_said(old)}", f"new: {_said(new)}", *_differences(old, new)])]
    if shared.empty:
        parts.append("no variant has a time at the same shape in both")
    else:
        ms, ratio = "{:.4g}".format, "{:.3f}".format
        noise = [
            f"{ratio(low)}..{ratio(high)}" for low, high in zip(shared["ratio_low"], shared["ratio_high"], strict=True)
        ]
        body = pd.DataFrame(
            {
                "case": shared["case"],
                "variant": shared["variant"],
                "old ms": shared["ms_old"].map(ms),
                "new ms": shared["ms_new"].map(ms),
                "new / old": shared["ratio"].map(ratio),
                "noise": noise,
                "verdict": [v if v == "same" else table.emphasised(v, "**", form) for v in shared["verdict"]],
            }
        )
        align = ("left", "left", "right", "right", "right", "right", "left")
        parts.append(body.to_markdown(index=False, tablefmt=form, colalign=align, disable_numparse=True))
        counts = shared["verdict"].value_counts()
        parts.append(", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in ("faster", "slower", "same")))
    for verdict, results in (("only in old", old), ("only in new", new)):
        alone = found[found["verdict"] == verdict]
        if not alone.empty:
            names = [f"{v} at {case}" for v, case in zip(alone["variant"], alone["case"], strict=True)]
            parts.append(f"timed only in {results.name}: {', '.join(names)}")
    return "\n\n".join(parts)


def _said(results: Results) -> str:
    quick = results.rows["note"].eq(QUICK).any() if "note" in results.rows else False
    return f"{results.name}: {table.origin(results.rows)}{', quick' if quick else ''}"


def _differences(old: Results, new: Results) -> list[str]:
    """A line where the files were not measured under the same conditions."""
    found = []
    for name in SETTING:
        a, b = ([*dict.fromkeys(results.rows[name].astype(str))] for results in (old, new))
        if a != b:
            found.append(f"{name} {' and '.join(a)} against {' and '.join(b)}")
    return [f"NOT UNDER THE SAME CONDITIONS: {'; '.join(found)}"] if found else []
