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

from bench import catalog, compare, measure, precision, run, table
from bench.__main__ import arguments
from bench.catalog import BASELINES, VARIANTS, select, with_baselines
from bench.data import DATA
from bench.environment import environment
from bench.suites import LAYOUTS, SUITES, Case
from reference_cuda.rungs import RUNGS
from triton_sgemm.device import Gpu
from triton_sgemm.problem import problem
from triton_sgemm.testing import errors, random_bound, reference
from triton_sgemm.variants import Variant

ROOT = Path(__file__).parent.parent
WRITTEN_BY_HAND = re.compile(r"`(make [a-z-]+|python -m [a-z_.]+)")


def right(p, a, b, c, out) -> None:
    torch.mm(a, b, out=out)


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
    assert list(data.columns)[:23] == columns.split() and data.columns[-1] == "data"
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
        (["--sizes", "12x"], "size '12x': need a number from 1 on such as 4096, or MxNxK"),
        (["--sizes", "64:NN:relu:x"], "size '64:NN:relu:x': 4 fields; need SHAPE[:LAYOUT[:DATA]]"),
        (["--sizes", "0"], "size '0': need a number from 1 on such as 4096"),
        (["--sizes", "64:NX"], "size '64:NX': the layout is one of NN, NT, TN, TT, ld+1, offset1"),
        (["--sizes", "64:NN:x"], "size '64:NN:x': the data is one of normal, "),
        (["--suite", "nope"], "invalid choice: 'nope'"),
        (["--suite", "chapter", "square", "--csv", "x.csv"], "x.csv is one file but --suite names 2; give a folder"),
        (["--sizes", "64", "--csv", "results"], "only a whole suite goes into a results folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_options(args: list[str], text: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["bench", *args])
    with pytest.raises(SystemExit) as e:
        arguments()
    assert e.value.code == 2 and text in capsys.readouterr().err


def test_a_wrong_option_of_compiled() -> None:
    done = bench("--variants", "nope*", module="bench.compiled")
    assert done.returncode == 2 and "error: no variant is called 'nope*'; there are cublas" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the bench times instead")
def test_bench_without_a_gpu(tmp_path: Path) -> None:
    done = bench("--sizes", "64", "--variants", "smem_*", "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    assert "TF32 off" in done.stdout and "no CUDA GPU" in done.stdout
    assert re.search(r"smem_tiling_cuda .* 8192 +0 +checked: executed on the CPU", done.stdout)
    assert re.search(r"smem_tiling_triton .* 8192 +0 +checked: Triton's interpreter", done.stdout)
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
def test_tf32_is_on_for_its_own_rows_alone(tmp_path: Path) -> None:
    variants = ["matmul_*", "cublas_tf32", "dot_tf32x3", "dot_bf16x6"]
    done = bench("--sizes", "1000x512x1024", "4096", "--variants", *variants, "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    data = table.read(tmp_path / "out.csv").set_index("variant")
    assert (data.loc["cublas_tf32", "rel_err"] > 1e-5).all() and (data.loc["cublas_tf32", "pct_cublas"] == 100).all()
    strict = data[data["precision"] != "tf32"]
    assert (strict["rel_err"] < 1e-5).all() and (data["ms"] > 0).all()


@pytest.mark.gpu
def test_what_is_not_finite_on_a_gpu(tmp_path: Path) -> None:
    sizes = ["256:NN:infinite", "16x64x64x64:NT:infinite"]
    done = bench("--sizes", *sizes, "--variants", "matmul_*", "cublas_tf32", "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    data = table.read(tmp_path / "out.csv")
    assert (data["ms"] > 0).all() and data["rel_err"].isna().all() and set(data["data"]) == {"infinite"}


@pytest.mark.gpu
def test_batches_and_layouts_on_a_gpu(tmp_path: Path) -> None:
    sizes = [*(f"16x48x64x80:{layout}" for layout in LAYOUTS), *(f"192:{layout}" for layout in LAYOUTS), "8x2048x2048"]
    done = bench("--sizes", *sizes, "--variants", "matmul_*", "naive_cuda", "--csv", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    assert f"chapter {len(sizes)}/{len(sizes)}: 8x2048x2048" in done.stderr and "geometric mean" in done.stdout
    data = pd.read_csv(tmp_path / "out.csv")
    timed = data[data["variant"] != "naive_cuda"]
    assert timed["note"].isna().all() and (timed["ms"] > 0).all() and (timed["ms_eager"] > 0).all()
    taken = data[(data["variant"] == "naive_cuda") & data["ms"].notna()]
    assert [*zip(taken["batch"], taken["layout"], strict=True)] == [(1, "NN"), (1, "offset1"), (1, "NN")]


@pytest.mark.gpu
def test_a_variant_too_slow_is_skipped_with_its_reason(monkeypatch) -> None:
    monkeypatch.setattr(measure, "TOO_SLOW_MS", 1e-6)
    x = measure.Operands.random(Case(64, 64, 64), "cuda")
    figures = run._verified(VARIANTS["naive_cuda"], x, Case(64, 64, 64), measure.expectation(x))
    assert figures["note"].startswith("skipped: about")


# ---- shapes, layouts, and how they are timed

EVERY_CASE = list(dict.fromkeys(case for suite in SUITES.values() for case in suite.cases))
H200 = Gpu("NVIDIA H200", 90, sms=132, l2_bytes=60 << 20, max_clock_mhz=1980)


def test_sizes() -> None:
    assert Case.parse("64") == Case(64, 64, 64) and Case.parse("1x2x3") == Case(1, 2, 3)
    assert Case.parse("5x1X2x3") == Case(1, 2, 3, batch=5) and Case.parse("1x64x64x64") == Case(64, 64, 64)
    assert Case.parse("1x2x3:ld+1") == Case(1, 2, 3, layout="ld+1")
    for text in ("", "1x2", "-4", "1x2x3x4x5", "axbxc", "0x1x2x3", "4x", ":NN"):
        with pytest.raises(ArgumentTypeError, match="need a number from 1 on such as 4096"):
            Case.parse(text)
    assert Case.parse("4:NN:relu") == Case(4, 4, 4, data="relu") and Case.parse("4:TN:normal") == Case(4, 4, 4, 1, "TN")
    assert str(Case(4, 4, 4, data="relu")) == "4:NN:relu" and Case(4, 4, 4, data="relu").title.endswith(", data relu")
    with pytest.raises(ArgumentTypeError, match="the data is one of normal,"):
        Case.parse("4:NN:nothing")
    with pytest.raises(ArgumentTypeError, match="4 fields; need SHAPE"):
        Case.parse("4:NN:relu:NN")
    for text in ("4:", "4:nn", "4:NNN", "4::relu", "4:relu"):
        with pytest.raises(ArgumentTypeError, match="the layout is one of NN, NT"):
            Case.parse(text)
    assert [Case.parse(str(case)) for case in EVERY_CASE] == EVERY_CASE
    assert str(Case(64, 64, 64)) == "64" and str(Case(64, 64, 64, 256, "TN")) == "256x64x64x64:TN"


def test_suites() -> None:
    assert {c.M for c in SUITES["square"].cases} >= {256, 4095, 4096, 4097, 16384}
    assert {c.layout for c in SUITES["layouts"].cases} == set(LAYOUTS)
    assert {min(c.M, c.N) for c in SUITES["skinny"].cases} == {1, 8, 16, 64}
    assert {c.K for c in SUITES["deep"].cases} >= {4096, 500_000}
    assert {c.batch for c in SUITES["batched"].cases} == {16, 256, 1024, 4096}
    for suite in SUITES.values():
        assert len(set(suite.cases)) == len(suite.cases)
        chosen = select(list(suite.variants))
        assert {BASELINES[v.precision].name for v in chosen} <= {v.name for v in chosen}
    assert {c.data for c in SUITES["data"].cases} >= {"softmax", "relu_squared", "unscaled", "gradients", "infinite"}
    new = {"cublas_tf32", "dot_tf32x3", "dot_bf16x6", "matmul_fp32", "matmul_tf32", "matmul_ieee"}
    assert new <= {v.name for v in select(list(SUITES["square"].variants))}


def test_work_counts_the_batch() -> None:
    case = Case(2, 3, 5, batch=7, layout="TN")
    assert case.flops == 2 * 7 * 2 * 3 * 5 and case.bytes_moved == 4 * 7 * (10 + 15 + 6)
    x = measure.Operands.random(case, "cpu")
    assert x.problem.flops == case.flops
    assert case.bytes_moved == sum(t.numel() * t.element_size() for t in (x.a, x.b, x.out))


@pytest.mark.parametrize(
    ("layout", "a", "b", "offset"),
    [
        ("NN", (5, 1), (3, 1), 0),
        ("NT", (5, 1), (1, 5), 0),
        ("TN", (1, 2), (3, 1), 0),
        ("TT", (1, 2), (1, 5), 0),
        ("ld+1", (6, 1), (4, 1), 0),
        ("offset1", (5, 1), (3, 1), 1),
    ],
)
def test_operands_are_stored_as_the_layout_says(layout: str, a: tuple, b: tuple, offset: int) -> None:
    x = measure.Operands.random(Case(2, 3, 5, layout=layout), "cpu")
    assert (x.a.shape, x.b.shape, x.out.shape) == ((2, 5), (5, 3), (2, 3))
    assert (x.a.stride(), x.b.stride(), x.out.stride()) == (a, b, (3, 1))
    assert x.a.storage_offset() == x.b.storage_offset() == offset

    batch = measure.Operands.random(Case(2, 3, 5, batch=4, layout=layout), "cpu")
    assert (batch.a.shape, batch.b.shape, batch.out.shape) == ((4, 2, 5), (4, 5, 3), (4, 2, 3))
    assert (batch.a.stride()[1:], batch.b.stride()[1:], batch.out.stride()) == (a, b, (6, 3, 1))
    assert batch.a.storage_offset() == batch.b.storage_offset() == offset
    assert batch.problem.batch == (4,)
    for t in (x.a, x.b, batch.a, batch.b):
        assert t.std() > 0 and not t.isnan().any()


def test_short_cases_are_timed_by_graph_replay() -> None:
    assert [c.M for c in SUITES["square"].cases if measure.is_short(c)] == [256, 512, 1024, 2048]
    for case in (Case(1, 4096, 4096), Case(16384, 16, 16384), Case(64, 64, 500_000), Case(256, 256, 256, batch=256)):
        assert measure.is_short(case), case
    for case in (Case(64, 16384, 16384), Case(512, 512, 500_000), Case(256, 256, 256, batch=1024)):
        assert not measure.is_short(case), case
    for layout in LAYOUTS:
        assert not measure.is_short(Case(4096, 4096, 4096, layout=layout))


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_operands_of_a_graph_exceed_the_cache_but_not_the_memory(case: Case) -> None:
    if not measure.is_short(case):
        assert case.bytes_moved < 8 << 30
        return
    sets, calls = measure._sets_and_calls(case, H200)
    assert 2 * H200.l2_bytes < sets * case.bytes_moved < 5 << 30
    assert sets <= calls <= measure.GRAPH_CALLS
    assert calls * measure.about_ms(case) >= measure.GRAPH_MS


def test_operands_of_a_graph_keep_the_layout() -> None:
    case = Case(32, 48, 64, batch=2, layout="ld+1")
    x = measure.Operands.random(case, "cpu")
    small_cache = replace(H200, l2_bytes=3 * case.bytes_moved)
    in_turn = measure._in_turn(case, small_cache, "cpu")
    assert len({y.a.data_ptr() for y in in_turn}) == 7 and len(in_turn) == 100
    assert all((y.a.stride(), y.b.stride()) == (x.a.stride(), x.b.stride()) for y in in_turn)


def test_a_time_is_predicted_from_a_smaller_case_of_the_same_kind() -> None:
    assert measure._smaller(Case(64, 64, 500_000)) == Case(64, 64, 2048)
    assert measure._smaller(Case(4096, 1, 4096, 4096, "TT")) == Case(2048, 1, 2048, 64, "TT")


# ---- run.timed, with a CPU in place of the GPU


@pytest.fixture
def cpu_for_gpu(monkeypatch) -> None:
    """Operands on the CPU, every call predicted to be quick, samples of a millisecond, graphs that are lists."""

    class Graph:
        def __init__(self, variant: Variant, in_turn: list[measure.Operands]) -> None:
            self.replay = lambda: [x.run(variant) for x in in_turn]

    def sample(call, flush=None) -> float:
        call()
        return 1.0

    random = measure.Operands.random
    monkeypatch.setattr(measure.Operands, "random", lambda case, device: random(case, "cpu"))
    monkeypatch.setattr(measure, "predicted_ms", lambda v, case: 1e9 if v.name == "slow" else 1.0)
    monkeypatch.setattr(measure, "load", sample)
    monkeypatch.setattr(measure, "sample", sample)
    monkeypatch.setattr(measure, "_graph", Graph)
    monkeypatch.setattr(measure, "SAMPLES_S", 1e-3)


TINY_CACHE = replace(H200, l2_bytes=1 << 12)


def variant(name: str, run_with, **facts) -> Variant:
    return Variant(name, "torch", facts.pop("precision", "ieee"), run_with=run_with, doc="x", **facts)


def test_only_what_is_right_is_timed(cpu_for_gpu) -> None:
    def broken(*_):
        raise RuntimeError("no such kernel\nand more")

    steps = []
    variants = [
        VARIANTS["cublas"],
        *(variant(f.__name__, f) for f in (wrong, dropped, unwritten, broken, right)),
        variant("slow", right),
        variant("unfit", right, multiple_of=7),
    ]
    case = Case(64, 64, 256, layout="NT")
    rows = {row.variant: row for row in run.timed(case, variants, TINY_CACHE, environment(), lambda: steps.append(1))}
    assert list(rows) == [v.name for v in variants]
    for name in ("cublas", "right"):
        row = rows.pop(name)
        assert row.note == "" and row.ms and row.ms_eager == 1 and row.pct_cublas == 100 and not run.failed(row)
        assert row.gflops == pytest.approx(1e-6 * case.flops / row.ms) and (row.layout, row.batch) == ("NT", 1)
    for row in rows.values():
        assert row.ms is row.ms_eager is row.gflops is row.pct_cublas is None, row
        assert run.failed(row) == (row.variant not in ("slow", "unfit"))
    for name in ("wrong", "dropped", "unwritten"):
        assert rows[name].note.startswith("wrong: max error")
    assert rows["broken"].note == "failed: no such kernel"
    assert rows["slow"].note.startswith("skipped: about 1,000,000,000 ms a call")
    assert len(steps) == len(variants) + 2 * measure.ROUNDS


def test_above_the_float32_units_peak_only_a_strict_row_is_wrong(cpu_for_gpu, monkeypatch) -> None:
    monkeypatch.setattr(measure, "time_all", lambda vs, *_: {v.name: measure.Timing(1e-9, 1e-9, 1e-9) for v in vs})
    variants = [variant(p, lambda p, a, b, c, out: torch.mm(a, b, out=out), precision=p) for p in ("ieee", "fp32")]
    strict, other = run.timed(Case(64, 64, 64), variants, H200, environment(), lambda: None)
    assert strict.note.startswith("wrong: above the 66,908 GFLOP/s") and run.failed(strict)
    assert other.note == "" and other.ms


@pytest.fixture
def switched_to_tf32():
    """As a user may have left it."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"


@pytest.fixture
def seen(monkeypatch) -> dict[str, set[str]]:
    """What torch's switch said when each of its products was called."""
    found: dict[str, set[str]] = {}

    def spied(name: str, product):
        def spy(*args, **kwargs):
            found.setdefault(name, set()).add(torch.backends.cuda.matmul.fp32_precision)
            return product(*args, **kwargs)

        return spy

    for name in ("mm", "bmm", "addmm", "baddbmm"):
        monkeypatch.setattr(torch, name, spied(name, getattr(torch, name)))
    return found


def test_a_switch_to_tf32_does_not_reach_cublas(switched_to_tf32, seen) -> None:
    for batch in ((), (3,)):
        a, b, c, out = (torch.randn(*batch, 8, 8) for _ in range(4))
        for source, beta in ((None, 0.0), (c, 2.0)):
            VARIANTS["cublas"].run(problem(a, b, source, out, 1.0, beta), a, b, source, out)
            assert errors(out, reference(a, b, 1.0, beta, source)).within(random_bound(8))
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert seen == {name: {"ieee"} for name in ("mm", "bmm", "addmm", "baddbmm")}


@pytest.mark.parametrize("short", [True, False], ids=["by graph", "eager"])
@pytest.mark.parametrize("case", [Case(8, 8, 8), Case(8, 8, 8, batch=3)], ids=str)
def test_nor_does_it_reach_the_rows_of_the_bench(
    case: Case, short: bool, cpu_for_gpu, switched_to_tf32, seen, monkeypatch
) -> None:
    monkeypatch.setattr(measure, "is_short", lambda case: short)
    set_in_a_call = []
    real = catalog.torch_matmul_precision
    monkeypatch.setattr(catalog, "torch_matmul_precision", lambda value: set_in_a_call.append(value) or real(value))
    [row] = run.timed(case, [VARIANTS["cublas"]], TINY_CACHE, environment(), lambda: None)
    assert row.note == "" and row.ms and row.batch == case.batch
    assert seen == {"bmm" if case.batch > 1 else "mm": {"ieee"}}
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert set_in_a_call == ["ieee"]  # to verify; while the calls are timed it is set around them


@pytest.mark.parametrize("short", [True, False], ids=["by graph", "eager"])
def test_cublas_with_tf32_has_it_on_and_leaves_it_off(short: bool, cpu_for_gpu, seen, monkeypatch) -> None:
    monkeypatch.setattr(measure, "is_short", lambda case: short)
    set_in_a_call = []
    real = catalog.torch_matmul_precision
    monkeypatch.setattr(catalog, "torch_matmul_precision", lambda value: set_in_a_call.append(value) or real(value))
    [row] = run.timed(Case(8, 8, 8), [VARIANTS["cublas_tf32"]], TINY_CACHE, environment(), lambda: None)
    assert row.note == "" and row.ms and row.pct_cublas == 100 and row.precision == "tf32"
    assert seen == {"mm": {"tf32"}} and set_in_a_call == ["tf32"]
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


# ---- each precision has its baseline and its bound


def test_a_row_is_compared_with_cublas_in_its_precision(cpu_for_gpu, monkeypatch) -> None:
    ms = {"cublas": 8.0, "cublas_tf32": 2.0}
    monkeypatch.setattr(
        measure, "time_all", lambda vs, *_: {v.name: measure.Timing(*[ms.get(v.name, 4.0)] * 3) for v in vs}
    )
    mine = [variant(name, right, precision=name) for name in BASELINES]
    everything = [VARIANTS["cublas"], VARIANTS["cublas_tf32"], *mine]
    rows = run.timed(Case(64, 64, 64), everything, H200, environment(), lambda: None)
    percents = {row.variant: row.pct_cublas for row in rows}
    assert percents == {"cublas": 100, "cublas_tf32": 100, "ieee": 200, "fp32": 200, "tf32": 50}
    alone = run.timed(Case(64, 64, 64), mine, H200, environment(), lambda: None)
    assert [row.pct_cublas for row in alone] == [None] * 3


def test_baselines_come_with_what_is_compared() -> None:
    assert [v.name for v in with_baselines(select(["matmul_tf32"]))] == ["cublas", "cublas_tf32", "matmul_tf32"]
    assert [v.name for v in with_baselines(select(["matmul_fp32"]))] == ["cublas", "matmul_fp32"]
    assert [v.name for v in with_baselines(list(VARIANTS.values()))] == list(VARIANTS)


def rounded(t: torch.Tensor, bits: int) -> torch.Tensor:
    """To so many bits of the significand, to nearest."""
    mantissa, exponent = torch.frexp(t)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


@pytest.mark.parametrize("K", [16, 64, 1024, 4096])
def test_bounds_tell_the_precisions_apart(K: int) -> None:
    x = measure.Operands.random(Case(64, 64, K), "cpu")
    expected = measure.expectation(x)
    largest = {
        name: errors((rounded(x.a, bits).double() @ rounded(x.b, bits).double()).float(), expected).largest
        for name, bits in (("float32", 24), ("tf32", 11), ("bfloat16", 8))
    }
    assert largest["float32"] <= measure.bound("fp32", K) < largest["tf32"]
    assert measure.bound("ieee", K) <= measure.bound("fp32", K)
    assert largest["tf32"] <= measure.bound("tf32", K) < largest["bfloat16"]
    assert largest["tf32"] <= measure.bound("tf32", K, "softmax")


def test_a_dropped_step_of_k_is_not_tf32() -> None:
    x = measure.Operands.random(Case(64, 64, 256), "cpu")
    verdict = measure.verify(variant("mutant", dropped, precision="tf32"), x, measure.expectation(x))[1]
    assert verdict.startswith("wrong: max error")


# ---- what the operands hold


@pytest.mark.parametrize("name", DATA)
def test_data_is_drawn_as_asked(name: str) -> None:
    a, b = DATA[name](6, 5, 64, torch.Generator().manual_seed(1), "cpu")
    again = DATA[name](6, 5, 64, torch.Generator().manual_seed(1), "cpu")
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((6, 64), (64, 5), torch.float32, torch.float32)
    assert torch.equal(a, again[0]) and torch.equal(b, again[1])
    x = measure.Operands.random(Case(6, 5, 64, batch=2, layout="TN", data=name), "cpu")
    assert (x.a.shape, x.b.shape) == ((2, 6, 64), (2, 64, 5)) and x.a.stride()[1:] == (1, 6)


@pytest.mark.parametrize("case", SUITES["data"].cases, ids=str)
def test_a_row_of_the_suite_data(case: Case) -> None:
    small = replace(case, M=6, N=5, K=64)
    batch = measure.Operands.random(replace(small, batch=2), "cpu")
    assert not torch.equal(batch.a[0], batch.a[1]) and not torch.equal(batch.b[0], batch.b[1])
    [row] = run.crosschecked(small, [VARIANTS["cublas"]], environment())
    assert row.note.startswith("checked") and row.case == small
    assert (row.rel_err is None) == (case.data == "infinite")


def test_where_the_product_is_not_finite_its_class_counts() -> None:
    def split(p, a, b, c, out) -> None:
        """Inf - Inf, as a careless split makes it."""
        torch.mm(a + (a - a), b, out=out)

    x = measure.Operands.random(Case(8, 8, 32, data="infinite"), "cpu")
    expected = measure.expectation(x)
    assert measure.verify(variant("right", right), x, expected, "infinite") == (None, "")
    verdict = measure.verify(variant("split", split), x, expected, "infinite")[1]
    assert verdict.startswith("wrong: 64 elements of another class")

    x.a[1:].nan_to_num_(posinf=1.0)  # one row left that is not finite
    expected = measure.expectation(x)
    e, verdict = measure.verify(variant("right", right), x, expected)
    assert verdict == "" and e is not None and 0 < e.largest < 1e-6
    assert measure.verify(variant("dropped", dropped), x, expected)[1].startswith("wrong: ")
    assert measure.verify(variant("unwritten", unwritten), x, expected)[1].startswith("wrong: 1 elements of another")


def test_what_fell_back_is_in_the_row_and_in_the_table() -> None:
    calls = []
    reports = variant("reports", right, fallback=lambda *call: calls.append(call) or 0.125)
    rows = run.crosschecked(Case(8, 8, 8), [VARIANTS["cublas"], reports], environment())
    assert [row.fallback for row in rows] == [None, 0.125]
    [(p, a, b, c, out)] = calls
    assert (p.M, a.shape, b.shape, c) == (8, (8, 8), (8, 8), None) and not out.isnan().any()
    head, _, cublas, last = cells(table.text(table.frame(rows)).split("\n\n")[1])
    at = head.index("fallback")
    assert (cublas[at], last[at]) == ("", "12.50%")
    assert "fallback" not in table.text(table.frame(rows[:1]))


# ---- tables of many shapes


def made_up(cases: list[Case], **percents: float) -> pd.DataFrame:
    """Rows for each case: cuBLAS, which does 100 GFLOP/s, and variants at that percentage of it.

    A variant called ..._tf32 is of that precision.
    """
    rows = []
    for case in cases:
        ms = 1e-8 * case.flops
        for name, percent in ({"cublas": 100} | percents).items():
            of = "tf32" if name.endswith("_tf32") else "ieee"
            key = (name, "torch", name, of, case.layout, case.batch, case.M, case.N, case.K)
            origin = {"gpu": "x", "driver": "x", "torch": "x", "triton": "x", "commit": "x", "date": "x"}
            timed = {"ms": 100 * ms / percent, "gflops": percent, "pct_cublas": 1.0 * percent}
            rows.append(table.Row(*key, **timed, **origin, data=case.data))
    return table.frame(rows)


def cells(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]


def test_few_shapes_are_columns() -> None:
    head, _, *body = cells(table.across(made_up(list(SUITES["layouts"].cases), matmul_ieee=80)))
    assert head == ["variant", *(f"4096:{layout}" for layout in LAYOUTS), "4095x4097x4093:NN"]
    assert body == [["cublas", *["100.0"] * 7], ["matmul_ieee", *["80.0"] * 7], ["*cuBLAS, GFLOP/s*", *["100"] * 7]]


def test_many_shapes_are_rows_with_a_geometric_mean() -> None:
    data = made_up(list(SUITES["batched"].cases), one=50, two=200, three=100)
    data.loc[data["variant"] == "two", "pct_cublas"] = [50.0, 200.0, *[100.0] * 13]
    data.loc[(data["variant"] == "three") & (data["batch"] == 4096), "pct_cublas"] = None
    head, align, *body, mean = cells(table.across(data))
    assert head == ["batch x M x N x K", "cuBLAS, ms", "cuBLAS, GFLOP/s", "one, %", "two, %", "three, %"]
    assert align[0].startswith(":") and all(rule.endswith(":") for rule in align[1:])
    assert [row[0] for row in body] == [str(case) for case in SUITES["batched"].cases]
    assert body[0] == ["16x16x16x16", "0.001311", "100", "50.0", "50.0", "100.0"] and body[2][-1] == ""
    assert mean == ["*geometric mean*", "", "", "50.0", "100.0", ""]
    assert cells(table.across(made_up(list(SUITES["skinny"].cases), one=50)))[0][0] == "M x N x K"


@pytest.mark.parametrize("suite", SUITES)
def test_a_suites_results_make_a_table(suite: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "gpu").mkdir()
    data = made_up(list(SUITES[suite].cases), matmul_ieee=80)
    data.to_csv(tmp_path / "gpu" / f"{suite}.csv", index=False)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    text = table.rendered(suite, "gpu")
    assert "nan" not in text.lower() and text.count("matmul_ieee") == 1
    for case in SUITES[suite].cases:
        names = (str(case), f"{case}:NN", case.data)
        assert any(f"| {name} " in re.sub(" +", " ", text) for name in names) or case.title in text


def test_a_table_of_data_has_the_shares_that_fell_back() -> None:
    data = made_up(list(SUITES["data"].cases), cublas_tf32=300, matmul_fp32=400, matmul_tf32=150)
    data.loc[data["variant"] == "matmul_fp32", "fallback"] = [0.0] * (len(SUITES["data"].cases) - 1) + [1.0]
    data.loc[data["variant"] == "matmul_tf32", "fallback"] = 0.0
    head, _, *body = cells(table.across(data))
    assert head == ["variant", *(case.data for case in SUITES["data"].cases)]
    assert [row[0] for row in body] == [
        "cublas", "cublas_tf32", "matmul_fp32", "matmul_tf32",
        "*cuBLAS, GFLOP/s*", "*cuBLAS TF32, GFLOP/s*", "*matmul_fp32, fallback*",
    ]  # fmt: skip
    assert body[-1][1:] == ["0.00%"] * (len(head) - 2) + ["100.00%"]
    said = table.provenance(data)
    assert "operands as named, M = 4096, N = 4096, K = 4096, " in said
    assert "tf32 rows against cuBLAS with TF32 on" in said


def test_many_shapes_with_two_baselines() -> None:
    data = made_up(list(SUITES["skinny"].cases), cublas_tf32=300, matmul_tf32=150)
    head, *_ = cells(table.across(data))
    assert head == [
        "M x N x K", "cuBLAS, ms", "cuBLAS, GFLOP/s", "cuBLAS TF32, ms", "cuBLAS TF32, GFLOP/s", "matmul_tf32, %",
    ]  # fmt: skip


def test_a_results_file_from_before_the_data_column(tmp_path: Path) -> None:
    made_up([Case(8, 8, 8)], one=50).drop(columns="data").to_csv(tmp_path / "old.csv", index=False)
    data = table.read(tmp_path / "old.csv")
    assert set(data["data"]) == {"normal"} and "N(0,1) operands" in table.provenance(data)
    assert table.text(data).startswith("**M = 8, N = 8, K = 8**")


# ---- the error table


def test_errors_of_every_precision() -> None:
    variants = [VARIANTS["cublas"], VARIANTS["matmul_tf32"]]
    rows = precision.measured(Case(16, 8, 32, data="uniform"), variants, "cpu", environment())
    assert [row.variant for row in rows] == ["cublas", "matmul_tf32"]
    for row in rows:
        assert (row.data, row.K, row.M, row.N, row.note) == ("uniform", 32, 16, 8, "")
        assert 0 < row.rel_err < 1e-6 and 0 < abs(row.bias) < row.max_err < 1e-6
    columns = "data K M N variant rel_err max_err bias fallback gpu driver torch triton commit date"
    assert list(precision.frame(rows).columns[:-1]) == columns.split()
    [row] = precision.measured(Case(8, 8, 32, data="infinite"), variants[:1], "cpu", environment())
    assert row.rel_err is row.max_err is row.bias is None and row.note == ""


def test_the_mean_error_has_a_sign() -> None:
    def truncating(p, a, b, c, out) -> None:
        torch.mm((a.view(torch.int32) & ~0x1FFF).view(torch.float32), b, out=out)

    x = measure.Operands.random(Case(32, 32, 64, data="uniform"), "cpu")
    found = precision.figures(variant("truncating", truncating), x, measure.expectation(x))
    assert found["bias"] == pytest.approx(-found["rel_err"], rel=0.2) and found["bias"] < -1e-4


def test_every_kind_of_data_and_depth_is_in_the_error_table() -> None:
    assert {case.data for case in precision.ON_GPU if case.K == 4096} == set(DATA)
    for data in ("normal", "uniform"):
        depths = [case.K for case in precision.ON_GPU if case.data == data and case.K != 4096]
        assert depths == [1, 16, 64, 1024, 65536, 262144]
    assert all(min(case.M, case.N) >= 256 and case.bytes_moved < 3 << 30 for case in precision.ON_GPU)
    assert len({(case.data, case.K) for case in precision.ON_GPU}) == len(precision.ON_GPU)


def test_the_error_table_in_a_document(tmp_path: Path, monkeypatch) -> None:
    def row(name: str, data: str, K: int, **figures) -> precision.Row:
        origin = ("gpu", "driver", "torch", "triton", "commit", "date")
        return precision.Row(data, K, 8, 8, name, **dict.fromkeys(origin, "x"), **figures)

    rows = [row("cublas", "normal", 1, rel_err=1e-7, max_err=2e-7, bias=-3e-9)]
    rows += [row("matmul_fp32", "normal", 1, rel_err=4e-7, fallback=0.25), row("cublas", "uniform", 4096, note="why")]
    table.save_frame(precision.frame(rows), tmp_path / "gpu" / "precision.csv")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    text = table.filled("a\n<!-- precision gpu -->\nold\n<!-- end -->\nb")
    assert "old" not in text and text.startswith("a\n<!-- precision gpu -->\n\n**") and text.endswith("-->\nb")
    assert table.filled(text) == text and text.count("**") == 6
    head, _, first, second = cells(text.split("\n\n")[2])
    assert head == ["data", "K", "cublas", "matmul_fp32", "fallback of matmul_fp32"]
    assert first == ["normal", "1", "1.00e-07", "4.00e-07", "25.00%"] and second == ["uniform", "4,096", "", "", ""]
    assert "-3.00e-09" in text and "cublas, uniform, K = 4,096: why" in text and "nan" not in text


def test_many_shapes_are_printed_with_every_note() -> None:
    data = made_up(list(SUITES["deep"].cases), one=50)
    assert table.printed(data) == table.across(data)
    data.loc[3, "note"] = "skipped: about 600 ms a call"
    assert table.printed(data).endswith("\n\none at 64x64x32768: skipped: about 600 ms a call")
    few = made_up([Case(8, 8, 8), Case(8, 8, 8, 2), Case(8, 8, 8, 2, "TN")], one=50)
    assert table.printed(few) == table.text(few)
    assert re.findall(r"\*\*(.*)\*\*", table.text(few)) == [
        "M = 8, N = 8, K = 8",
        "M = 8, N = 8, K = 8, batch of 2",
        "M = 8, N = 8, K = 8, batch of 2, layout TN",
    ]


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
