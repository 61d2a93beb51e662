"""The bench day by day: what changed since a results file, JSON and Markdown, a quick look, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import bench.__main__ as command
from bench import changes, measure, run, table
from bench.catalog import VARIANTS
from bench.compiled import Compiled
from bench.environment import Environment, environment
from bench.suites import Case
from triton_sgemm.device import Gpu
from triton_sgemm.variants import Variant

ROOT = Path(__file__).parent.parent
ORIGIN = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "triton": "3.6.0", "commit": "abc", "date": "d"}


def row(variant: str, *ms: float, N: int = 64, **other) -> table.Row:
    """A row with a median, 20th and 80th percentile, or with no time."""
    times = dict(zip(("ms", "ms_p20", "ms_p80"), ms, strict=False))
    return table.Row(variant, "torch", variant, "ieee", "NN", 1, N, N, N, **times, **ORIGIN | other)


def results(name: str, *rows: table.Row) -> changes.Results:
    return changes.Results(name, table.frame(list(rows)))


def written(path: Path, *rows: table.Row) -> Path:
    table.save(list(rows), path)
    return path


def bench(*args: object) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-m", "bench", *map(str, args)]
    return subprocess.run(command_line, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"COLUMNS": "200"})


# ---- --compare


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ((1.00, 0.99, 1.01), (0.90, 0.89, 0.91), "faster"),
        ((1.00, 0.99, 1.01), (1.10, 1.09, 1.11), "slower"),
        ((1.00, 0.99, 1.01), (1.00, 0.99, 1.01), "same"),
        ((1.00, 0.80, 1.20), (1.10, 1.09, 1.30), "same"),  # 10 %, but the intervals overlap
        ((1.00, 0.80, 1.10), (1.20, 1.10, 1.30), "same"),  # they touch
        ((1.00, 0.999, 1.001), (1.015, 1.014, 1.016), "same"),  # apart, but by less than 2 %
        ((1.00, 0.999, 1.001), (0.985, 0.984, 0.986), "same"),
    ],
)
def test_a_change_is_one_that_noise_does_not_explain(old: tuple, new: tuple, verdict: str) -> None:
    [found] = changes.changes(results("old", row("v", *old)), results("new", row("v", *new))).itertuples()
    assert (found.verdict, found.case, found.variant) == (verdict, "64", "v")
    assert found.ratio == pytest.approx(new[0] / old[0])
    assert (found.ratio_low, found.ratio_high) == pytest.approx((new[1] / old[2], new[2] / old[1]))


def test_rows_are_matched_by_shape_layout_and_data() -> None:
    old = [row("v", 1, 1, 1), row("v", 2, 2, 2, N=128), row("v", 3, 3, 3, data="relu"), row("gone", 1, 1, 1)]
    new = [row("v", 2, 2, 2, N=128), row("new", 1, 1, 1), row("v", 9, 9, 9), row("v", 3, 3, 3, data="relu")]
    found = changes.changes(results("old", *old), results("new", *new))
    assert [*zip(found["case"], found["variant"], found["verdict"], strict=True)] == [
        ("128", "v", "same"),
        ("64", "new", "only in new"),
        ("64", "v", "slower"),
        ("64:NN:relu", "v", "same"),
        ("64", "gone", "only in old"),
    ]


def test_what_has_no_time_is_not_compared() -> None:
    found = changes.changes(
        results("old", row("v", 1, 1, 1), row("w")), results("new", row("v", note="wrong"), row("w"))
    )
    assert [*zip(found["variant"], found["verdict"], strict=True)] == [("v", "only in old")]


def test_of_two_suites_with_one_shape_the_last_counts() -> None:
    twice = results("old", row("v", 1, 1, 1), row("v", 2, 2, 2))
    assert [*changes.changes(twice, results("new", row("v", 2, 2, 2)))["verdict"]] == ["same"]


def test_the_comparison_as_shown() -> None:
    old = results("OLD.csv", row("v", 1, 0.99, 1.01), row("gone", 1, 1, 1))
    new = results("NEW.csv", row("v", 2, 1.9, 2.1, commit="def"), row("added", 1, 1, 1, note="quick"))
    text = changes.text(old, new, table.MARKDOWN)
    assert "old: OLD.csv: NVIDIA H200, driver 580, torch 2.11.0, Triton 3.6.0, d, commit abc\n" in text
    assert re.search(r"new: NEW.csv: .*, quick\n", text)
    assert re.search(r"\| 64 +\| v +\| +1 \| +2 \| +2.000 \| 1.881\.\.2.121 \| \*\*slower\*\* +\|", text)
    assert "0 faster, 1 slower, 0 same" in text and "SAME CONDITIONS" not in text
    assert "timed only in OLD.csv: gone at 64" in text and "timed only in NEW.csv: added at 64" in text
    assert "*" not in changes.text(old, new, table.PLAIN)
    nothing = changes.text(results("a", row("v", 1, 1, 1)), results("b", row("w", 1, 1, 1)), table.PLAIN)
    assert "no variant has a time at the same shape in both" in nothing


def test_other_conditions_are_said_in_a_line() -> None:
    new = results("new", row("v", 1, 1, 1, gpu="NVIDIA A100", triton="3.7.0", commit="def", date="later"))
    [line] = [s for s in changes.text(results("old", row("v", 1, 1, 1)), new, table.PLAIN).splitlines() if "NOT" in s]
    assert line == ("NOT UNDER THE SAME CONDITIONS: gpu NVIDIA H200 against NVIDIA A100; triton 3.6.0 against 3.7.0")


def test_two_files_are_compared_without_a_gpu(tmp_path: Path) -> None:
    old = written(tmp_path / "old.csv", row("v", 1, 0.99, 1.01), row("w", 1, 0.99, 1.01))
    new = written(tmp_path / "new.csv", row("v", 0.5, 0.49, 0.51))
    done = bench("--compare", old, new)
    assert done.returncode == 0 and done.stderr == "" and "1 faster, 0 slower, 0 same" in done.stdout
    done = bench("--compare", old, new, "--format", "json")
    first, last = json.loads(done.stdout)
    assert first == {
        "case": "64", "variant": "v", "ms_old": 1, "ms_new": 0.5, "ratio": 0.5, "ratio_low": 0.485149,
        "ratio_high": 0.515152, "verdict": "faster",
    }  # fmt: skip
    assert (last["variant"], last["ms_new"], last["verdict"]) == ("w", None, "only in old")


def test_a_results_file_of_the_repository_against_itself() -> None:
    committed = changes.load(table.RESULTS / "nvidia-h200" / "square.csv")
    assert set(changes.changes(committed, committed)["verdict"]) == {"same"}


def test_files_that_are_no_results(tmp_path: Path) -> None:
    for content, text in {
        "": "is not a CSV file",
        "variant,ms,M,N,K\nv,1,2,3,4\n": "lacks the columns batch, layout, ms_p20, ms_p80, gpu, driver, torch, triton, "
        "commit, date; need variant, M, N, K, batch, layout, ms, ",
        "\0\x89PNG\n1,2,3\n": "f.csv ",
    }.items():
        (tmp_path / "f.csv").write_text(content)
        with pytest.raises(ValueError, match=re.escape(text)) as e:
            changes.load(tmp_path / "f.csv")
        assert "`python -m bench --csv NEW.csv` writes one" in str(e.value)
    with pytest.raises(ValueError, match="has no times, as a run without a GPU"):
        changes.load(written(tmp_path / "cpu.csv", row("v")))
    with pytest.raises(ValueError, match="is a folder; need a results file"):
        changes.load(tmp_path)


# ---- --format


def crosschecked(*names: str) -> pd.DataFrame:
    return table.frame(run.crosschecked(Case(8, 8, 8), [VARIANTS[name] for name in names], environment()))


def test_json_says_what_the_csv_says(tmp_path: Path) -> None:
    data = crosschecked("cublas", "naive_cuda")
    table.save_frame(data, tmp_path / "x.csv")
    rows = json.loads(table.json_text(data))
    assert [list(r) for r in rows] == [table.COLUMNS] * 2 and rows[0]["ms"] is None and rows[0]["M"] == 8
    read = pd.DataFrame(rows, columns=table.COLUMNS)
    read.to_csv(tmp_path / "y.csv", index=False)
    assert (tmp_path / "y.csv").read_text() == (tmp_path / "x.csv").read_text()


def test_text_is_the_same_table_without_markdown() -> None:
    data = crosschecked("cublas", "naive_cuda")
    markdown, plain = table.text(data), table.text(data, form=table.PLAIN)
    assert "**" not in plain and "|" not in plain and plain.startswith("M = 8, N = 8, K = 8\n\nvariant")
    assert plain.split() != [] and set(re.findall(r"[\w.]+", plain)) == set(re.findall(r"[\w.]+", markdown))
    many = table.frame([row("cublas", 1, 1, 1, N=n) for n in range(1, table.MANY + 2)])
    assert "*geometric mean*" in table.printed(many) and "*" not in table.printed(many, table.PLAIN)


@pytest.fixture
def without_compilers(monkeypatch) -> None:
    """The cross-check without the machine code, which takes minutes."""
    monkeypatch.setattr(command, "read_all", lambda archs, names: [Compiled(name, archs[0]) for name in names])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def called(monkeypatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *map(str, args)])
    return command.main()


def test_json_is_all_there_is_on_standard_output(monkeypatch, capsys, tmp_path: Path, without_compilers) -> None:
    args = ("--sizes", "8", "--variants", "cublas", "--format", "json", "--csv", tmp_path / "x.csv")
    assert called(monkeypatch, *args) == 0
    out, err = capsys.readouterr()
    assert [r["variant"] for r in json.loads(out)] == ["cublas"]
    assert "written: " in err and "cross-check on the CPU" in err


def test_markdown_is_asked_for(monkeypatch, capsys, without_compilers) -> None:
    assert called(monkeypatch, "--sizes", "8", "--variants", "cublas", "--format", "markdown") == 0
    assert "**M = 8, N = 8, K = 8**\n\n| variant" in capsys.readouterr().out


# ---- exit status


@pytest.mark.parametrize("what", ["wrong", "failed"])
def test_a_variant_that_is_wrong_or_fails_is_in_the_exit_status(
    what: str, monkeypatch, capsys, without_compilers
) -> None:
    def mutant(p, a, b, c, out) -> None:
        if what == "failed":
            raise RuntimeError("no such kernel")
        torch.mm(a, b, out=out)
        out[0, 0] += 1

    variants = {"cublas": VARIANTS["cublas"], "mutant": Variant("mutant", "torch", "ieee", run_with=mutant, doc="x")}
    monkeypatch.setattr(command, "VARIANTS", variants)
    assert called(monkeypatch, "--sizes", "8") == 1
    out, err = capsys.readouterr()
    assert re.search(rf"^FAILED mutant at 8: {what}: ", err, re.MULTILINE) and "cublas" in out
    del variants["mutant"]
    assert called(monkeypatch, "--sizes", "8") == 0


# ---- --quick, with a CPU in place of the GPU


@pytest.fixture
def cpu_for_gpu(monkeypatch) -> list[measure.Effort]:
    """A run on the CPU, whose rows have the same times; the efforts that were asked for."""
    efforts = []

    def timed(case, variants, card, where, step, effort):
        efforts.append(effort)
        fails = [row("broken", N=case.M, note="wrong: all of it")]
        return [*(row(v.name, 1.0, 0.99, 1.01, N=case.M) for v in variants), *fails]

    card = Gpu("NVIDIA H200", 90, sms=132, l2_bytes=1 << 20, max_clock_mhz=1980)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(command, "gpu", lambda index: card)
    monkeypatch.setattr(command, "environment", lambda: Environment(**ORIGIN))
    monkeypatch.setattr(run, "timed", timed)
    return efforts


def test_quick_rows_say_so(monkeypatch, capsys, tmp_path: Path, cpu_for_gpu) -> None:
    args = ("--sizes", "64", "96", "--variants", "cublas", "--csv", tmp_path / "x.csv")
    assert called(monkeypatch, *args, "--quick") == 1  # the broken one
    assert cpu_for_gpu == [measure.QUICK] * 2 and measure.QUICK.rounds == 1
    data = table.read(tmp_path / "x.csv")
    assert list(data["note"]) == ["quick", "wrong: all of it"] * 2
    out, err = capsys.readouterr()
    assert "chapter, quick\n" in out and "chapter 2/2: 96" in err
    assert called(monkeypatch, *args) == 1 and cpu_for_gpu[2:] == [measure.FULL] * 2
    assert table.read(tmp_path / "x.csv")["note"].isna().sum() == 2


def test_what_is_measured_is_compared_with_a_file(monkeypatch, capsys, tmp_path: Path, cpu_for_gpu) -> None:
    old = written(tmp_path / "old.csv", row("cublas", 0.5, 0.49, 0.51), row("gone", 1, 1, 1))
    args = ("--sizes", "64", "--variants", "cublas", "--compare", old)
    called(monkeypatch, *args)
    out = capsys.readouterr().out
    assert re.search(r"64 +cublas +0.5 +1 +2.000 +1.941..2.061 +slower", out) and "new: this run: NVIDIA H200" in out
    called(monkeypatch, *args, "--format", "json")
    assert [r["verdict"] for r in json.loads(capsys.readouterr().out)] == ["slower", "only in old"]


# ---- wrong options


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--quick", "--csv", "results"], "results of --quick do not go into a results folder (results); give a .csv"),
        (["--format", "xml"], "invalid choice: 'xml' (choose from "),
        (
            ["--compare", "none.csv", "none.csv"],
            "--compare: none.csv is not there; need a results file: `python -m bench",
        ),
        (["--compare", "a.csv", "b.csv", "c.csv"], "takes OLD.csv or OLD.csv NEW.csv but came with 3 files; leave out"),
        (
            ["--compare", "a.csv", "b.csv", "--quick", "--sizes", "64"],
            "measures nothing; leave out --sizes, --quick, or",
        ),
        (["--csv", "Makefile"], "--csv: Makefile is a file; need a name that ends in .csv, or a folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_options(args: list[str], text: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as e:
        called(monkeypatch, *args)
    assert e.value.code == 2 and text in capsys.readouterr().err


def test_measuring_to_compare_needs_a_gpu(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as e:
        called(monkeypatch, "--compare", "old.csv")
    assert e.value.code == 2 and "no CUDA GPU; give a second file, OLD.csv NEW.csv" in capsys.readouterr().err


@pytest.mark.gpu
def test_quick_on_a_gpu(tmp_path: Path) -> None:
    args = ("--sizes", "256", "--variants", "matmul_ieee", "--quick")
    done = bench(*args, "--csv", tmp_path / "old.csv")
    assert done.returncode == 0, done.stderr
    assert set(table.read(tmp_path / "old.csv")["note"]) == {"quick"}
    done = bench(*args, "--compare", tmp_path / "old.csv", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert {r["variant"] for r in json.loads(done.stdout)} == {"cublas", "matmul_ieee"}
