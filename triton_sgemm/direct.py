"""Which calls go straight to the kernels: float32 CUDA tensors of which nobody takes notice."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _has_storage, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are tensors with memory of their own that no compiler, tracer, mode or transform watches."""
    if (
        is_compiling()
        or _is_tracing()
        or _len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or _are_functorch_transforms_active()
    ):
        return False
    for t in tensors:
        if t is not None and (
            type(t) not in (Tensor, Parameter)
            or t.layout != torch.strided
            or t.is_nested
            or is_functorch_wrapped_tensor(t)  # of a transform that has ended
            or not _has_storage(t)
            or t._is_zerotensor()
        ):
            return False
    return True


def on_one_gpu(a: Tensor, *others: Tensor | None) -> bool:
    """Whether plain tensors are float32 on the same GPU: `check_operands` would find nothing."""
    device = a.device
    for t in (a, *others):
        if t is not None and (t.dtype != torch.float32 or not t.is_cuda or t.device != device):
            return False
    return True


def differentiated(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is computed from these."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return not torch.is_inference_mode_enabled()
    return False
