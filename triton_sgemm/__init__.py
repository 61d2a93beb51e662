"""float32 matrix multiplication on GPUs, written in Triton.

`matmul` follows `torch.matmul`'s rules, `sgemm` is BLAS's alpha * A @ B + beta * C; `addmm`, `bmm`, `baddbmm` and
`linear` are torch's functions of these names. `enable` makes torch's own products run on this package, and `last_plan`
tells what ran.
"""

from .errors import CaptureError, DeviceError, DtypeError, OverlapError, ShapeError
from .functions import addmm, baddbmm, bmm, linear
from .last import last_plan
from .matmul import matmul, sgemm
from .prepare import Prepared, prepare
from .routing import disable, enable

__version__ = "0.1.0"
__all__ = [
    "CaptureError",
    "DeviceError",
    "DtypeError",
    "OverlapError",
    "Prepared",
    "ShapeError",
    "addmm",
    "baddbmm",
    "bmm",
    "disable",
    "enable",
    "last_plan",
    "linear",
    "matmul",
    "prepare",
    "sgemm",
]
