"""A kernel launch as a value: run it here, or compile it for a GPU that this machine does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


def cdiv(n: int, d: int) -> int:
    """n / d, rounded up (`triton.cdiv` takes microseconds, and a call needs several)."""
    return -(-n // d)


MAX_PROGRAMS = 2**31 - 1  # along x of a grid; y and z hold 65535 only, so nothing goes there


@dataclass(frozen=True)
class Launch:
    """`programs` instances of `kernel`, called with `args` and `options` (constexprs, num_warps, num_stages).

    `before` holds the launches whose results it reads, in order; `clears` is memory that is set to 0 before it starts.
    """

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    before: tuple[Launch, ...] = ()
    clears: tuple[Tensor, ...] = ()

    def run(self, device: torch.device) -> None:
        """Launches on `device` and its current stream, after what comes before.

        Raises ValueError for more programs than a grid holds: CUDA would silently run none of them.
        """
        for each in self.all():
            each.start(device)

    def start(self, device: torch.device) -> Any:
        """Launches the kernel without what comes before it; returns the compiled kernel, None in the interpreter."""
        if self.programs > MAX_PROGRAMS:
            raise ValueError(
                f"the product needs {self.programs} tiles but one launch holds {MAX_PROGRAMS}; "
                "compute it in parts, for instance of rows or of the batch"
            )
        if self.programs == 0:
            return None
        for memory in self.clears:
            memory.zero_()
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self.kernel[(self.programs,)](*self.args, **self.options)

    def all(self) -> Iterator[Launch]:
        """It and what comes before, in order."""
        for earlier in self.before:
            yield from earlier.all()
        yield self

    def compile(self, capability: int) -> Any:
        """The compiled kernel for a compute capability (90 is sm_90), without what comes before; needs no GPU."""
        with _only_naming(capability):
            return self.kernel.warmup(*self.args, grid=(1,), **self.options)


class _NamesTarget:
    """Stands in for the CUDA driver: it names the target to compile for and launches nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return -self.capability  # no real device: its kernels are kept apart from those of GPU 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _only_naming(capability: int) -> Iterator[None]:
    before = driver._active
    driver.set_active(_NamesTarget(capability))
    try:
        yield
    finally:
        driver._active = before
