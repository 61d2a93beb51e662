"""float32 matrix multiplication on GPUs, written in Triton.

`matmul` follows `torch.matmul`'s rules, `sgemm` is BLAS's alpha * A @ B + beta * C.
"""

from .errors import DeviceError, DtypeError, OverlapError, ShapeError
from .matmul import matmul, sgemm
from .prepare import Prepared, prepare

__version__ = "0.1.0"
__all__ = ["DeviceError", "DtypeError", "OverlapError", "Prepared", "ShapeError", "matmul", "prepare", "sgemm"]
