"""The chapter in Triton: one rung a file, each the twin of a kernel in `reference_cuda/`.

A rung is any module of this folder; it exports its `VARIANT`. Nothing else has to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..variants import Variant


def rungs() -> list[Variant]:
    """Every rung's variant, from the lowest up."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return sorted((m.VARIANT for m in modules), key=lambda v: (v.rung, v.name))
