"""The raw CUDA rungs, executed on the CPU: the same text that nvcc gets, behind `fibers.h`."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from torch import Tensor

from .rungs import CACHE, HERE, Rung

FLAGS = (
    *("-O2", "-std=c++17", "-shared", "-fPIC"),
    "-fvisibility=hidden",  # else the As of a second library is the As of the first one loaded
    "-fno-strict-aliasing",  # CUDA lets a float4 pointer read floats
    "-ffp-contract=fast",  # acc += a * b is one fused multiply-add, as on the GPU
    "-fno-tree-vectorize",  # a vectorised sum multiplies first and adds afterwards, unfused
)

PROGRAM = """\
#include "fibers.h"
#line 1 "{rung.name}.cu"
{source}
#line 1 "launch"
extern "C" __attribute__((visibility("default"))) const char *launch(
    unsigned grid_x, unsigned grid_y, unsigned threads, uint64_t seed,
    int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {{
  return fibers::run({{grid_x, grid_y}}, {{threads}}, seed,
                     [=] {{ {rung.kernel}(M, N, K, alpha, A, B, beta, C); }});
}}
"""


def run(
    rung: Rung,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    *,
    source: str | None = None,
    seed: int = 0,
) -> None:
    """out = alpha * a @ b + beta * out, every thread of the rung's kernel run on the CPU.

    Shapes    a (M, K), b (K, N), out (M, N): contiguous float32 on the CPU.
    source    a text to run in place of the rung's own, with the same kernel name and arguments.
    seed      the order in which blocks, and between two barriers threads, take their turns.
    Raises    what `Rung.check` does, and ValueError for a tensor that is not on the CPU;
              RuntimeError without a compiler, for a text that does not compile, and for a barrier
              that only some of a block's threads reach.
    """
    if out.device.type != "cpu":
        raise ValueError(f"{rung.name}: out is on {out.device}; need a, b and out on the CPU")
    rung.check(a, b, out)
    launch = _library(rung, rung.source if source is None else source).launch
    launch.restype = ctypes.c_char_p

    if beta == 0 and rung.reads_c_always:
        out.zero_()
    (M, K), N = a.shape, b.shape[1]
    grid_x, grid_y = rung.grid(M, N)
    error = launch(
        *map(ctypes.c_uint, (grid_x, grid_y, rung.threads)),
        ctypes.c_uint64(seed),
        *map(ctypes.c_int, (M, N, K)),
        ctypes.c_float(alpha),
        ctypes.c_void_p(a.data_ptr()),
        ctypes.c_void_p(b.data_ptr()),
        ctypes.c_float(beta),
        ctypes.c_void_p(out.data_ptr()),
    )
    if error:
        raise RuntimeError(f"{rung.name}: {error.decode()}")


def _library(rung: Rung, source: str) -> ctypes.PyDLL:
    """The compiled program, from the cache where it was built before."""
    program = PROGRAM.format(rung=rung, source=source)
    compiler = [*shlex.split(os.environ.get("CXX") or "g++"), *FLAGS, *_fma_flag(), f"-I{HERE}"]
    key = "\0".join([platform.machine(), *compiler, (HERE / "fibers.h").read_text(), program])
    library = CACHE / f"{rung.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        _compile(rung.name, compiler, program, library)
    return ctypes.PyDLL(str(library))  # holds the GIL: a library runs one grid at a time


def _compile(name: str, compiler: list[str], program: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        try:
            done = subprocess.run(
                [*compiler, "-x", "c++", "-", "-o", str(built)], input=program, capture_output=True, text=True
            )
        except OSError as error:
            raise RuntimeError(
                f"{name}: cannot start the C++ compiler {compiler[0]!r} ({error.strerror}); "
                "apt install g++, or set CXX to a compiler"
            ) from None
        if done.returncode:
            raise RuntimeError(f"{name}: {shlex.join(compiler)} failed:\n{done.stderr[-2000:]}")
        os.replace(built, library)  # whole or not at all, whoever else builds it


@cache
def _fma_flag() -> tuple[str, ...]:
    """What fuses multiply-adds where an x86 can; other machines need no flag."""
    cpuinfo = Path("/proc/cpuinfo")
    # tuned for any x86, gcc 14 keeps the FMAs of a sum apart; tuned for the first that had them it does not
    return ("-mfma", "-mtune=haswell") if cpuinfo.exists() and "fma" in cpuinfo.read_text().split() else ()
