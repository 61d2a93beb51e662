"""What the compilers made of each variant: registers, shared memory, spills and instructions. Needs no GPU.

    python -m bench.compiled --arch 90 120 [--variants 'smem_*']

prints one JSON object a line. Where Triton interprets (TRITON_INTERPRET=1) nothing can be compiled, so that
this runs in a process of its own (`read_all`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.cpp_extension import CUDA_HOME

from reference_cuda.loader import source
from reference_cuda.rungs import Rung
from triton_sgemm.device import ARCHS
from triton_sgemm.problem import Problem, problem
from triton_sgemm.variants import Variant

from . import sass
from .catalog import VARIANTS, rung_of, select

OPCODES = (
    "FFMA",
    "FFMA2",
    "LDS",
    "LDSM",
    "STS",
    "STSM",
    "LDG",
    "LDGSTS",
    "BAR",
    "HMMA",
    "HGMMA",
    "UTCHMMA",
    "LDL",
    "STL",
)


@dataclass(frozen=True)
class Main:
    """Of a variant's kernels the one that multiplies, with one turn of its main loop (see `sass.main_loop`)."""

    threads: int
    registers: int
    shared_bytes: int
    loop: dict[str, int]

    def count(self, *names: str) -> int:
        """How often these instructions stand in the loop."""
        return sum(self.loop.get(name, 0) for name in names)


@dataclass(frozen=True)
class Compiled:
    """One variant for one architecture, all its kernels. `note` says why the figures are missing, where they are."""

    variant: str
    arch: int
    registers: int | None = None
    shared_bytes: int | None = None
    opcodes: dict[str, int] = field(default_factory=dict)
    tf32: bool = False
    note: str = ""
    main: Main | None = None

    @property
    def spills(self) -> int:
        """Instructions that move registers to and from local memory."""
        return self.opcodes.get("LDL", 0) + self.opcodes.get("STL", 0)


def read(variant: Variant, arch: int, general: bool = False) -> Compiled:
    """Compiles `variant` for a compute capability and reads the result.

    `general`  the form with everything that costs: beta, odd sizes and strides, and a batch that no one stride walks.
    """
    if arch not in variant.archs:
        return Compiled(variant.name, arch, note=f"not written for sm_{arch}")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        if variant.launch:
            parts = []
            for launch in variant.launch(*(general_call(variant.batched) if general else call())).all():
                kernel = launch.compile(arch)
                cubin.write_bytes(kernel.asm["cubin"])
                ptx = kernel.asm["ptx"]
                threads = re.search(r"\.reqntid (\d+)", ptx)
                block = int(threads[1]) if threads else 32 * kernel.metadata.num_warps
                parts.append(_disassemble(variant, arch, cubin, block, kernel.metadata.shared, "tf32" in ptx))
            return _together(parts)
        rung = rung_of(variant)
        if rung is None:
            return Compiled(variant.name, arch, note="runs other variants' kernels or cuBLAS")
        nvcc = _find_nvcc()
        if not nvcc:
            return Compiled(variant.name, arch, note="needs nvcc")
        return _disassemble(variant, arch, cubin, rung.threads, _nvcc(nvcc, rung, arch, cubin), False)


def _together(parts: list[Compiled]) -> Compiled:
    """A variant of several kernels: the most registers and shared memory of one, the instructions of all."""
    counts = {op: sum(part.opcodes[op] for part in parts) for op in OPCODES}
    return Compiled(
        parts[0].variant,
        parts[0].arch,
        max(part.registers or 0 for part in parts),
        max(part.shared_bytes or 0 for part in parts),
        counts,
        any(part.tf32 for part in parts),
        main=max(
            (part.main for part in parts if part.main),
            key=lambda main: (main.count(*sass.TENSOR), main.count(*sass.FMAS)),
        ),
    )


Call = tuple[Problem, Tensor, Tensor, Tensor | None, Tensor]


def call() -> Call:
    """What a variant is compiled for: the chapter's problem."""
    x = torch.empty(4096, 4096)
    return problem(x, x, None, x, 1.0, 0.0), x, x, None, x


def general_call(batched: bool) -> Call:
    """A call with everything that costs."""
    batch = (3, 2) if batched else ()
    a = torch.empty(*batch[:1], *(1 for _ in batch[1:]), 33, 141)[..., 1::2].expand(*batch, 33, 70)
    b = torch.empty(*batch[1:], 70, 85)[..., ::5].expand(*batch, 70, 17)
    c, out = torch.empty(17, 33).mT.expand(*batch, 33, 17), torch.empty(*batch, 33, 18)[..., :17]
    return problem(a, b, c, out, 1.5, 0.5), a, b, c, out


def _find_nvcc() -> str | None:
    nvcc = Path(CUDA_HOME, "bin", "nvcc") if CUDA_HOME else None
    return str(nvcc) if nvcc and nvcc.exists() else shutil.which("nvcc")


def nvcc_version() -> str:
    """The release of the nvcc that compiles the CUDA rungs; "-" where there is none."""
    nvcc = _find_nvcc()
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
    found = re.search(r"V(\d+\.\d+\.\d+)", said)
    return found[1] if found else "-"


def _nvcc(nvcc: str, rung: Rung, arch: int, cubin: Path) -> int:
    """Compiles a rung to `cubin`; returns the bytes of shared memory that ptxas reports."""
    text = cubin.with_suffix(".cu")
    text.write_text(source((rung,))[1])
    command = [nvcc, "-cubin", f"-arch=sm_{arch}", "-O3", "-Xptxas", "-v", "-o", str(cubin), str(text)]
    log = subprocess.run(command, capture_output=True, text=True)
    if log.returncode:
        raise RuntimeError(f"nvcc refused {rung.name} for sm_{arch}:\n{log.stderr[-2000:]}")
    return sum(int(n) for n in re.findall(r"(\d+) bytes smem", log.stderr))


def _disassemble(variant: Variant, arch: int, cubin: Path, threads: int, shared: int, tf32: bool) -> Compiled:
    tools = triton.knobs.nvidia
    usage = subprocess.run(
        [tools.cuobjdump.path, "-res-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    text = subprocess.run([tools.nvdisasm.path, str(cubin)], capture_output=True, text=True, check=True).stdout
    operations = Counter(each.name.partition(".")[0] for each in sass.instructions(text))
    found = re.search(r"REG:(\d+)", usage)
    if not operations or not found:
        raise RuntimeError(f"{variant.name} for sm_{arch}: the disassembly could not be read")
    registers = int(found[1])
    main = Main(threads, registers, shared, sass.main_loop(text))
    return Compiled(variant.name, arch, registers, shared, {op: operations[op] for op in OPCODES}, tf32, main=main)


def read_all(archs: list[int], patterns: list[str] | None = None, general: bool = False) -> list[Compiled]:
    """`read` for variants and architectures, in processes that compile even if this one interprets."""
    names = [v.name for v in select(patterns or ["*"])]
    shares = max(
        1, (os.cpu_count() or 1) // len(archs)
    )  # of the variants, where there are more cores than architectures
    jobs = [(arch, names[nth::shares]) for arch in archs for nth in range(min(shares, len(names)))]

    def compiled(job: tuple[int, list[str]]) -> list[Compiled]:
        options = ["--arch", str(job[0]), "--variants", *job[1], *(["--general"] if general else [])]
        command = [sys.executable, "-m", "bench.compiled", *options]
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parent.parent
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        return [_restored(json.loads(line)) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [c for found in pool.map(compiled, jobs) for c in found]


def _restored(figures: dict[str, Any]) -> Compiled:
    main = figures.pop("main")
    return Compiled(**figures, main=Main(**main) if main else None)


def main() -> None:
    """Prints the figures as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m bench.compiled", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", type=int, nargs="+", choices=sorted(ARCHS), default=sorted(ARCHS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--general", action="store_true", help="with beta, odd strides and a batch, where there is one")
    args = parser.parse_args()
    try:
        variants = select(args.variants)
    except ValueError as e:
        parser.error(str(e))
    if triton.knobs.runtime.interpret:  # set when `bench` was imported without a GPU
        os.environ["TRITON_INTERPRET"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bench.compiled", *sys.argv[1:]])
    for variant in variants:
        for arch in args.arch:
            try:
                found = read(variant, arch, args.general)
            except Exception as e:  # one variant that does not compile leaves the others their figures
                found = Compiled(variant.name, arch, note=f"failed: {type(e).__name__}: {e}"[:500])
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
