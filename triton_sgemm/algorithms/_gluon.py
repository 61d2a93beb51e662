"""The names of Gluon that differ between Triton versions, in one place."""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# 3.6 has the names to the right; later versions keep some of them, to raise
async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
commit_group = async_copy.commit_group
wait_group = async_copy.wait_group
