"""What a GPU is, as far as a plan or a bench needs to know. Nothing is queried at import."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Arch:
    """Facts of a compute capability. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

    capability: int
    fp32_lanes: int  # float32 FMAs an SM completes in a cycle
    smem_bytes: int  # shared memory one block may use


ARCHS = {
    arch.capability: arch
    for arch in (
        Arch(80, fp32_lanes=64, smem_bytes=163 << 10),
        Arch(86, fp32_lanes=128, smem_bytes=99 << 10),
        Arch(89, fp32_lanes=128, smem_bytes=99 << 10),
        Arch(90, fp32_lanes=128, smem_bytes=227 << 10),
        Arch(100, fp32_lanes=128, smem_bytes=227 << 10),
        Arch(120, fp32_lanes=128, smem_bytes=99 << 10),
    )
}


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    name: str
    capability: int
    sms: int
    l2_bytes: int
    max_clock_mhz: float

    @property
    def slug(self) -> str:
        """The name as a folder: "NVIDIA H200" is `nvidia-h200`."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def fma_peak_gflops(self) -> float | None:
        """What the CUDA cores could do at the highest clock; None where the architecture is not known here."""
        arch = ARCHS.get(self.capability)
        return 2e-3 * self.sms * arch.fp32_lanes * self.max_clock_mhz if arch else None


@lru_cache
def gpu(index: int) -> Gpu:
    """Reads the facts of CUDA device `index`."""
    p = torch.cuda.get_device_properties(index)
    return Gpu(p.name, 10 * p.major + p.minor, p.multi_processor_count, p.L2_cache_size, p.clock_rate / 1e3)


def driver_version() -> str:
    """NVIDIA's driver, as nvidia-smi names it; "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
