"""The example programs at tiny sizes, and their tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from bench import table
from examples import orthogonalise
from examples.report import report

ROOT = Path(__file__).parent.parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def transformer():
    return pytest.importorskip("examples.transformer", reason="triton_sgemm.enable is not there", exc_type=ImportError)


def run(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", f"examples.{module}", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


# ---- orthogonalise


def to_tf32(t: torch.Tensor) -> torch.Tensor:
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_orthogonalise_on_the_cpu(tmp_path: Path) -> None:
    done = run("orthogonalise", "--n", "32", "--csv", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "every way is torch on the CPU" in done.stdout and "n = 32, condition 1000." in done.stdout
    assert "nothing written: no CUDA GPU" in done.stdout and not list(tmp_path.iterdir())


def test_the_iteration_ends_where_the_arithmetic_does() -> None:
    a, factor = orthogonalise.matrix(48, 100.0, "cpu")
    assert torch.linalg.cond(a).item() == pytest.approx(100, rel=1e-3)
    in_tf32 = lambda alpha, a, b, beta, c: beta * c + alpha * (to_tf32(a) @ to_tf32(b))  # noqa: E731
    for gemm, least, most in ((orthogonalise.by_torch, 1e-8, 2e-6), (in_tf32, 2e-4, 2e-3)):
        residuals, errors = zip(*orthogonalise.followed(a, factor, gemm), strict=True)
        assert residuals[0] > 0.5 and all(least < r < most for r in residuals[-4:]) and errors[-1] < 5 * most


@pytest.mark.gpu
def test_orthogonalise_on_a_gpu() -> None:
    data = pd.DataFrame([asdict(row) for row in orthogonalise.measured(512, 100.0, "cuda")])
    last = data[data["iteration"] == orthogonalise.ITERATIONS].set_index("way")
    assert (last["ms"] > 0).all() and data["ms"].notna().sum() == len(orthogonalise.WAYS)
    for way in ("ieee", "fp32", "cuBLAS"):
        assert last.loc[way, "residual"] < 5e-6
    assert last.loc["cuBLAS TF32", "residual"] > 1e-4


# ---- transformer


def task(transformer, device: str, batch: int = 5):
    with torch.device(device):
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.5, batch_first=True)
        model = nn.Sequential(layer, nn.Linear(64, 10))
        inputs, targets = torch.randn(batch, 7, 64), torch.randint(10, (batch, 7))
    return transformer.Task("tiny", model, inputs, targets, lambda model, inputs: model(inputs))


def test_float64_in_parts_is_the_same_step(transformer) -> None:
    whole = task(transformer, "cpu")
    whole.model.eval()
    logits, gradients = transformer.in_float64(whole)
    double = transformer.Task("", whole.model.double(), whole.inputs.double(), whole.targets, whole.logits)
    assert torch.allclose(transformer.step(double), logits, rtol=1e-12)
    for mine, theirs in zip(transformer.gradients(double.model), gradients, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("device", DEVICES)
def test_every_way_of_a_step(device: str, transformer) -> None:
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    rows = transformer.measured(task(transformer, device))
    assert before == (torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
    assert [row.way for row in rows] == list(transformer.WAYS)
    for row in rows:
        assert (row.ms is not None) == (device == "cuda")
        if "tf32" not in row.way.lower():
            assert 0 < row.output_error < 1e-5 and 0 < row.gradient_error < 1e-5


def test_relative_error(transformer) -> None:
    x, y = torch.tensor([3.0, 0.0], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)
    assert transformer.relative_error([x, y], [x, y]) == 0
    assert transformer.relative_error([x, y + 1], [x, y]) == pytest.approx(0.2)


@pytest.mark.parametrize(("model", "package"), [("vit", "timm"), ("gpt", "transformers")])
def test_a_missing_package_is_named(model: str, package: str, transformer, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["transformer", "--model", model])
    with pytest.raises(SystemExit) as stopped:
        transformer.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and f"model {model} needs {package}" in said and f"pip install {package}" in said


def test_a_real_model(transformer) -> None:
    pytest.importorskip("transformers")
    rows = transformer.measured(transformer.gpt(None, on_gpu=False))
    assert all(0 < row.output_error < 1e-5 for row in rows) and "GPT-2, tiny, batch 2" in rows[0].model


# ---- tables


def made_up() -> dict[str, list]:
    """Rows of each example, as its program makes them."""
    iterations = [
        orthogonalise.Row(way, 4096, 1000.0, i, 10.0**-i, 2e-6, 12.345 if i == 3 else None)
        for way in orthogonalise.WAYS
        for i in (1, 2, 3)
    ]
    step = {"parameters": 304_326_632, "output_error": 1e-6, "gradient_error": 2.5e-6}
    steps = [step | {"model": "ViT", "way": way, "ms": ms} for way, ms in (("PyTorch", 500.0), ("other", 200.0))]
    return {"orthogonalise": [asdict(row) for row in iterations], "transformer": steps}


@pytest.mark.parametrize("name", table.EXAMPLES)
def test_an_examples_results_make_a_table_in_a_document(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    document = f"a\n<!-- example {name} gpu -->\nold\n<!-- end -->\nb"
    assert "\nNot measured yet: `make examples`.\n" in table.filled(document)
    origin = dict.fromkeys(("gpu", "driver", "torch", "triton", "commit", "date"), "x")
    data = pd.DataFrame(made_up()[name]).assign(**origin)
    table.save_frame(data, tmp_path / "gpu" / f"example_{name}.csv")
    text = table.filled(document)
    assert "\nold\n" not in text and "nan" not in text.lower() and table.filled(text) == text
    squeezed = re.sub(" +", " ", text)
    for part in {
        "orthogonalise": ("| 3 ", "| *error of the factor* | 2.0e-06 |", "| *ms, all iterations* | 12.3", "n = 4096"),
        "transformer": ("**ViT, 304 million parameters**", "| 200 | 2.50 | 1.0e-06 | 2.5e-06 |"),
    }[name]:
        assert part in squeezed


def test_what_came_from_no_gpu_is_not_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = orthogonalise.measured(8, 10.0, "cpu")
    report("orthogonalise", rows, tmp_path)
    assert "nothing written" in capsys.readouterr().out and not list(tmp_path.iterdir())
