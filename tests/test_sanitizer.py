"""compute-sanitizer on the raw CUDA rungs: clean as they are, a race where a barrier is taken out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference_cuda.rungs import RUNGS

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FOUND = 9


def sanitize(tool: str, *args: str) -> subprocess.CompletedProcess[str]:
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        pytest.skip("compute-sanitizer was not found; it comes with the CUDA toolkit")
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--kernel-name", "kernel_substring=sgemm"]
    script = str(Path(__file__).parent / "one_rung.py")
    return subprocess.run([*command, sys.executable, script, *args], capture_output=True, text=True)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
@pytest.mark.parametrize("rung", RUNGS, ids=lambda r: r.name)
def test_clean(rung, tool: str) -> None:
    done = sanitize(tool, rung.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "0 hazards displayed" in done.stdout, done.stdout


@pytest.mark.parametrize("barrier", ["0", "1"])
def test_racecheck_sees_a_missing_barrier(barrier: str) -> None:
    done = sanitize("racecheck", "smem_tiling", barrier)
    assert done.returncode == FOUND, done.stdout + done.stderr
    assert "race" in done.stdout.lower() and "sgemm_smem_tiling" in done.stdout, done.stdout
