"""Where a number was obtained: the GPU, the versions, the commit, and what could have changed the baseline."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass

import torch
import triton

from triton_sgemm.device import driver_version, gpu
from triton_sgemm.precision import switches_set


@dataclass(frozen=True)
class Environment:
    """What every row of a results file repeats."""

    gpu: str
    driver: str
    torch: str
    triton: str
    commit: str
    date: str

    def header(self) -> str:
        """The lines above the tables."""
        switches = switches_set()
        return (
            f"{self.gpu}, driver {self.driver or '-'} | torch {self.torch}, Triton {self.triton}, "
            f"Python {platform.python_version()} | commit {self.commit}, {self.date}\n"
            "baseline: cuBLAS through torch.mm and torch.bmm, fp32_precision 'ieee' (TF32 off), of tf32 rows 'tf32'"
            + (f" | set in the environment: {', '.join(switches)}" if switches else "")
        )


def environment() -> Environment:
    """Reads it; the commit comes from the variable COMMIT where there is no git checkout."""
    on_gpu = torch.cuda.is_available()
    return Environment(
        gpu=gpu(torch.cuda.current_device()).name if on_gpu else "no CUDA GPU",
        driver=driver_version(),
        torch=torch.__version__,
        triton=triton.__version__,
        commit=os.environ.get("COMMIT") or _output("git", "describe", "--always", "--dirty") or "unknown",
        date=datetime.date.today().isoformat(),
    )


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
