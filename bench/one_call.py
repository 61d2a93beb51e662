"""One call of a variant, marked for a profiler: `python -m bench.one_call VARIANT SIZE`.

What comes before the mark compiles, builds and allocates, and verifies the result: what is wrong is not profiled.
"""

from __future__ import annotations

import sys

import torch

from triton_sgemm.precision import torch_matmul_precision

from . import measure
from .catalog import VARIANTS
from .suites import Case


def main() -> str | None:
    """Makes the call; returns why it was not made."""
    name, size = sys.argv[1:]
    v, case = VARIANTS[name], Case.parse(size)
    x = measure.Operands.random(case, "cuda")
    if reason := v.why_not(x.problem):
        return f"skipped: {reason}"
    with torch_matmul_precision("tf32" if v.precision == "tf32" else "ieee"):
        if wrong := measure.verify(v, x, measure.expectation(x), case.data)[1]:
            return wrong
        torch.cuda.synchronize()
        cudart = torch.cuda.cudart()
        cudart.cudaProfilerStart()
        x.run(v)
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()
    return None


if __name__ == "__main__":
    sys.exit(main())
