"""torch's products on one device, served by `product`, and put back.

Autograd's formulas, `matmul`, `linear`, `einsum` and most of what else multiplies matrices, Python or C++, in whatever
thread, come down to a few operators of torch's dispatcher. Their kernels for the device are replaced: below autograd,
autocast, vmap and fake tensors, which all work as before. A mode (TorchFunctionMode, TorchDispatchMode) would hold for
one thread, and gradients of CUDA tensors are computed in others.

What `product` does not take goes to the kernel that was there before, whose errors are those that callers know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import CaptureError
from .product import product

NDIMS = {"mm": (2, 2), "mv": (2, 1), "addmm": (2, 2), "bmm": (3, 3), "baddbmm": (3, 3)}
OVERLOADS = (*NDIMS, *(f"{name}.out" for name in NDIMS), "addmm_", "baddbmm_")


class Overrides:
    """torch's products on the device of a dispatch key ("CUDA"), replaced from now on until `remove`.

    precision   as `matmul`'s; it may change at any time
    """

    def __init__(self, key: str) -> None:
        """Replaces them."""
        self.precision: str | None = None
        self._device = key.lower()
        self._library = torch.library.Library("aten", "IMPL")
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning only once for all operators")  # that a kernel is replaced
                for name in OVERLOADS:
                    if has_kernel(f"aten::{name}", key):  # a torch built without CUDA has none for some
                        serve = self._serving(name, torch.library.get_kernel(f"aten::{name}", key))
                        self._library.impl(name, serve, key, with_keyset=True, allow_override=True)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Puts back what was there."""
        self._library._destroy()

    def _serving(self, overload: str, original: Any) -> Callable[..., Tensor]:
        name = overload.removesuffix(".out").removesuffix("_")
        in_place = overload.endswith("_")

        def serve(keys: Any, *args: Tensor, **options: Any) -> Tensor:
            with torch._C.DisableTorchFunction():  # what happens in a kernel is nobody's to see
                result = self._result(name, args, args[0] if in_place else options.get("out"), options)
            return original.call_boxed(keys, *args, **options) if result is None else result

        return serve

    def _result(
        self, name: str, args: tuple[Tensor, ...], out: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        """torch's `name` by `product`; None where that does not take it."""
        c = args[0] if len(args) == 3 else None
        a, b = args[-2:]
        alpha, beta = options.get("alpha", 1), 0 if c is None else options.get("beta", 1)
        if not self._takes(name, a, b, c, out, alpha, beta):
            return None
        try:
            return product(name, a, b, alpha=alpha, beta=beta, c=c, out=out, precision=self.precision)
        except (ValueError, CaptureError):
            return None
        except torch.OutOfMemoryError:
            if out is not None:  # some of it may be written, with C in its place
                raise
            return None

    def _takes(
        self, name: str, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None, alpha: Any, beta: Any
    ) -> bool:
        """Whether these are float32 on one device, of the dimensions that `name` asks for, and real numbers."""
        device = a.device
        if device.type != self._device or (a.ndim, b.ndim) != NDIMS[name] or (a.ndim == 3 and a.shape[0] != b.shape[0]):
            return False
        for t in (a, b, c, out):
            if t is not None and (t.dtype != torch.float32 or t.device != device):
                return False
        return isinstance(alpha, int | float) and isinstance(beta, int | float)
