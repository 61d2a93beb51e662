"""`python -m bench.choices`: both ways of a case, what is chosen among them, and the table of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_rules import H200
from torch import Tensor

from bench import choices, keep, measure, table
from bench.environment import Environment
from bench.suites import Case
from triton_sgemm.algorithms import tensor_core
from triton_sgemm.plan import MEASURED, plan
from triton_sgemm.problem import Problem, problem

ROOT = Path(__file__).parent.parent
HERE = Environment("NVIDIA H200", "580", "2.11.0", "3.6.0", "abc", "2026-12-01")


def squares(n: int) -> Problem:
    x = torch.empty(n, n, device="meta")
    return problem(x, x, None, x, 1.0, 0.0)


@pytest.mark.parametrize("precision", choices.PRECISIONS)
@pytest.mark.parametrize(("n", "chosen"), [(128, "strict"), (4096, "tensor")])
def test_the_pair_holds_what_is_chosen(precision: str, n: int, chosen: str) -> None:
    p = squares(n)
    pair = choices.pair(p, H200, precision)
    assert pair and pair[0] == plan(p, H200) and isinstance(pair[1].tile, tensor_core.Tile)
    assert pair.index(plan(p, H200, precision)) == choices.KINDS.index(chosen)


def test_where_tensor_cores_cannot_serve_there_is_no_choice() -> None:
    assert choices.pair(squares(32), H200, "fp32") is None  # K is too short
    assert choices.pair(squares(4096), replace(H200, name="NVIDIA H100"), "fp32") is None


def test_a_title_tells_the_parts_of_k() -> None:
    strict = plan(squares(4096), H200)
    assert choices.title(strict, 4096) == "fma_128x256x8"
    assert choices.title(replace(strict, depth=1000), 4096) == "fma_128x256x8, 5 parts"


def test_a_plan_that_is_wrong_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(48, 48, 64)
    x = measure.Operands.random(case, "cpu")

    def run(self: object, a: Tensor, b: Tensor, c: None, out: Tensor, alpha: float, beta: float) -> None:
        torch.mm(a[:, :32], b[:32], out=out)  # half of K is dropped

    monkeypatch.setattr(choices.Execution, "run", run)
    monkeypatch.setattr(measure, "time_all", lambda *args: pytest.fail("timed"))
    way = choices.variant("strict", plan(squares(4096), H200), x.problem, "fp32")
    found = choices.figures(case, x, measure.expectation(x), [way], H200)
    assert str(found["note"]).startswith("strict: wrong: max error")


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    markdown = "<!-- choices gpu -->\nold\n<!-- end -->"
    assert "Not measured yet: `make choices`." in table.filled(markdown)
    rows = [
        choices.Row("fp32", 1, 64, 64, 4096, "dot_x, 4 parts", "fp16x3_y", "strict", 0.01, 0.02),
        choices.Row("tf32", 1, 64, 64, 4096, "dot_x", "fp16x1_y", "strict", 0.02, 0.016),
        choices.Row("tf32", 1, 64, 64, 64, "dot_x", "fp16x1_y", "tensor", note="strict: wrong: max error"),
    ]
    table.save_frame(keep.frame(rows, HERE), tmp_path / "gpu" / "choices.csv")
    text = table.filled(markdown)
    first, second, third = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:7])
    assert first == ["fp32", "1", "64", "64", "4,096", "dot_x, 4 parts", "10.0", "fp16x3_y", "20.0", "strict", "1.00"]
    assert second[-1] == "1.25" and third[-5:] == ["", "fp16x1_y", "", "tensor", ""]
    assert "\n\ntf32, 1 x 64 x 64 x 64: strict: wrong: max error\n\n" in text and "nan" not in text
    assert "The slower one was chosen, by more than 5 %, in 1 of 2 rows." in text


def test_without_a_gpu() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "bench.choices"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 2 and "there is no CUDA GPU, whose choices are measured" in done.stderr


@pytest.mark.gpu
def test_both_ways_are_measured() -> None:
    card = choices.gpu(0)
    if card.name not in MEASURED:
        pytest.skip("tensor cores are not chosen on this GPU")
    found = list(choices.rows(Case(256, 256, 512), card))
    assert [row.precision for row in found] == list(choices.PRECISIONS)
    assert all(row.strict_ms and row.tensor_ms and not row.note for row in found)
