"""What ran last, for someone who asks which kernel a call took."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .execute import Execution


class LastPlan(NamedTuple):
    """What `last_plan` tells."""

    name: str
    why: str
    shape: tuple[int, ...]


class _Thread(threading.local):
    execution: Execution | None = None


thread = _Thread()  # a call leaves a reference in it and no more: what it says is put together when asked for


def last_plan() -> LastPlan | None:
    """Tells which algorithm computed this thread's last product, and why; None before the first.

    Returns   name (the algorithm and its tile, as the bench names them: `fma_128x256x8`), why the plan took it, and
              shape, (..., M, N, K) as it ran: batch dimensions are folded where the tensors' strides allow.
    Knows     products that a thread launched itself: autograd computes gradients of CUDA tensors in threads of its own,
              and the replay of a CUDA graph launches nothing. An empty result launches nothing either,
              and what torch computed (CPU tensors, other dtypes) is not told.
    """
    execution = thread.execution
    if execution is None:
        return None
    p = execution.p
    return LastPlan(execution.plan.name, execution.plan.why, (*p.batch, p.M, p.N, p.K))
