"""What a GPU is, as far as a plan or a bench needs to know. Nothing is queried at import."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache

import torch

REGISTERS = 65536  # of an SM, on every architecture below


@dataclass(frozen=True)
class Arch:
    """Facts of a compute capability. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

    capability: int
    fp32_lanes: int  # float32 FMAs an SM completes in a cycle
    smem_bytes: int  # shared memory one block may use
    sm_smem_bytes: int  # and all blocks of an SM
    sm_threads: int  # that an SM holds at a time
    sm_blocks: int

    @property
    def balance(self) -> float:
        """FMAs for each shared load that keep both busy: an SM serves one warp-wide load of 128 bytes a cycle."""
        return self.fp32_lanes / 32


ARCHS = {
    arch.capability: arch
    for arch in (
        Arch(80, 64, 163 << 10, sm_smem_bytes=164 << 10, sm_threads=2048, sm_blocks=32),
        Arch(86, 128, 99 << 10, sm_smem_bytes=100 << 10, sm_threads=1536, sm_blocks=16),
        Arch(89, 128, 99 << 10, sm_smem_bytes=100 << 10, sm_threads=1536, sm_blocks=24),
        Arch(90, 128, 227 << 10, sm_smem_bytes=228 << 10, sm_threads=2048, sm_blocks=32),
        Arch(100, 128, 227 << 10, sm_smem_bytes=228 << 10, sm_threads=2048, sm_blocks=32),
        Arch(120, 128, 99 << 10, sm_smem_bytes=100 << 10, sm_threads=1536, sm_blocks=24),
    )
}


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

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


@dataclass(frozen=True)
class Card(Gpu):
    """A GPU as its maker describes it, for a machine that does not have it; `name` is what its driver says."""

    dram_gbs: float
    fp16_tflops: float | None  # of the tensor cores, dense, accumulated in float32
    tf32_tflops: float | None  # dense
    source: str

    @property
    def ridge(self) -> float:
        """FLOP for each byte from its memory, below which that memory binds a kernel."""
        return (self.fma_peak_gflops or 0.0) / self.dram_gbs


CARDS = {
    # 56.3 TFLOP/s over 960 GB/s are the chapter's ridge of 58.6
    "rtx-5080": Card(
        "NVIDIA GeForce RTX 5080", 120, 84, 64 << 20, 2617, 960, None, None, "NVIDIA RTX Blackwell GPU Architecture"
    ),
    "h200": Card("NVIDIA H200", 90, 132, 50 << 20, 1980, 4800, 989.4, 494.7, "NVIDIA H200 datasheet (SXM)"),
    "h100": Card("NVIDIA H100 80GB HBM3", 90, 132, 50 << 20, 1980, 3350, 989.4, 494.7, "NVIDIA H100 datasheet (SXM)"),
    "a100": Card(
        "NVIDIA A100-SXM4-80GB", 80, 108, 40 << 20, 1410, 2039, 312, 156, "NVIDIA A100 datasheet (SXM, 80 GB)"
    ),
}


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
