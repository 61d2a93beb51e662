"""`python -m triton_sgemm`: what it says, that a wrong result is found and told, and its exit status."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import triton_sgemm.__main__ as doctor
from triton_sgemm import call, selfcheck
from triton_sgemm.device import Gpu
from triton_sgemm.selfcheck import Check, Wrong

ROOT = Path(__file__).parent.parent


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triton_sgemm", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | env)


@pytest.fixture
def no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def off_by_one(a, b, *, out=None, precision=None):
    """A product with one element wrong."""
    result = a @ b
    result.view(-1)[:1] += 1
    return result if out is None else out.copy_(result)


@pytest.mark.parametrize(
    ("interpret", "kernels"), [("0", "kernels compile for a GPU"), ("1", "kernels in Triton's interpreter")]
)
def test_without_a_gpu(interpret: str, kernels: str) -> None:
    if interpret == "1" and torch.cuda.is_available():
        pytest.skip("a CUDA GPU is here; its numpy may be too new for Triton to interpret")
    done = run(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET=interpret, NVIDIA_TF32_OVERRIDE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (f"torch {torch.__version__}", "No CUDA GPU was found", "torch.matmul, gradients included", kernels):
        assert text in done.stdout
    assert "set in the environment, and able to change results: NVIDIA_TF32_OVERRIDE=0" in done.stdout
    assert "All is well." in done.stdout and "FAILED" not in done.stdout


def test_a_driver_without_a_gpu_is_told(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "driver_version", lambda: "580.1")
    assert "though there is a driver, 580.1: this torch is built for CUDA" in doctor.without_gpu()


@pytest.mark.parametrize(
    ("options", "text"), [(["--fast"], "unrecognized arguments: --fast"), (["--device", "99"], "no CUDA device 99")]
)
def test_wrong_options(options: list[str], text: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        doctor.main(options)
    assert stopped.value.code == 2 and text in capsys.readouterr().err


def test_a_wrong_product_is_told(no_gpu, monkeypatch, capsys) -> None:
    monkeypatch.setattr(selfcheck, "matmul", off_by_one)
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "FAILED (11 of 11) torch.matmul: products within" in said
    assert "\nFAILED matmul, 100 x 101 x 99, TN\n  expected  every error at most 1.13e-06 |A||B|" in said
    assert "|A||B|: " in said and " at [0, 0], in float64 " in said
    assert "please open an issue" in said and "All is well" not in said


def test_a_check_that_raises_fails_and_the_others_go_on(no_gpu, monkeypatch, capsys) -> None:
    def broken(*_, **__):
        raise RuntimeError("\nno kernel image\nis there")

    monkeypatch.setattr(selfcheck, "sgemm", broken)
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "  expected  a result\n  came      RuntimeError: no kernel image\n" in said and "ok (11)" in said


CPU = torch.device("cpu")


def test_every_check_refuses_what_it_is_there_for(monkeypatch) -> None:
    def refused(check, *args) -> str:
        with pytest.raises(Wrong) as caught:
            check(*args, None, CPU)
        return f"{caught.value.expected}; {caught.value.came}"

    def beyond(a, b, *, out, precision=None):
        torch.matmul(a, b, out=out)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0.0)

    def nan(a, b, *, out=None, precision=None):
        result = (a @ b).nan_to_num(nan=1.0) if out is None else (a @ b) * float("nan")
        return result if out is None else out.copy_(result)

    with monkeypatch.context() as m:
        m.setattr(selfcheck, "matmul", beyond)
        assert "memory beside the output" in refused(selfcheck.check_product, (8, 9, 10), "NN")
        m.setattr(selfcheck, "matmul", nan)
        assert "nan |A||B|: nan at [0, 0]" in refused(selfcheck.check_product, (8, 9, 10), "NN")
        assert "as torch.matmul has it" in refused(selfcheck.check_special, (8, 9, 10))
        m.setattr(selfcheck, "matmul", lambda a, b, precision: (1.001 * a) @ b)
        assert "every error" in refused(selfcheck.check_special, (8, 9, 10))
        assert "every error" in refused(selfcheck.check_gradients, (8, 9, 10))
        m.setattr(selfcheck, "product", lambda name, a, b, precision: 1.001 * (a @ b))
        assert "every error" in str(Check("", "", lambda: selfcheck.check_interpreted((8, 9, 10))).failure())
    for wrong in (
        lambda alpha, a, b, beta, c, out=None, precision=None: alpha * (a @ b) + beta * c,
        lambda alpha, a, b, beta, c, out=None, precision=None: c.copy_(alpha * (a @ b) + beta * c),
    ):
        monkeypatch.setattr(selfcheck, "sgemm", wrong)
        refused(selfcheck.check_in_place, (8, 9, 10))


def test_what_there_was_no_time_for_is_told(no_gpu, monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "CHECKS_S", 0.0)
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert re.search(r"not done +\d+ more, for want of time", said) and "All is well" not in said


def test_what_computes_a_product_is_named(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "gpu", lambda index: Gpu("NVIDIA H200", 90, 132, 50 << 20, 1980.0))
    said = doctor.plans(torch.device("cuda", 0))
    assert re.search(r"4096 x 4096 x 4096 +ieee +fma_128x256x8 +2,\d+ us predicted: 4 programs on an SM\n", said)
    assert re.search(r"\n +fp32 +fp16x3_128x128x64 +\d+ us predicted: 8 tiles on an SM\n", said)
    monkeypatch.setattr(doctor, "gpu", lambda index: Gpu("another", 80, 108, 40 << 20, 1410.0))
    said = doctor.plans(torch.device("cuda", 0))
    assert "tensor cores were measured on NVIDIA H200 only" in said and "fp16x" not in said


def test_a_size_that_takes_too_long_is_left_out(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "timed", lambda n, device: [2e-9 * n**3, 1e-9 * n**3, 4e-9 * n**3, 2.0, 1.0])
    table = doctor.speeds(CPU).splitlines()[-4:]
    assert table[0].split() == ["512", "0.2684", "0.1342", "200%", "0.5369", "50%", "2", "1", "200%"]
    assert table[2].startswith("  4096  left out: a call would take about 275 ms")
    assert table[3].startswith("  8192  left out: a call would take about 2,199 ms")


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch.cuda.get_device_name() in done.stdout
    assert "All is well." in done.stdout or "What was checked is well." in done.stdout  # where compilers were slow
    assert "4096 x 4096 x 4096" in done.stdout and "us predicted" in done.stdout
    assert "\n  2048 " in done.stdout and "cuBLAS TF32" in done.stdout
    assert "Milliseconds" not in run("--quick", "--device", "0").stdout


@pytest.mark.gpu
def test_a_wrong_kernel_is_told(monkeypatch, capsys) -> None:
    right = call.product

    def wrong(name, a, b, *, precision=None, **rest):
        result = right(name, a, b, precision=precision, **rest)
        return result.mul_(1.0001) if precision == "fp32" else result

    monkeypatch.setattr(call, "product", wrong)
    assert doctor.main(["--quick"]) == 1
    said = capsys.readouterr().out
    assert "FAILED fp32, 1000 x 1001 x 999, NN" in said and "FAILED ieee" not in said
