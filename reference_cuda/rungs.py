"""The raw CUDA rungs: one `.cu` file and one line of `RUNGS` each."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent

_HOME = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
CACHE = Path(_HOME if os.path.isabs(_HOME) else tempfile.gettempdir()) / "triton_sgemm"  # for all that is built


@dataclass(frozen=True)
class Rung:
    """A kernel of this folder and the launch that it expects.

    `kernel` is the C++ expression that is launched. The grid is one block a tile of C,
    `blockIdx.x` walking the tiles along M and `blockIdx.y` those along N. M, N and K are multiples of
    `multiple_of`, and the matrices start at multiples of `align` bytes: 16 where a load takes a float4.
    A kernel that `reads_c_always` reads C even when beta is 0: then C is cleared before, since 0 * NaN is NaN.
    `lanes` is how the lanes of a warp stand in the tile of C, rows x columns.
    """

    name: str
    number: int
    kernel: str
    tile: tuple[int, int]
    threads: int
    multiple_of: int = 1
    align: int = 4
    reads_c_always: bool = True
    lanes: tuple[int, int] = (1, 32)

    @property
    def source(self) -> str:
        """The text of the rung's `.cu` file."""
        return (HERE / f"{self.name}.cu").read_text()

    @property
    def doc(self) -> str:
        """The comment that opens the `.cu` file, without its slashes."""
        lines = self.source.splitlines()
        head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))]
        return "\n".join(line.removeprefix("//").removeprefix(" ") for line in head)

    @property
    def parameters(self) -> dict[str, int]:
        """The template's parameters by name: {"BM": 64, "BN": 64, "BK": 8, "TM": 8}."""
        names = re.findall(r"const int (\w+)", self.source.partition("__global__")[0].rpartition("template")[2])
        return dict(zip(names, map(int, re.findall(r"\b\d+", self.kernel.partition("<")[2])), strict=True))

    def grid(self, M: int, N: int) -> tuple[int, int]:
        """Blocks along x (rows of tiles) and y (columns of tiles) for an M x N output."""
        return -(-M // self.tile[0]), -(-N // self.tile[1])

    def check(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Raises TypeError or ValueError unless the kernel may be launched as `out = a @ b`.

        Nothing in a kernel checks its arguments: it gets three pointers and three `int` sizes.
        """
        tensors = {"a": a, "b": b, "out": out}
        for label, t in tensors.items():
            what, shape = f"{self.name}: {label}", tuple(t.shape)
            if t.dtype != torch.float32:
                raise TypeError(f"{what} is {t.dtype}; need torch.float32")
            if t.device != a.device:
                raise ValueError(f"{what} is on {t.device} but a is on {a.device}; need one device")
            if t.ndim != 2:
                raise ValueError(f"{what} is {shape}; need a matrix, one product a call")
            if not t.is_contiguous():
                raise ValueError(f"{what} is {shape} with strides {t.stride()}; call .contiguous()")
            if t.is_neg():
                raise ValueError(f"{what} is a negated view; call .resolve_neg()")
            if t.numel() > 2**31 - 1:
                raise ValueError(f"{what} is {shape}, {t.numel()} elements; int reaches 2**31 - 1: cut it")
            if past := t.data_ptr() % self.align:
                raise ValueError(f"{what} starts {past} bytes past a multiple of {self.align}; call .clone()")

        (M, K), (inner, N) = a.shape, b.shape
        shapes = f"{self.name}: a is {(M, K)} but b is {(inner, N)}"
        if inner != K:
            raise ValueError(f"{shapes}: inner sizes {K} and {inner} differ; need a (M, K) and b (K, N)")
        if out.shape != (M, N):
            raise ValueError(f"{self.name}: out is {tuple(out.shape)}; need {(M, N)}, the shape of a @ b")
        odd = [f"{name}={size}" for name, size in {"M": M, "N": N, "K": K}.items() if size % self.multiple_of]
        if odd:
            raise ValueError(
                f"{self.name}: M, N and K must be multiples of {self.multiple_of}; got {', '.join(odd)}: "
                "pad with zeros, or take a rung that checks its bounds"
            )
        if self.grid(M, N)[1] > 65535:
            raise ValueError(
                f"{self.name}: N={N} is {self.grid(M, N)[1]} tiles of {self.tile[1]} columns; "
                "the y of a grid reaches 65535: cut b and out into panels"
            )
        for label, t in {"a": a, "b": b}.items():
            if t.data_ptr() < out.data_ptr() + out.nbytes and out.data_ptr() < t.data_ptr() + t.nbytes:
                raise ValueError(f"{self.name}: out shares memory with {label}; pass a fresh out")


RUNGS = (
    Rung("naive", 1, "sgemm_naive<32>", tile=(32, 32), threads=1024, lanes=(32, 1)),
    Rung("coalesced", 2, "sgemm_coalesced<32>", tile=(32, 32), threads=1024),
    Rung("smem_tiling", 3, "sgemm_smem_tiling<32>", tile=(32, 32), threads=1024, multiple_of=32),
    Rung("thread_tile_1d", 4, "sgemm_thread_tile_1d<64, 64, 8, 8>", tile=(64, 64), threads=512, multiple_of=64),
    Rung(
        "thread_tile_2d",
        5,
        "sgemm_thread_tile_2d<128, 128, 8, 8, 8>",
        tile=(128, 128),
        threads=256,
        multiple_of=128,
        lanes=(2, 16),
    ),
    Rung(
        "vector_loads",
        6,
        "sgemm_vector_loads<128, 128, 8, 8, 8>",
        tile=(128, 128),
        threads=256,
        multiple_of=128,
        align=16,
        lanes=(2, 16),
    ),
    Rung(
        "warp_tile",
        7,
        "sgemm_warp_tile<128, 128, 8, 8, 8>",
        tile=(128, 128),
        threads=256,
        multiple_of=128,
        align=16,
        lanes=(4, 8),
    ),
    Rung(
        "async_ring",
        8,
        "sgemm_async_ring<128, 256, 8, 16, 8, 2>",
        tile=(128, 256),
        threads=256,
        multiple_of=256,
        align=16,
        reads_c_always=False,
        lanes=(4, 8),
    ),
)
