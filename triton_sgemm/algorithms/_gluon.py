"""The names of Gluon that differ between Triton versions, in one place."""

from __future__ import annotations

from typing import Any
from warnings import warn

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

# 3.6 has the second name of each pair; later versions keep some of them, to raise
async_load: Any = getattr(async_copy, "async_load", None) or getattr(async_copy, "async_copy_global_to_shared", None)
tma_load: Any = getattr(tma, "async_load", None) or getattr(tma, "async_copy_global_to_shared", None)
barrier: Any = getattr(gl, "barrier", None) or getattr(gl, "thread_barrier", None)
commit_group = async_copy.commit_group
wait_group = async_copy.wait_group

available = async_load is not None and barrier is not None
if not available:
    warn("this Triton's Gluon is not known to triton_sgemm: strict float32 runs in plain Triton, slower", stacklevel=2)
