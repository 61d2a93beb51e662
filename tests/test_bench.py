"""The bench as a user meets it: tables, files, options, exit status, and documents that keep their word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from bench import compare, measure, run, table
from bench.catalog import VARIANTS
from bench.environment import environment
from bench.suites import SUITES, Case
from reference_cuda.rungs import RUNGS
from triton_sgemm.testing import reference
from triton_sgemm.variants import Variant

ROOT = Path(__file__).parent.parent
WRITTEN_BY_HAND = re.compile(r"`(make [a-z-]+|python -m [a-z_.]+)")


def wrong(p, a, b, c, out) -> None:
    """A TF32 product, near enough to pass for float32 at a glance."""
    bits = a.view(torch.int32)
    torch.mm(((bits + 0x1000) & ~0x1FFF).view(torch.float32), b, out=out)


def dropped(p, a, b, c, out) -> None:
    """All of K but the last step."""
    torch.mm(a[:, :-16], b[:-16], out=out)


def unwritten(p, a, b, c, out) -> None:
    """Leaves one element as it was."""
    value = out[3, 4].clone()
    torch.mm(a, b, out=out)
    out[3, 4] = value


@pytest.mark.parametrize("mutant", [wrong, dropped, unwritten], ids=lambda f: f.__name__)
def test_a_wrong_variant_gets_no_time(mutant) -> None:
    v = Variant("mutant", "torch", "ieee", run_with=mutant, doc=mutant.__doc__)
    x = measure.Operands.random(Case(64, 64, 256), "cpu")
    _, verdict = measure.verify(v, x, reference(x.a, x.b))
    assert verdict.startswith("wrong: max error")
    row = run.crosschecked(Case(64, 64, 256), [v], environment())[0]
    assert run.failed(row) and row.ms is None


def test_a_variant_that_raises_leaves_the_others_their_rows() -> None:
    def broken(*_):
        raise RuntimeError("no such kernel\nand more")

    rows = run.crosschecked(
        Case(32, 32, 32),
        [Variant("broken", "cuda", "ieee", run_with=broken, doc="x"), VARIANTS["cublas"]],
        environment(),
    )
    assert rows[0].note.startswith("failed: no such kernel;") and run.failed(rows[0])
    assert rows[1].rel_err is not None and not run.failed(rows[1])


def test_results_file(tmp_path: Path) -> None:
    rows = run.crosschecked(Case(32, 32, 32), [VARIANTS["cublas"], VARIANTS["smem_tiling_cuda"]], environment())
    table.save(rows, tmp_path / "gpu" / "suite.csv")
    data = pd.read_csv(tmp_path / "gpu" / "suite.csv")
    columns = """variant backend algorithm precision layout batch M N K ms ms_p20 ms_p80 gflops pct_cublas
        rel_err max_err fallback gpu driver torch triton commit date"""
    assert list(data.columns)[:23] == columns.split()
    assert list(data["variant"]) == ["cublas", "smem_tiling_cuda"]
    assert data["ms"].isna().all() and (data["rel_err"] > 0).all()
    assert [p.name for p in (tmp_path / "gpu").iterdir()] == ["suite.csv"]


def test_table_shows_a_failure_and_empty_times() -> None:
    rows = run.crosschecked(Case(32, 32, 32), [VARIANTS["cublas"]], environment())
    text = table.text(table.frame([*rows, replace(rows[0], variant="late", ms=1.25, gflops=52.4, note="")]))
    assert "**M = 32, N = 32, K = 32**" in text
    assert re.search(r"\| cublas +\| torch +\| ieee +\| +\| +\| +\|", text)
    assert re.search(r"\| late .*\| 1.25 \| +52 \|", text)
    assert "no time: no CUDA GPU" in text


def bench(*args: str, module: str = "bench") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--variants", "nope*"], "no variant is called 'nope*'; there are cublas"),
        (["--sizes", "12x"], "size '12x': need a number such as 4096, or MxNxK"),
        (["--sizes", "0"], "size '0': need a number such as 4096"),
        (["--suite", "nope"], "invalid choice: 'nope'"),
        (["--suite", "chapter", "square", "--csv", "x.csv"], "x.csv is one file but --suite names 2; give a folder"),
        (["--sizes", "64", "--csv", "results"], "only a whole suite goes into a results folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_options(args: list[str], text: str) -> None:
    done = bench(*args)
    assert done.returncode == 2 and text in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the bench times instead")
def test_bench_without_a_gpu(tmp_path: Path) -> None:
    done = bench("--sizes", "64", "--variants", "smem_*", "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    assert "TF32 off" in done.stdout and "no CUDA GPU" in done.stdout
    assert re.search(r"smem_tiling_cuda .* 8192 \| +0 \| checked: executed on the CPU", done.stdout)
    assert re.search(r"smem_tiling_triton .* 8192 \| +0 \| checked: Triton's interpreter", done.stdout)
    assert len(pd.read_csv(tmp_path / "out.csv")) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the bench times instead")
def test_compare_without_a_gpu() -> None:
    rows = compare.compared(Case(64, 64, 64))
    assert list(rows["rung"]) == [r.number for r in RUNGS]
    assert "compare" not in rows.iloc[2]["note"] and float(rows.iloc[2]["largest difference"]) < 1e-4
    assert set(rows["ms CUDA"]) == {""}


@pytest.mark.gpu
def test_bench_on_a_gpu(tmp_path: Path) -> None:
    done = bench("--sizes", "256", "--variants", "smem_*", "dot_32*", "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    data = pd.read_csv(tmp_path / "out.csv").set_index("variant")
    assert (data["ms"] > 0).all() and (data["ms_p20"] <= data["ms"]).all() and (data["ms"] <= data["ms_p80"]).all()
    assert data.loc["cublas", "pct_cublas"] == 100
    assert data["ms_eager"].notna().all()


@pytest.mark.gpu
def test_a_variant_too_slow_is_skipped_with_its_reason(monkeypatch) -> None:
    monkeypatch.setattr(measure, "TOO_SLOW_MS", 1e-6)
    x = measure.Operands.random(Case(64, 64, 64), "cuda")
    figures = run._verified(VARIANTS["naive_cuda"], x, Case(64, 64, 64), measure.expectation(x))
    assert figures["note"].startswith("skipped: about")


def test_sizes() -> None:
    assert Case.parse("64") == Case(64, 64, 64) and Case.parse("1x2x3") == Case(1, 2, 3)
    for text in ("", "1x2", "-4", "1x2x3x4", "axbxc"):
        with pytest.raises(ArgumentTypeError, match="need a number such as 4096"):
            Case.parse(text)
    assert {c.M for c in SUITES["square"].cases} >= {256, 4095, 4096, 4097, 16384}


# ---- documents


@pytest.mark.parametrize("path", table.documents(), ids=lambda p: p.name)
def test_tables_in_documents_are_those_of_the_results(path: Path) -> None:
    assert table.filled(path.read_text()) == path.read_text(), "run make table"


@pytest.mark.parametrize("path", [*table.documents(), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_commands_in_documents_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text()
    commands = WRITTEN_BY_HAND.findall(text) + re.findall(r"^(make [a-z-]+|python -m [a-z_.]+)", text, re.MULTILINE)
    for command in commands:
        if command.startswith("make "):
            assert command.split()[1] in targets, command
        else:
            module = ROOT / command.split()[2].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists() or module.name == "pytest"


@pytest.mark.parametrize("path", [*table.documents(), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_readme_commands_are_what_ci_runs() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "make test" in readme and "make bench" in readme
    assert re.search(r"^make lint$", ci, re.MULTILINE) and re.search(r"^make test$", ci, re.MULTILINE)
