"""Products in graphs that Inductor compiles: left to torch's functions, which are called when the graph runs.

By default Inductor calls torch.mm and its kin with `out=`, through the dispatcher. With max_autotune it may choose a
Triton kernel of its own, and C++ wrappers call torch past the dispatcher. So, while `enable` holds, a pass over each
graph, forward and backward, hides float32 products behind an operator that calls torch again. Which kernels run is
then decided when they run, as in eager code, and no compiled graph or cache of graphs depends on what was enabled.

From torch 2.13 on Inductor's configuration is each thread's own: there the pass is that of the thread that enabled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.virtualized import V
from torch.fx import Graph

NAME = "triton_sgemm::torch_product"
aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)

torch.library.define(
    NAME,
    "(Tensor? c, Tensor a, Tensor b, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)


def _call_torch(c: Tensor | None, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if c is None:
        return torch.mm(a, b) if a.ndim == 2 else torch.bmm(a, b)
    return (torch.addmm if a.ndim == 2 else torch.baddbmm)(c, a, b, beta=beta, alpha=alpha)


def _fake(c: Tensor | None, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


torch.library.impl(NAME, "CompositeExplicitAutograd", _call_torch)
torch.library.register_fake(NAME, _fake)


@dataclass(frozen=True)
class LeaveToTorch(CustomGraphPass):
    """Hides float32 products on a device from Inductor; does what the pass `before` does first."""

    device: str
    before: Any = None

    def __call__(self, graph: Graph) -> None:
        """Changes a graph in place."""
        if self.before is not None:
            self.before(graph)
        if V.aot_compilation:  # what is packaged runs where this package may not be
            return
        for target in PRODUCTS:
            for node in graph.find_nodes(op="call_function", target=target):
                result = node.meta["val"]
                if result.device.type == self.device and result.dtype == torch.float32:
                    *c, a, b = node.args
                    node.target = torch.ops.triton_sgemm.torch_product.default
                    node.args = (*(c or [None]), a, b)

    def uuid(self) -> Any:
        """What Inductor's caches tell it by; None: graphs are not cached, since `before` does not tell."""
        own = get_hash_for_files((__file__,)), self.device
        if self.before is None:
            return own
        before = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return (*own, before) if before else None


class Installed:
    """The pass, in Inductor's configuration until `remove`; a pass that is there already stays."""

    def __init__(self, device: str) -> None:
        """Puts it there."""
        self._before = before = config.post_grad_custom_pre_pass
        takes_many = getattr(custom_graph_pass, "get_custom_graph_passes", None)  # torch 2.13
        self._now: Any
        if takes_many is None:
            self._now = LeaveToTorch(device, before)
        else:
            others = (each for each in takes_many(before) if not isinstance(each, LeaveToTorch))  # of another thread
            self._now = (*others, LeaveToTorch(device))
        config.post_grad_custom_pre_pass = self._now

    def remove(self) -> None:
        """Puts back what was there, unless someone else has put something else there since."""
        if config.post_grad_custom_pre_pass is self._now:
            config.post_grad_custom_pre_pass = self._before
