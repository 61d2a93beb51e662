"""What a caller may ask of the arithmetic, and how torch's own switch is read and kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("ieee", "fp32", "tf32")

# environment variables that change what cuBLAS or Triton does with float32: one that is set is reported
SWITCHES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_F32_DEFAULT",
    "TRITON_DEFAULT_FP_FUSION",
)


def check_precision(name: str, precision: str | None) -> None:
    """Raises ValueError unless `precision` is None or one of PRECISIONS."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"{name}: precision is {precision!r}; use None or one of {', '.join(map(repr, PRECISIONS))}")


def resolved(precision: str | None) -> str:
    """`precision`; where that is None what torch's own switch says, "ieee" or "tf32", or "fp32" while it is unset."""
    if precision is not None:
        return precision
    switch = torch.backends.cuda.matmul.fp32_precision
    return switch if switch in PRECISIONS else "fp32"


@contextmanager
def torch_matmul_precision(value: str) -> Iterator[None]:
    """torch's float32 CUDA matmuls in `value` ("ieee" or "tf32"); what was set before comes back."""
    # only the newer of torch's two switches: reading the older one throws once the newer was set
    before = torch.backends.cuda.matmul.fp32_precision
    if before == torch.backends.fp32_precision:  # type: ignore[attr-defined]
        before = "none"  # inherited, and to be so again
    torch.backends.cuda.matmul.fp32_precision = value
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def switches_set() -> list[str]:
    """Those of SWITCHES that are set, each with its value."""
    return [f"{name}={os.environ[name]}" for name in SWITCHES if name in os.environ]
