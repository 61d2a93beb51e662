"""`enable`: code written for torch runs on this package, unchanged."""

from __future__ import annotations

import threading
from typing import Any

from .overrides import Overrides
from .precision import check_precision

KEY = "CUDA"  # the dispatch key whose kernels are replaced

_lock = threading.Lock()
_enabled: list[Enabled] = []  # the last one rules
_installed: tuple[Overrides, Any] | None = None


class Enabled:
    """What `enable` returns: it ends with `disable()`, or with the `with` block that it opens."""

    def __init__(self, precision: str | None) -> None:
        """Begins it."""
        self.precision = precision
        self._blocks = 0
        self._begin()

    def _begin(self) -> None:
        with _lock:
            if self not in _enabled:
                _enabled.append(self)
                try:
                    _follow()
                except BaseException:
                    _enabled.remove(self)
                    raise

    def disable(self) -> None:
        """Ends this enabling; others hold on. Nothing happens where it has ended already."""
        with _lock:
            if self in _enabled:
                _enabled.remove(self)
                _follow()

    def __enter__(self) -> Enabled:
        self._begin()
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self.disable()


def enable(precision: str | None = None) -> Enabled:
    """Makes torch's float32 CUDA products this package's, from now on, in code that knows nothing of it.

    Takes     `torch.mm`, `mv`, `addmm`, `bmm` and `baddbmm`, with `out=` and in place, and so all that comes down to
              them: `matmul` and `@`, `F.linear` and `nn.Linear`, `einsum`, attention where it is computed by products
              (`SDPBackend.MATH`), and the gradients of all these.
    Leaves    other dtypes, complex, sparse and nested tensors, other devices, wrong calls and their errors to torch;
              and what is no call of these: `dot`, `addmv`, cuDNN, fused attention.
    Computes  as `matmul` in that precision; None: what torch's own switch says at each call, "fp32" while it is unset.
    Compiled code   follows as well, forward and backward: what is enabled when it runs decides, not when it was
              compiled. Three things do not follow: kernels of Inductor's own (mode="max-autotune", C++ wrappers) in
              what was compiled before the first `enable`; products of a matrix and a vector, which Inductor makes sums
              of; CUDA graphs (mode="reduce-overhead" too), which replay what was captured.
    Scope     The whole process, all its threads, until the `with` block ends, or `disable()`, of the object or of the
              package, is called. Enablings nest: the last that has not ended decides the precision. Switch on and off
              while no other thread is multiplying.
    Returns   an object for `with`, or to be kept for its `disable()`, or dropped.
    Costs     a second, once, to load Inductor's configuration; of the host, some microseconds a product, those that are
              left to torch included.
    Raises    ValueError for an unknown precision.
    """
    check_precision("enable", precision)
    return Enabled(precision)


def disable() -> None:
    """Ends every enabling, however many there are: torch's products are torch's again."""
    with _lock:
        _enabled.clear()
        _follow()


def _follow() -> None:
    """Makes torch do what the last of `_enabled` says."""
    global _installed
    if _enabled and _installed is None:
        from . import inductor  # takes a second to load, and only now is it needed

        overrides = Overrides(KEY)
        try:
            _installed = overrides, inductor.Installed(KEY.lower())
        except BaseException:
            overrides.remove()
            raise
    if _installed is None:
        return
    overrides, graph_pass = _installed
    if _enabled:
        overrides.precision = _enabled[-1].precision
    else:
        overrides.remove()
        graph_pass.remove()
        _installed = None
