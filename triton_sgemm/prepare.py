"""An operand split once and multiplied many times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .algorithms import split, tensor_core
from .device import gpu
from .errors import ShapeError
from .plan import MEASURED
from .precision import check_precision, resolved


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `prepare` made of a matrix. `planes` is None where no planes are used: then `b` is multiplied as it is."""

    b: Tensor
    precision: str
    planes: split.Planes | None
    version: int | None

    def __repr__(self) -> str:
        planes = "in planes" if self.planes else "as it is"
        return f"Prepared({tuple(self.b.shape)}, {self.b.dtype}, {self.b.device}, {self.precision!r}, {planes})"

    def current(self, name: str) -> Tensor:
        """The matrix; raises ValueError where it was changed in place since."""
        if torch.compiler.is_compiling():
            return self.b  # a compiled graph multiplies it as it is
        if self.version is not None and self.b._version != self.version:
            raise ValueError(f"{name}: b was changed in place after prepare(b); prepare it again")
        return self.b


def prepare(b: Tensor, precision: str | None = None) -> Prepared:
    """Splits B for `matmul(a, prepare(b))`, which then splits A only.

    Shapes    b (K, N), any strides.
    Computes  the planes that the given precision works on ("fp32", "tf32"; None: as in `matmul`): 4 bytes an element,
              2 for "tf32", kept as long as the result. Where that precision would not use planes (CPU tensors, other
              dtypes, GPUs that were not measured, "ieee") nothing is computed and b is multiplied as it is.
    Returns   an object that `matmul`, `sgemm` and `linear` take in b's place, for that precision and on b's device.
    Raises    TypeError for what is no tensor, ShapeError for one that is not a matrix, ValueError for an unknown
              precision. A product with a b that was changed in place since raises ValueError.
    """
    check_precision("prepare", precision)
    if isinstance(b, Prepared):
        raise TypeError("prepare: b is prepared already; need a torch.Tensor, or use what was prepared as it is")
    if not isinstance(b, Tensor):
        raise TypeError(
            f"prepare: b is of type {type(b).__name__}; need a torch.Tensor, for instance torch.as_tensor(b)"
        )
    if b.ndim != 2:
        raise ShapeError(f"prepare: b is {tuple(b.shape)}; need a matrix (K, N)")
    precision = resolved(precision)
    version = None if b.is_inference() else b._version
    K, N = b.shape
    tiles = {"fp32": tensor_core.TILES, "tf32": tensor_core.TF32_TILES}.get(precision)
    usable = (
        tiles is not None
        and b.is_cuda
        and b.dtype == torch.float32
        and b.layout == torch.strided
        and N > 0
        and gpu(b.device.index).name in MEASURED
        and tensor_core.why_not(1, 1, N, K, tiles[0]) is None
    )
    if not usable or tiles is None:
        return Prepared(b, precision, None, version)
    values = b.detach().resolve_neg()
    source = split.Source(values, (), N, K, (values.stride(1), values.stride(0)))
    (planes,), launch, _ = split.launch([source], tiles[0].planes)
    launch.run(b.device)
    return Prepared(b, precision, planes, version)
