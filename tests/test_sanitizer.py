"""compute-sanitizer on the raw CUDA rungs: clean as they are, a race where a barrier is taken out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from reference_cuda.loader import source
from reference_cuda.rungs import RUNGS, Rung

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BARRIER = "__syncthreads();"
FOUND = 9

# a program without torch: what the sanitizer has to watch is the kernel alone
PROGRAM = """
#include <cstdio>
#include <vector>
{rungs}
float *ones(int elements) {{
  std::vector<float> host(elements, 1.0f);
  float *device;
  cudaMalloc(&device, host.size() * sizeof(float));
  cudaMemcpy(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice);
  return device;
}}
int main() {{
{launches}
  return cudaDeviceSynchronize() != cudaSuccess;
}}
"""
LAUNCH = (
    "  if (launch_{name}(dim3({x}, {y}), dim3({threads}), 0, {M}, {N}, {K}, "
    "1.0f, ones({M} * {K}), ones({K} * {N}), 0.5f, ones({M} * {N}))) return 1;"
)


def launch(rung: Rung) -> str:
    """The call of a rung on several tiles along every axis."""
    M, N, K = (n * max(32, rung.multiple_of) for n in (3, 2, 4))
    x, y = rung.grid(M, N)
    return LAUNCH.format(name=rung.name, x=x, y=y, threads=rung.threads, M=M, N=N, K=K)


def tool(name: str) -> str:
    found = shutil.which(name) or f"/usr/local/cuda/bin/{name}"
    if not Path(found).exists():
        pytest.skip(f"{name} was not found; it comes with the CUDA toolkit")
    return found


def sanitize(check: str, rungs: tuple[Rung, ...], tmp_path: Path, without_barrier: int | None = None) -> str:
    """The sanitizer's report, its exit status in the last line; one barrier may be taken out first."""
    text = source(rungs)[1]
    if without_barrier is not None:
        before, *after = text.split(BARRIER)
        text = before + "".join(("" if i == without_barrier else BARRIER) + part for i, part in enumerate(after))
    launches = "\n".join(launch(rung) for rung in rungs)
    program = tmp_path / "rungs.cu"
    program.write_text(PROGRAM.format(rungs=text, launches=launches))
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    subprocess.run(
        [tool("nvcc"), f"-arch={arch}", "-lineinfo", "-o", str(tmp_path / "rungs"), str(program)], check=True
    )
    command = [tool("compute-sanitizer"), "--tool", check, "--error-exitcode", str(FOUND), str(tmp_path / "rungs")]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}"


@pytest.mark.parametrize("check", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_clean(check: str, tmp_path: Path) -> None:
    report = sanitize(check, RUNGS, tmp_path)
    assert report.endswith("exit status 0"), report
    assert "ERROR SUMMARY: 0 errors" in report or "0 hazards displayed (0 errors" in report, report


# async_ring's waits and barriers are taken out one by one in test_cuda_on_cpu.py: it is not known here whether
# racecheck follows cp.async
@pytest.mark.parametrize("barrier", [0, 1])
@pytest.mark.parametrize(
    "rung", [r for r in RUNGS if BARRIER in r.source and "cp.async" not in r.source], ids=lambda r: r.name
)
def test_racecheck_sees_a_missing_barrier(rung: Rung, barrier: int, tmp_path: Path) -> None:
    assert rung.source.count(BARRIER) == 2
    report = sanitize("racecheck", (rung,), tmp_path, without_barrier=barrier)
    assert report.endswith(f"exit status {FOUND}"), report
    assert "hazard" in report and f"sgemm_{rung.name}" in report, report
