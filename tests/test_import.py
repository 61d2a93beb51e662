"""Importing the package costs nothing: no GPU, no compiler, no build, none of the bench."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def python(code: str, tmp_path: Path, **env: str) -> str:
    """Runs `code` where there is no GPU, no tool on PATH and an empty home."""
    bare = {"PATH": "", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), **env}
    if "LD_LIBRARY_PATH" in os.environ:
        bare["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_builds_nothing_and_touches_no_gpu(tmp_path: Path) -> None:
    out = python(
        "import sys, torch\n"
        "from triton_sgemm import matmul\n"
        "assert not torch.cuda.is_initialized()\n"
        "print(*(m for m in ('bench', 'tests', 'reference_cuda', 'pandas') if m in sys.modules))\n"
        "a = torch.ones(2, 3); print(matmul(a, a.T).sum().item())",
        tmp_path,
    )
    assert out.split() == ["12.0"]
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_the_cuda_side_imports_without_a_compiler(tmp_path: Path) -> None:
    out = python("from reference_cuda import loader, on_cpu, rungs; print(loader.why_not())", tmp_path)
    assert "there is no CUDA GPU; reference_cuda.on_cpu runs these kernels without one" in out


def test_the_cpu_executor_names_the_missing_compiler(tmp_path: Path) -> None:
    out = python(
        "import torch\nfrom reference_cuda import on_cpu, rungs\nx = torch.ones(32, 32)\n"
        "try: on_cpu.run(rungs.RUNGS[0], x, x, torch.empty(32, 32))\n"
        "except RuntimeError as e: print(e)",
        tmp_path,
    )
    assert "apt install g++, or set CXX to a compiler" in out


def test_importing_on_a_python_without_the_bench_extra(tmp_path: Path) -> None:
    python("import sys\nsys.modules['pandas'] = sys.modules['rich'] = None\nimport triton_sgemm", tmp_path)


def test_enable_without_a_gpu_changes_nothing_and_import_replaces_nothing(tmp_path: Path) -> None:
    python(
        "import sys, torch, triton_sgemm\n"
        "kernels = lambda: [str(torch.library.get_kernel('aten::mm', key)) for key in ('CPU', 'CUDA')]\n"
        "assert 'torch._inductor' not in sys.modules and 'triton_sgemm' not in str(kernels())\n"
        "before, a = kernels(), torch.randn(20, 20)\n"
        "expected = a @ a\n"
        "with triton_sgemm.enable('tf32'): assert torch.equal(a @ a, expected) and not triton_sgemm.last_plan()\n"
        "assert kernels() == before",
        tmp_path,
    )
