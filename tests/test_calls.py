"""`python -m bench.calls`: each way is called, what is measured lands in its column, and a table is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import calls, keep, table
from bench.environment import Environment

ROOT = Path(__file__).parent.parent
HERE = Environment("NVIDIA H200", "580", "2.11.0", "3.6.0", "abc", "2026-12-01")


@pytest.mark.parametrize("case", calls.CASES, ids=lambda case: f"{case.call}, {case.n}, {case.unit}")
def test_a_case_is_called_by_each_way(case: calls.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_random", torch.randn)
    results: dict[str, Any] = {}
    for name, way in calls.WAYS.items():
        torch.manual_seed(0)
        results[name] = replace(case, n=8, measured=lambda call: call()).one(way)
        assert not replace(case, n=8).wrong(way)
        torch.testing.assert_close(results[name], results["torch"])


def to_tf32(t: torch.Tensor) -> torch.Tensor:
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda a, b: to_tf32(a) @ to_tf32(b), "wrong: fp32 is off by "),
        (lambda a, b: a[:, :-1] @ b[:-1], "wrong: fp32 is off by "),
        (lambda a, b: a @ b * float("nan"), "wrong: fp32 is off by nan"),
        (lambda a, b: a @ a[0], "failed: "),
        (lambda a, b: 1 / 0, "failed: division by zero"),
    ],
)
def test_what_is_wrong_is_not_measured(fault, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_random", torch.randn)
    monkeypatch.setitem(calls.WAYS, "fp32", replace(calls.WAYS["torch"], matmul=fault))
    case = next(case for case in calls.CASES if case.made is calls.plain)
    row = calls.row(replace(case, n=48, measured=lambda call: pytest.fail("measured")))
    assert row.note.startswith(says) and row.by_torch is row.by_ieee is row.by_fp32 is None


def test_figures_stand_in_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([3.0, 1.0, 2.0] * calls.ROUNDS)  # 3 by the first that is called in a round
    order: list[str] = []
    names = {way: name for name, way in calls.WAYS.items()}
    case = calls.Case("a @ b", 8, "ms", lambda call: next(figures), lambda way, n: order.append(names[way]))
    monkeypatch.setattr(calls.Case, "wrong", lambda case, way: "")
    row = calls.row(case)
    assert sorted(order) == sorted(list(calls.WAYS) * calls.ROUNDS)
    by = {name: sorted([3.0, 1.0, 2.0][i % 3] for i, each in enumerate(order) if each == name) for name in calls.WAYS}
    assert [row.by_torch, row.by_ieee, row.by_fp32] == [by[name][calls.ROUNDS // 2] for name in calls.WAYS]


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    markdown = "<!-- calls gpu -->\nold\n<!-- end -->"
    assert table.filled(markdown) == "<!-- calls gpu -->\n\nNot measured yet: `make calls`.\n\n<!-- end -->"
    rows = [calls.Row("a @ b", 64, "microseconds, host", 16.0, 20.0, 19.8), calls.Row("bmm", 64, "ms", note="wrong: x")]
    table.save_frame(keep.frame(rows, HERE), tmp_path / "gpu" / "calls.csv")
    text = table.filled(markdown)
    (line,) = [line for line in text.splitlines() if "a @ b" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "a @ b", "64", "microseconds, host", "16", "20", "0.80", "19.8", "0.81"
    ]  # fmt: skip
    assert "\n\nbmm, 64, ms: wrong: x\n\n" in text and "nan" not in text
    assert "NVIDIA H200, driver 580, torch 2.11.0, Triton 3.6.0, 2026-12-01, commit abc; medians" in text


def test_an_interrupted_run_leaves_what_it_has_and_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("old")

    def rows(last: BaseException | None) -> Iterator[calls.Row]:
        yield calls.Row("a @ b", 64, "ms", 1.0, 2.0, 3.0)
        if last:
            raise last

    with pytest.raises(KeyboardInterrupt):
        keep.kept(rows(KeyboardInterrupt()), HERE, path)
    part = path.with_suffix(".part.csv")
    assert path.read_text() == "old" and list(table.read(part)["by_ieee"]) == [2.0]
    assert list(keep.kept(rows(None), HERE, path)["by_fp32"]) == [3.0]
    assert list(table.read(path)["commit"]) == ["abc"] and not part.exists()
    assert keep.kept(iter(()), HERE, path).empty and len(table.read(path)) == 1


def test_without_a_gpu() -> None:
    command = [sys.executable, "-m", "bench.calls"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 2 and "there is no CUDA GPU, whose calls are measured" in done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("measured", [calls.host_us, calls.replayed_us, calls.ms, calls.mib])
def test_what_is_measured(measured: Callable[[calls.Call], float]) -> None:
    for way in calls.WAYS.values():
        assert measured(calls.plain(way, 256)) > 0


@pytest.mark.gpu
def test_gradients_copy_no_operand() -> None:
    operand = 4.0  # MiB
    for of in (calls.linear, calls.transposed):
        assert calls.mib(calls.gradients(calls.WAYS["ieee"], 1024, of)) == pytest.approx(2 * operand, rel=0.1)
