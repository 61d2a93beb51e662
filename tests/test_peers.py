"""The sample inputs by which PyTorch tests its own functions, forward and gradients: exceptions, none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = """
import sys, types, unittest
try:
    import expecttest
except ImportError:  # torch's test helpers derive a class from its TestCase, which nothing here uses
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False)
import torch
from torch.testing._internal.common_methods_invocations import op_db
import triton_sgemm as ours

device = sys.argv[1]
torch.manual_seed(0)
NAMES = ("matmul", "mm", "bmm", "addmm", "baddbmm", "nn.functional.linear")
for info in op_db:
    if info.name not in NAMES or info.variant_test_name:
        continue
    call = ours.matmul if info.name == "mm" else getattr(ours, info.name.rpartition(".")[2])
    count = 0
    for sample in info.sample_inputs(device, torch.float32, requires_grad=True):
        args = (sample.input, *sample.args)
        differentiable = [t for t in (*args, *sample.kwargs.values()) if isinstance(t, torch.Tensor)]
        expected, result = info.op(*args, **sample.kwargs), call(*args, **sample.kwargs)
        where = lambda text: f"{info.name} {sample}: {text}"
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4, msg=where)
        gradient = torch.randn_like(expected)
        both = [torch.autograd.grad(y, differentiable, gradient, allow_unused=True) for y in (result, expected)]
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-4, msg=where)
        count += 1
    print(info.name, count)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torchs_own_samples(device: str) -> None:
    # in a process of its own: importing torch's test helpers sets global flags
    done = subprocess.run([sys.executable, "-c", CODE, device], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6 and not done.stdout.endswith(" 0\n"), done.stdout
