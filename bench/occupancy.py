"""How many blocks an SM holds at a time, and what keeps it from holding one more."""

from __future__ import annotations

from dataclasses import dataclass

from triton_sgemm.device import REGISTERS, Arch

WARP = 32
PARTITIONS = 4  # an SM's quarters: each has its own scheduler and a fourth of the registers
REGISTER_UNIT = 256  # registers are given to a warp in these steps
SHARED_UNIT = 128  # and shared memory to a block in these,
SHARED_RESERVED = 1024  # beside what CUDA takes of it for itself


@dataclass(frozen=True)
class Occupancy:
    """What an SM holds of a kernel. `limits` has the blocks that each resource would allow, by its name."""

    threads: int  # of a block
    sm_threads: int  # that an SM holds
    limits: dict[str, int]

    @property
    def blocks(self) -> int:
        """Blocks an SM holds at a time."""
        return min(self.limits.values())

    @property
    def share(self) -> float:
        """Of the SM's threads, those that are used."""
        return self.blocks * self.threads / self.sm_threads

    @property
    def unused(self) -> int:
        """Threads that the SM could hold beside them."""
        return self.sm_threads - self.blocks * self.threads

    @property
    def bound_by(self) -> str:
        """What one more block would need; several where they run out together."""
        return ", ".join(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(arch: Arch, threads: int, shared_bytes: int, registers: int | None = None) -> Occupancy:
    """Of a kernel by its block's threads and shared memory and, where they are known, its thread's registers.

    Source: cuda_occupancy.h of the CUDA toolkit.
    """
    warps = _up(threads, WARP) // WARP
    limits = {"threads": arch.sm_threads // (warps * WARP), "blocks": arch.sm_blocks}
    if registers:
        # a warp stays in its partition, so that only whole warps of a partition's registers count
        a_partition = REGISTERS // PARTITIONS // _up(registers * WARP, REGISTER_UNIT)
        limits["registers"] = a_partition * PARTITIONS // warps
    if shared_bytes:
        limits["shared memory"] = arch.sm_smem_bytes // _up(shared_bytes + SHARED_RESERVED, SHARED_UNIT)
    return Occupancy(threads, arch.sm_threads, limits)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
