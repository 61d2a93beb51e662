"""`python -m bench.profile`: what ncu writes is read, added up and kept; what fails leaves the others their rows."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from bench import explain, measure, ncu, one_call, profile, table
from bench.catalog import VARIANTS
from bench.compiled import Compiled
from bench.environment import Environment
from bench.suites import Case
from triton_sgemm.device import CARDS, Gpu
from triton_sgemm.variants import Variant

ROOT = Path(__file__).parent.parent
HERE = Environment("NVIDIA H200", "580", "2.11.0", "3.6.0", "abc", "2026-12-01")
HEAD = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio".format


def answer(*kernels: dict[str, str]) -> str:
    """As ncu writes it: what it did, then a quoted table, a row a metric of a kernel."""
    out = io.StringIO()
    out.write("==PROF== Connected to process 4242 (/usr/bin/python3.11)\n")
    for i in range(len(kernels)):
        out.write(f'==PROF== Profiling "kernel_{i}" - {i}: 0%....50%....100% - 9 passes\n')
    out.write("==PROF== Disconnected from process 4242\n")
    rows = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    rows.writerow(HEAD)
    for i, metrics in enumerate(kernels):
        launch = (
            i,
            4242,
            "python3.11",
            "127.0.0.1",
            f'kernel_{i}(int, "x")',
            1,
            7,
            "(256, 1, 1)",
            "(1024, 1, 1)",
            0,
            "9.0",
        )
        for name, value in metrics.items():
            rows.writerow((*launch, "Command line profiler metrics", name, "", value))
    return out.getvalue()


SPLIT = {ncu.TIME: "120,064", "dram__bytes.sum": "201,326,592", "lts__t_bytes.sum": "402,653,184"}
SPLIT |= dict.fromkeys(ncu.OF_THE_LONGEST.values(), "1") | {STALL("drain"): "40"}
PRODUCT = {ncu.TIME: "2,560,000", "dram__bytes.sum": "800,000,000", "lts__t_bytes.sum": "9,000,000,000"}
PRODUCT |= dict(zip(ncu.OF_THE_LONGEST.values(), ("91.23", "0", "168", "18.71"), strict=True))
PRODUCT |= dict.fromkeys(ncu.STALLS, "0") | {STALL("not_selected"): "1.5", STALL("wait"): "0.5"}
PRODUCT |= {STALL("short_scoreboard"): "1.75", STALL("barrier"): "0.25"}


def test_a_call_of_several_kernels() -> None:
    found = ncu.figures(ncu.parsed(answer(SPLIT, PRODUCT, SPLIT)))
    assert found["ms"] == pytest.approx(2.56 + 2 * 0.120064)
    assert (found["dram_bytes"], found["l2_bytes"]) == (1_202_653_184, 9_805_306_368)
    assert [found[name] for name in ncu.OF_THE_LONGEST] == [91.23, 0, 168, 18.71]
    assert [found[f"stall_{i}"] for i in (1, 2, 3)] == ["short_scoreboard", "not_selected", "wait"]
    assert [found[f"stall_{i}_pct"] for i in (1, 2, 3)] == pytest.approx([43.75, 37.5, 12.5])


def test_what_ncu_does_not_give_is_empty() -> None:
    lacking = {name: "n/a" if name == "dram__bytes.sum" else value for name, value in PRODUCT.items()}
    lacking = {
        name: "(!) nan" if name.startswith("sm__pipe") else v for name, v in lacking.items() if "registers" not in name
    }
    found = ncu.figures(ncu.parsed(answer(lacking, SPLIT)))
    assert found["dram_bytes"] is found["tensor_pct"] is found["registers"] is None
    assert found["fma_pct"] == 91.23 and found["ms"] == pytest.approx(2.680064)
    alone = ncu.figures(ncu.parsed(answer({ncu.TIME: "1", STALL("wait"): "2"})))
    assert (alone["stall_1"], alone["stall_1_pct"], alone.get("stall_2")) == ("wait", 100, None)


def test_no_kernel_is_no_answer() -> None:
    assert ncu.parsed("") == ncu.parsed("==WARNING== No kernels were profiled.\n") == ncu.parsed(answer()) == []


def test_metrics_that_ncu_does_not_know() -> None:
    said = (
        "==PROF== Connected to process 1\n"
        r"==ERROR== Failed to find metric regex:^lts__t_bytes\.(sum|min|max|avg)$"
        f"\n==ERROR== Failed to find metric {STALL('wait')}\nlts__t_bytes dram__bytes.sum\n"
    )
    assert ncu.refused_metrics(said, ncu.METRICS) == {"lts__t_bytes.sum", STALL("wait")}
    assert ncu.refused_metrics("==ERROR== ERR_NVGPUCTRPERM", ncu.METRICS) == set()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("==PROF== Connected\nskipped: v needs multiples of 64\n==ERROR== x", "skipped: v needs mul"),
        ("wrong: max error 1 exceeds 0\n==WARNING== No kernels were profiled.", "wrong: max error 1 exceeds 0"),
        ("==ERROR== ERR_NVGPUCTRPERM\n==ERROR== The application returned an error code (1).", "failed: ERR_NV"),
        ("Traceback\n  File x\nRuntimeError: no\n==WARNING== No kernels were profiled.", "failed: RuntimeError: no"),
        ("", "failed: ncu profiled no kernel"),
    ],
)  # fmt: skip
def test_why_there_is_no_answer(said: str, reason: str) -> None:
    assert ncu.why(said).startswith(reason)


def test_names_are_those_that_explain_reads(tmp_path: Path, monkeypatch) -> None:
    found = ncu.figures(ncu.parsed(answer(PRODUCT)))
    row = profile.Row("naive_cuda", 4096, 4096, 4096, **found, gflops=1.0)
    table.save_frame(profile.merged([row], tmp_path / "none"), tmp_path / "nvidia-h200" / "profile.csv")
    monkeypatch.setattr(table, "RESULTS", tmp_path)

    def told() -> explain.Figures:
        [e] = explain.explained(
            [VARIANTS["naive_cuda"]], CARDS["h200"], {("naive_cuda", 90): Compiled("naive_cuda", 90)}
        )
        return e.figures("measured")

    assert told() == {
        "DRAM bytes": "8e+08", "L2 bytes": "9e+09", "FLOP/byte of DRAM": "172", "FMA pipe": "91.2 %",
        "tensor pipe": "0.0 %", "stalls": "short_scoreboard 43.8 %, not_selected 37.5 %, wait 12.5 %",
        "registers": "168", "occupancy": "18.7%",
    }  # fmt: skip
    bare = profile.Row("naive_cuda", 4096, 4096, 4096, ms=1.0, gflops=1.0)
    table.save_frame(profile.merged([bare], tmp_path / "none"), tmp_path / "nvidia-h200" / "profile.csv")
    assert "nan" not in str(told())


def test_columns_of_the_file() -> None:
    columns = """variant M N K ms gflops dram_bytes l2_bytes fma_pct tensor_pct stall_1 stall_1_pct stall_2 stall_2_pct
        stall_3 stall_3_pct registers occupancy_pct gpu driver torch triton commit date note"""
    assert columns.split() == profile.COLUMNS


def test_default_is_every_rung_every_algorithm_and_cublas() -> None:
    assert {"cublas", "cublas_tf32", *(v.name for v in VARIANTS.values() if v.rung)} <= set(profile.DEFAULT)
    assert {"fma_64x256x8", "dot_32x32x32", "fp16x3_128x128x64", "planes_dot_fp16x3"} <= set(profile.DEFAULT)
    assert not {"matmul_fp32", "dot_tf32x3"} & set(profile.DEFAULT)


# ---- the command, with a program in place of ncu


FAKE = r"""#!/usr/bin/env python3
import sys
args = sys.argv[1:]
log, metrics, (name, size) = args[args.index("--log-file") + 1], args[args.index("--metrics") + 1], args[-2:]
with open(FOLDER + "/calls", "a") as calls:
    print(*args, file=calls)
if "lts__t_bytes" in metrics:
    open(log, "w").write("==ERROR== Failed to find metric regex:^lts__t_bytes\\.(sum|min)$\n")
    sys.exit(1)
if name == "naive_gluon":
    open(log, "w").write("==WARNING== No kernels were profiled.\n")
    sys.exit("RuntimeError: no such kernel")
print("the program's own words")
open(log, "w").write(open(FOLDER + "/answer").read())
"""


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch) -> Path:
    """A folder with an ncu that does not know one metric, and what it answers; no GPU is asked."""
    (tmp_path / "answer").write_text(answer({k: v for k, v in PRODUCT.items() if k != "lts__t_bytes.sum"}))
    (tmp_path / "ncu").write_text(FAKE.replace("FOLDER", repr(str(tmp_path))))
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    card = Gpu("NVIDIA H200", 90, sms=132, l2_bytes=1 << 20, max_clock_mhz=1980)
    monkeypatch.setattr(profile, "gpu", lambda index: card)
    monkeypatch.setattr(profile, "environment", lambda: HERE)
    return tmp_path


def called(monkeypatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["profile", *map(str, args)])
    return profile.main()


def test_one_failure_leaves_the_others_their_rows(monkeypatch, capsys, fake_ncu: Path) -> None:
    assert called(monkeypatch, "--variants", "naive_*", "--csv", fake_ncu) == 1
    data = table.read(fake_ncu / "nvidia-h200" / "profile.csv").set_index("variant")
    assert list(data.index) == ["naive_cuda", "naive_gluon"] and set(data["gpu"]) == {"NVIDIA H200"}
    assert data.loc["naive_gluon", "note"] == "failed: RuntimeError: no such kernel" and data["ms"].isna().sum() == 1
    good = data.loc["naive_cuda"]
    assert good["note"] == "ncu has no lts__t_bytes.sum" and good["dram_bytes"] == 8e8 and data["l2_bytes"].isna().all()
    assert (good["ms"], good["gflops"]) == pytest.approx((2.56, 2e-6 * 4096**3 / 2.56), rel=1e-5)
    first, *others = (fake_ncu / "calls").read_text().splitlines()
    assert "lts__t_bytes.sum" in first and len(others) == 2 and not any("lts__t_bytes" in call for call in others)
    assert "--clock-control none --profile-from-start off" in first
    assert first.endswith("-m bench.one_call naive_cuda 4096")
    out, err = capsys.readouterr()
    assert re.search(r"naive_cuda +2.56 ", out) and "naive_gluon: failed: RuntimeError" in err


def test_rows_that_are_not_measured_anew_stay(monkeypatch, fake_ncu: Path) -> None:
    for args in (("naive_cuda",), ("cublas", "--size", "512x1024x64"), ("cublas",), ("naive_cuda",)):
        assert called(monkeypatch, "--csv", fake_ncu, "--variants", *args) == 0
    data = table.read(fake_ncu / "nvidia-h200" / "profile.csv")
    assert [*zip(data["variant"], data["M"], data["K"], strict=True)] == [
        ("cublas", 512, 64), ("cublas", 4096, 4096), ("naive_cuda", 4096, 4096),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--variants", "nope"], "no variant is called 'nope'; there are cublas"),
        (["--size", "12x"], "size '12x': need a number from 1 on such as 4096"),
        (
            ["--size", "4096:TN"],
            "--size 4096:TN: profile.csv has no column for a batch, layout or data; need N or MxNxK",
        ),
        (["--csv", "x.csv"], "--csv x.csv is a file; need a folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_options(args: list[str], text: str, monkeypatch, capsys, fake_ncu) -> None:
    with pytest.raises(SystemExit) as e:
        called(monkeypatch, *args)
    assert e.value.code == 2 and text in capsys.readouterr().err


def test_without_ncu(monkeypatch, capsys, fake_ncu) -> None:
    monkeypatch.setattr(ncu, "find", lambda: None)
    with pytest.raises(SystemExit) as e:
        called(monkeypatch)
    assert e.value.code == 2 and "install Nsight Compute" in capsys.readouterr().err


def test_without_a_gpu() -> None:
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "bench.profile"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 2 and "error: there is no CUDA GPU" in done.stderr


# ---- the call that is profiled


def test_only_one_right_call_is_between_the_marks(monkeypatch) -> None:
    seen: list[str] = []

    def spied(p, a, b, c, out) -> None:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        torch.mm(a, b, out=out)

    def wrong(p, a, b, c, out) -> None:
        out.zero_()

    marks = SimpleNamespace(
        cudaProfilerStart=lambda: seen.append("start"), cudaProfilerStop=lambda: seen.append("stop")
    )
    random = measure.Operands.random
    monkeypatch.setattr(measure.Operands, "random", lambda case, device: random(case, "cpu"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: marks)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name, run, multiple in (("spied", spied, 1), ("wrong", wrong, 1), ("unfit", spied, 7)):
        v = Variant(name, "torch", "tf32", run_with=run, doc="x", multiple_of=multiple)
        monkeypatch.setitem(VARIANTS, name, v)
    monkeypatch.setattr(sys, "argv", ["one_call", "spied", str(Case(8, 8, 8))])
    assert one_call.main() is None and seen == ["tf32", "start", "tf32", "stop"]
    monkeypatch.setattr(sys, "argv", ["one_call", "wrong", "8"])
    assert (one_call.main() or "").startswith("wrong: max error") and len(seen) == 4
    monkeypatch.setattr(sys, "argv", ["one_call", "unfit", "8"])
    assert (one_call.main() or "").startswith("skipped: unfit needs M, N and K") and len(seen) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not ncu.find(), reason="ncu is not installed")
def test_profile_on_a_gpu(monkeypatch, tmp_path: Path) -> None:
    variants = ["cublas", "smem_tiling_cuda", "fp16x3_128x128x64"]
    assert called(monkeypatch, "--size", "1024", "--csv", tmp_path, "--variants", *variants) == 0
    [path] = tmp_path.glob("*/profile.csv")
    data = table.read(path).set_index("variant")
    figures = ["ms", "gflops", "dram_bytes", "l2_bytes", "fma_pct", "tensor_pct", "stall_3_pct", "registers"]
    assert list(data.index) == variants and data[figures].notna().all(axis=None) and data["note"].isna().all()
    assert data.loc["fp16x3_128x128x64", "tensor_pct"] > 5 > data.loc["smem_tiling_cuda", "tensor_pct"]
    assert data.loc["smem_tiling_cuda", "fma_pct"] > 5 and (data["dram_bytes"] > 4 << 20).all()


def test_the_table_in_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    markdown = "<!-- profile gpu -->\nold\n<!-- end -->"
    assert "Not measured yet: `make profile`." in table.filled(markdown)
    figures = {"ms": 2.5, "dram_bytes": 2e8, "fma_pct": 97.25, "stall_1": "mio_throttle", "stall_1_pct": 61.0}
    origin = asdict(HERE)
    rows = [
        profile.Row("smem_tiling_cuda", 4096, 4096, 4096, **figures, **origin),
        profile.Row("cublas", 4096, 4096, 4096, **origin, note="failed: why"),
        profile.Row("cublas", 8192, 8192, 8192, ms=20.0, **origin),
    ]
    table.save_frame(profile.merged(rows, tmp_path / "nothing.csv"), tmp_path / "gpu" / "profile.csv")
    text = table.filled(markdown)
    assert [line.strip("*") for line in text.splitlines() if line.startswith("**")] == [
        "M = 4,096, N = 4,096, K = 4,096", "M = 8,192, N = 8,192, K = 8,192"
    ]  # fmt: skip
    (line,) = [line for line in text.splitlines() if "smem_tiling_cuda" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["smem_tiling_cuda", "2.5", "200", "", "97.2 %", "", "", "mio_throttle 61.0 %"]
    assert "\n\ncublas: failed: why\n\n" in text and "nan" not in text and text.count("2026-12-01") == 1


def test_a_note_of_many_rows_does_not_name_them_all() -> None:
    rows = [profile.Row(f"v{i}", 8, 8, 8, note="ncu has no x") for i in range(6)]
    data = pd.DataFrame([asdict(row) for row in rows])
    assert "\n\n6 of 6 rows, v0 among them: ncu has no x\n\n" in table.counted(data)
    assert "\n\nv0, v1: ncu has no x\n\n" in table.counted(data[:2])


def test_the_chapters_stall_story_holds_in_the_committed_results() -> None:
    """What docs/ladder.md says of the H200: the queue of global loads comes first, then that of shared memory."""
    rows = table.read(table.RESULTS / "nvidia-h200" / "profile.csv").set_index("variant")
    assert set(profile.DEFAULT) <= set(rows.index)
    assert rows.loc["naive_cuda", "stall_1"] == rows.loc["coalesced_cuda", "stall_1"] == "lg_throttle"
    assert rows.loc["smem_tiling_cuda", "stall_1"] == rows.loc["smem_tiling_triton", "stall_1"] == "mio_throttle"
    assert "lg_throttle" not in rows.loc["smem_tiling_cuda", ["stall_1", "stall_2", "stall_3"]].tolist()
    assert rows.loc["coalesced_gluon", "stall_1"] == "long_scoreboard"
    assert rows.loc["smem_tiling_cuda", "fma_pct"] < rows.loc["coalesced_cuda", "fma_pct"]
    for name in ("async_ring_cuda", "cublas"):
        assert rows.loc[name, "stall_1"] == "not_selected" and rows.loc[name, "stall_1_pct"] > 50
    assert rows[["fma_pct", "tensor_pct", "stall_1", "stall_2", "stall_3"]].notna().all(axis=None)
