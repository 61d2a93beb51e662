"""A launch, made once, on other tensors: what a call costs the host.

To choose kernels, find their arguments and have Triton look up what it compiled takes hundreds of microseconds for a
chain of launches. For tensors that lie the same way all of that comes to the same, but for addresses and factors.
Triton also collects, for each launch, what hooks may want to know: that is left out while none is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from .launch import Launch


class Alpha(float):
    """The caller's alpha, told apart from other numbers among a launch's arguments."""


class Beta(float):
    """The caller's beta."""


@dataclass(frozen=True)
class _Step:
    """One kernel, and its arguments with what differs from call to call left open.

    start         takes the stream and the arguments
    clears        which memory is set to 0 before
    addresses     (argument, which memory, offset in bytes)
    descriptors   (argument, which memory): a TMA descriptor, of memory from its start
    alphas, betas arguments
    """

    start: Callable[..., None]
    args: list[Any]
    clears: tuple[int, ...]
    addresses: tuple[tuple[int, int, int], ...]
    descriptors: tuple[tuple[int, int], ...]
    alphas: tuple[int, ...]
    betas: tuple[int, ...]


class Recorded:
    """A launch and what comes before it, to be replayed on other tensors of the same strides and alignments.

    Memory is counted: the given tensors first, in their order, then the rooms that the launch has of its own, which
    each run allocates. Neither is kept here.
    """

    def __init__(self, launch: Launch, given: Sequence[Tensor | None], device: torch.device) -> None:
        """Runs the launch, as it is, and records it.

        No two of `given` are the same object, even where they are the same memory, and the launch has them as they
        are: its other tensors are taken for its own rooms.
        """
        self.device = device
        self._given = given
        self._rooms: dict[int, tuple[int, int]] = {}  # where one started: which it is, and its bytes
        self.steps = [self._step(each) for each in launch.all() if each.programs]
        self.rooms = tuple(size for _, size in self._rooms.values())
        del self._given, self._rooms

    def _step(self, launch: Launch) -> _Step:
        compiled = launch.start(self.device)
        options = [launch.options[name] for name in launch.kernel.arg_names[len(launch.args) :]]
        args: list[Any] = [*launch.args, *options]
        addresses, descriptors, alphas, betas = [], [], [], []
        for i, arg in enumerate(args):
            if isinstance(arg, Tensor):
                addresses.append((i, *self._place(arg)))
                args[i] = 0
            elif hasattr(arg, "base"):
                which, offset = self._place(arg.base)
                if offset:
                    raise RuntimeError(f"{launch.kernel.__name__}: a descriptor starts {offset} bytes into its memory")
                descriptors.append((i, which))
                args[i] = _based(arg, None)
            elif isinstance(arg, Alpha):
                alphas.append(i)
            elif isinstance(arg, Beta):
                betas.append(i)
        return _Step(
            starter(compiled, launch.programs),
            args,
            tuple(self._place(t)[0] for t in launch.clears),
            tuple(addresses),
            tuple(descriptors),
            tuple(alphas),
            tuple(betas),
        )

    def _place(self, t: Tensor) -> tuple[int, int]:
        """Which memory a tensor of the launch lies in, and how many bytes from its start."""
        for which, one in enumerate(self._given):
            if one is t:
                return which, 0
        storage = t.untyped_storage()
        start = storage.data_ptr()
        shared = [i for i, one in enumerate(self._given) if one is not None and _start(one) == start]
        holders = shared if start else []  # at 0 is what is empty, whosesoever
        if len(holders) > 1:
            raise RuntimeError(f"a launch has a view of memory that tensors {holders} share: of which one is unknown")
        if holders:
            return holders[0], t.data_ptr() - self._given[holders[0]].data_ptr()  # type: ignore[union-attr]
        which, _ = self._rooms.setdefault(start, (len(self._given) + len(self._rooms), storage.nbytes()))
        return which, t.data_ptr() - start

    def run(self, given: Sequence[Tensor | None], alpha: float, beta: float) -> None:
        """The same on other tensors, on the device's current stream."""
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                self._run(given, alpha, beta)
        else:
            self._run(given, alpha, beta)

    def _run(self, given: Sequence[Tensor | None], alpha: float, beta: float) -> None:
        memory = list(given)
        for size in self.rooms:
            memory.append(torch.empty(size, dtype=torch.int8, device=self.device))
        starts = [0 if t is None else t.data_ptr() for t in memory]
        stream = driver.active.get_current_stream(self.device.index) if self.device.type == "cuda" else 0
        for step in self.steps:
            for which in step.clears:
                memory[which].zero_()  # type: ignore[union-attr]
            args = step.args.copy()
            for i, which, offset in step.addresses:
                args[i] = starts[which] + offset
            for i, which in step.descriptors:
                args[i] = _based(args[i], memory[which])
            for i in step.alphas:
                args[i] = alpha
            for i in step.betas:
                args[i] = beta
            step.start(stream, *args)


def starter(compiled: Any, programs: int) -> Callable[..., None]:
    """What starts a compiled kernel on a stream: the call that Triton's own launcher makes, or that one for hooks."""
    launcher = compiled[(programs, 1, 1)]
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    hooks = knobs.runtime

    def start(stream: int, *args: Any) -> None:
        if _is_set(hooks.launch_enter_hook) or _is_set(hooks.launch_exit_hook):
            launcher(*args, stream=stream)
        else:
            run(programs, 1, 1, stream, function, metadata, None, None, None, *args)

    return start


def _is_set(hook: Any) -> bool:
    """Whether anything would be called: a chain of hooks may be empty."""
    return hook is not None and getattr(hook, "calls", None) != []


def _based(descriptor: Any, base: Tensor | None) -> Any:
    """The same descriptor of other memory: a plain copy, since what its constructor checks was checked."""
    copied = object.__new__(type(descriptor))
    copied.__dict__.update(descriptor.__dict__, base=base)
    return copied


def _start(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()
