"""Launches one raw CUDA rung, for compute-sanitizer: python one_rung.py NAME [BARRIER to take out, from 0]."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_cuda import loader
from reference_cuda.rungs import RUNGS, Rung

BARRIER = "__syncthreads();"


class WithoutBarrier(Rung):
    """A rung whose source lacks one barrier."""

    taken_out = 0

    @property
    def source(self) -> str:
        before, *after = super().source.split(BARRIER)
        return before + "".join(("" if i == self.taken_out else BARRIER) + part for i, part in enumerate(after))


def main(name: str, barrier: str | None = None) -> None:
    rung = next(r for r in RUNGS if r.name == name)
    if barrier is not None:
        WithoutBarrier.taken_out = int(barrier)
        rung = WithoutBarrier(**vars(rung))
    a, b = torch.randn(96, 128, device="cuda"), torch.randn(128, 64, device="cuda")
    out = torch.zeros(96, 64, device="cuda")
    launch = loader._launchers((rung,), torch.cuda.get_device_capability())[name]
    stream = torch.cuda.current_stream().cuda_stream
    M, K, N = 96, 128, 64
    error = launch(
        *rung.grid(M, N), rung.threads, stream, M, N, K, 1.0, a.data_ptr(), b.data_ptr(), 0.0, out.data_ptr()
    )
    assert error is None, error
    torch.cuda.synchronize()
    print("largest difference", (out.double() - a.double() @ b.double()).abs().max().item())


if __name__ == "__main__":
    main(*sys.argv[1:])
