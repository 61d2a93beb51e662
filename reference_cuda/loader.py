"""Builds the raw CUDA rungs on first use, with torch's inline compilation, and launches them.

One extension holds every rung. Where it does not compile, each rung is built alone, so that a broken one
does not take the others down. Its binding takes addresses and a stream as integers: with no torch header
to compile, the build takes seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from .rungs import CACHE, RUNGS, Rung

Launcher = Callable[..., str | None]  # returns what went wrong

FLAGS = ("-O3", "-lineinfo")

SIGNATURE = (
    "dim3 grid, dim3 block, void *stream, int M, int N, int K, "
    "float alpha, const float *A, const float *B, float beta, float *C"
)

LAUNCHER = """
const char *launch_{name}({signature}) {{
  {kernel}<<<grid, block, 0, (cudaStream_t)stream>>>(M, N, K, alpha, A, B, beta, C);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}}
"""

BINDING = """
#include <cstdint>
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
{declarations}
template <auto launch>
const char *call(unsigned blocks_x, unsigned blocks_y, unsigned threads, std::uintptr_t stream, int M, int N, int K,
                 float alpha, std::uintptr_t A, std::uintptr_t B, float beta, std::uintptr_t C) {{
  return launch(dim3(blocks_x, blocks_y), dim3(threads), (void *)stream, M, N, K, alpha, (const float *)A,
                (const float *)B, beta, (float *)C);
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{
{definitions}
}}
"""


class BuildError(RuntimeError):
    """The raw CUDA rungs cannot be built here; the message has the remedy. Triton's side is unharmed."""


def run(rung: Rung, a: Tensor, b: Tensor, out: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
    """out = alpha * A @ B + beta * out with a rung's kernel, on `out`'s device and its current stream.

    The kernel multiplies whatever alpha is: 0 times a NaN of A is NaN, unlike in BLAS.

    Shapes    a (M, K), b (K, N), out (M, N), contiguous float32 on one CUDA device; M, N and K multiples
              of `rung.multiple_of`.
    Raises    TypeError and ValueError as `Rung.check`, BuildError where the rung cannot be built.
    """
    rung.check(a, b, out)
    if not out.is_cuda:
        raise ValueError(f"{rung.name}: the tensors are on {out.device}; need a CUDA device, or reference_cuda.on_cpu")
    M, K = a.shape
    N = b.shape[1]
    if M == 0 or N == 0:
        return
    with torch.cuda.device(out.device):
        launch = load(rung, torch.cuda.get_device_capability(out.device))
        if beta == 0 and rung.reads_c_always:
            out.zero_()
        stream = torch.cuda.current_stream().cuda_stream
        error = launch(
            *rung.grid(M, N), rung.threads, stream, M, N, K, alpha, a.data_ptr(), b.data_ptr(), beta, out.data_ptr()
        )
    if error:
        raise RuntimeError(f"{rung.name}: the launch failed: {error}")


def load(rung: Rung, capability: tuple[int, int]) -> Launcher:
    """The rung's launch function, built if this is the first use; raises BuildError where that fails."""
    with _building:
        if (rung, capability) not in _launchers:
            _build_each(RUNGS, capability)
        launch = _launchers[rung, capability]
    if isinstance(launch, str):
        raise BuildError(launch)
    return launch


def why_not() -> str | None:
    """Why nothing can be built here, with the remedy; None where it can."""
    from torch.utils import cpp_extension

    if not torch.cuda.is_available():
        return "there is no CUDA GPU; reference_cuda.on_cpu runs these kernels without one"
    if cpp_extension.CUDA_HOME is None or not (Path(cpp_extension.CUDA_HOME) / "bin" / "nvcc").exists():
        return f"nvcc was not found; install the CUDA {torch.version.cuda} toolkit and set CUDA_HOME to its folder"
    with _build_environment(None):
        if shutil.which("ninja") is None:
            return "ninja was not found; pip install ninja"
    return None


def source(rungs: tuple[Rung, ...]) -> tuple[str, str]:
    """The C++ binding and the CUDA source that are compiled for `rungs`."""
    cuda = ["#include <cuda_runtime.h>"]
    for rung in rungs:
        cuda += [rung.source, LAUNCHER.format(name=rung.name, kernel=rung.kernel, signature=SIGNATURE)]
    binding = BINDING.format(
        declarations="\n".join(f"const char *launch_{rung.name}({SIGNATURE});" for rung in rungs),
        definitions="\n".join(f'  m.def("{rung.name}", &call<launch_{rung.name}>);' for rung in rungs),
    )
    return binding, "\n".join(cuda)


_building = threading.RLock()  # a build changes the process's environment
_launchers: dict[tuple[Rung, tuple[int, int]], Launcher | str] = {}  # or what the compiler said


def _build_each(rungs: tuple[Rung, ...], capability: tuple[int, int]) -> None:
    """Fills in `_launchers`: all rungs in one build, or, where that does not compile, one by one."""
    reason = why_not()
    if reason:
        raise BuildError(f"the raw CUDA kernels cannot be built: {reason}")
    try:
        built = _build(rungs, capability)
        _launchers.update({(rung, capability): getattr(built, rung.name) for rung in rungs})
    except BuildError as e:
        if len(rungs) == 1:
            _launchers[rungs[0], capability] = str(e)
        for rung in rungs if len(rungs) > 1 else ():
            _build_each((rung,), capability)


def _build(rungs: tuple[Rung, ...], capability: tuple[int, int]) -> ModuleType:
    from torch.utils.cpp_extension import load_inline

    binding, cuda = source(rungs)
    arch = "{}.{}".format(*capability)
    text = "\0".join((binding, cuda, *FLAGS, torch.__version__, sys.version, arch))
    name = "triton_sgemm_reference_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        with _sole_builder(name) as folder, _build_environment(arch):
            options = {"extra_cuda_cflags": list(FLAGS), "no_implicit_headers": True, "build_directory": str(folder)}
            return load_inline(name, binding, cuda, **options)
    except Exception as e:  # torch raises several kinds, each with the compiler's words
        names = ", ".join(rung.name for rung in rungs)
        raise BuildError(f"{names}: the build in {CACHE / name} failed: {type(e).__name__}: {e}") from e


@contextmanager
def _sole_builder(name: str) -> Iterator[Path]:
    """The folder to build in, held against other processes; the system frees the lock of one that was killed."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # torch's own lock, left by a killed build, would be waited for forever
        (folder / "lock").unlink(missing_ok=True)
        yield folder


@contextmanager
def _build_environment(arch: str | None) -> Iterator[None]:
    """The architecture to build for, and the tools that lie beside this Python; both undone afterwards."""
    wanted = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))}
    if arch:
        wanted["TORCH_CUDA_ARCH_LIST"] = arch
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
