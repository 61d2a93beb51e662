"""`python -m bench.calls`: each way is called, what is measured lands in its column, and a table is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import calls, table
from bench.environment import Environment

ROOT = Path(__file__).parent.parent
HERE = Environment("NVIDIA H200", "580", "2.11.0", "3.6.0", "abc", "2026-12-01")


@pytest.mark.parametrize("case", calls.CASES, ids=lambda case: f"{case.call}, {case.n}, {case.unit}")
def test_a_case_is_called_by_each_way(case: calls.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_random", torch.randn)
    results: dict[str, Any] = {}

    def measured(call: Callable[[], Any]) -> float:
        results[way] = call()
        return 1.0

    for way in calls.WAYS:
        torch.manual_seed(0)
        replace(case, n=8, measured=measured).one(way)
    for way in calls.WAYS:
        torch.testing.assert_close(results[way], results["torch"])


def test_figures_stand_in_their_columns() -> None:
    figures = iter([3.0, 1.0, 2.0] * calls.ROUNDS)  # 3 by the first that is called in a round
    order: list[str] = []
    case = calls.Case("a @ b", 8, "ms", lambda call: next(figures), lambda way, n: order.append(names[way]))
    names = {way: name for name, way in calls.WAYS.items()}
    row = calls.row(case)
    assert sorted(order) == sorted(list(calls.WAYS) * calls.ROUNDS)
    by = {name: sorted([3.0, 1.0, 2.0][i % 3] for i, each in enumerate(order) if each == name) for name in calls.WAYS}
    assert [row.by_torch, row.by_ieee, row.by_fp32] == [by[name][calls.ROUNDS // 2] for name in calls.WAYS]


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    markdown = "<!-- calls gpu -->\nold\n<!-- end -->"
    assert table.filled(markdown) == "<!-- calls gpu -->\n\nNot measured yet: `make calls`.\n\n<!-- end -->"
    rows = [calls.Row("a @ b", 64, "microseconds, host", 16.0, 20.0, 19.8)]
    table.save_frame(calls.frame(rows, HERE), tmp_path / "gpu" / "calls.csv")
    text = table.filled(markdown)
    (line,) = [line for line in text.splitlines() if "a @ b" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "a @ b", "64", "microseconds, host", "16", "20", "0.80", "19.8", "0.81"
    ]  # fmt: skip
    assert "NVIDIA H200, driver 580, torch 2.11.0, Triton 3.6.0, 2026-12-01, commit abc; medians" in text


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
