"""What follows from a variant's tile alone, before anything is compiled or run: the chapter's arithmetic.

Nothing is declared for this. A raw CUDA rung has its line of `RUNGS` and the parameters of its template, a Triton or
Gluon variant the options of its launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from reference_cuda.rungs import Rung
from triton_sgemm.device import Arch, Card
from triton_sgemm.variants import Variant

from .catalog import rung_of
from .compiled import call
from .occupancy import WARP, Occupancy, occupancy

SECTOR = 32  # bytes: what global memory delivers at least


@dataclass(frozen=True)
class Tiling:
    """How a variant shares out the work.

    block     rows and columns of C that a block computes, and the K of one step
    stages    tiles of A and of B that a block keeps in shared memory; 0: each thread reads global memory for itself
    threads   of a block; None where warps have different parts
    thread    rows and columns of C that a thread computes; None where tensor cores do
    free      whether how a thread's outputs lie is the compiler's to choose: `thread` is then the best there is
    lanes     how the lanes of a warp stand in the tile of C; None where that is the compiler's to choose
    vector    elements that one shared load takes, as written
    size      bytes of an element of A or B
    """

    block: tuple[int, int, int]
    stages: int
    threads: int | None
    thread: tuple[int, int] | None = None
    free: bool = False
    lanes: tuple[int, int] | None = None
    vector: int = 1
    size: int = 4

    @property
    def rim(self) -> float:
        """Global loads an output and k: an element of A serves as many outputs as the block, or thread, has columns."""
        rows, columns = self.block[:2] if self.stages else self.thread or (1, 1)
        return 1 / rows + 1 / columns

    def loads(self, K: int) -> float:
        """Global loads an output."""
        return K * self.rim

    def block_loads(self, K: int) -> float:
        """Global loads of a block."""
        return self.loads(K) * self.block[0] * self.block[1]

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity, were every global load to come from memory."""
        return 2 / (self.size * self.rim)

    @property
    def fma_per_load(self) -> float | None:
        """FMAs for each element that a thread reads from shared memory; None where there are no such loads."""
        if not (self.stages and self.thread):
            return None
        rows, columns = self.thread
        return rows * columns / (rows + columns)

    def shared_loads(self, K: int) -> float | None:
        """Elements read from shared memory for an output."""
        return K / self.fma_per_load if self.fma_per_load else None

    @property
    def shared_bytes(self) -> int:
        """Of the tiles."""
        rows, columns, depth = self.block
        return self.stages * (rows + columns) * depth * self.size

    @property
    def wants(self) -> tuple[int, int, str] | None:
        """What the lanes of a warp read of A and of B at each k: elements of shared memory or sectors of global."""
        if not (self.lanes and self.thread):
            return None
        rows, columns = (lanes * each for lanes, each in zip(self.lanes, self.thread, strict=True))
        if self.stages:
            return rows, columns, "elements"
        return rows, -(-columns * self.size // SECTOR), "sectors"  # A's rows are far apart, B's columns adjacent

    def occupancy(self, arch: Arch) -> Occupancy | None:
        """What an SM holds at most: registers may allow less."""
        return occupancy(arch, self.threads, self.shared_bytes) if self.threads else None

    def short_of(self, card: Card, arch: Arch) -> dict[str, float]:
        """How many times too little each level of memory serves to keep the FMA units busy; 1 or less: it does."""
        short = {"global loads": card.ridge / self.flop_per_byte} if self.thread else {}
        return short | ({"shared loads": arch.balance / self.fma_per_load} if self.fma_per_load else {})


def tiling(variant: Variant) -> Tiling | None:
    """How `variant` shares out the work; None where it runs other variants' kernels or cuBLAS."""
    if rung := rung_of(variant):
        return _of_rung(rung)
    if variant.launch:
        for each in variant.launch(*call()).all():
            if each.options.keys() & {"BLOCKSIZE", "BLOCK_M"}:
                return _of_options(each.options, variant.precision == "ieee")
    return None


def _of_rung(rung: Rung) -> Tiling:
    p = rung.parameters
    staged = "__shared__" in rung.source
    return Tiling(
        block=(*rung.tile, p.get("BK", p.get("BLOCKSIZE", 1)) if staged else 1),
        stages=p.get("STAGES", 1) if staged else 0,
        threads=rung.threads,
        thread=(p.get("TM", 1), p.get("TN", 1)),
        lanes=rung.lanes,
        vector=rung.align // 4,
    )


def _of_options(o: Mapping[str, Any], on_fma_units: bool) -> Tiling:
    square = o.get("BLOCKSIZE", 1)
    rows, columns, depth = (o.get(name, square) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    # Gluon names its tiles; of Triton's stages one is no tile but the step that is multiplied
    stages = o.get("STAGES", max(o["num_stages"] - 1, 1) if "num_stages" in o else int("SHARED_A" in o))
    block = (rows, columns, depth if stages else 1)
    if not on_fma_units:
        return Tiling(block, stages, None, size=2 if o.get("TERMS") == 1 else 4)  # halves: two planes or one
    threads = WARP * o["num_warps"]
    layout = o.get("LAYOUT")
    if layout:
        warp, warps = layout.threads_per_warp, layout.warps_per_cta
        thread = (rows // (warp[0] * warps[0]), columns // (warp[1] * warps[1]))
        vector = 4 if "SHARED_A" in o and o["SHARED_A"].order == [0, 1] else 1
        return Tiling(block, stages, threads, thread, lanes=(warp[0], warp[1]), vector=vector)
    if "TM" in o:
        return Tiling(block, stages, threads, (o["TM"], o["TN"]), vector=4)
    outputs = rows * columns // threads
    least = 1 << (isqrt(outputs).bit_length() - 1)
    return Tiling(block, stages, threads, (least, outputs // least), free=outputs > 1)
