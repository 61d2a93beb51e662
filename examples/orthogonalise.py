"""The orthogonal factor of a matrix by Newton and Schulz's iteration: products alone, each fed into the next.

    python -m examples.orthogonalise [--n 4096] [--condition 1000] [--csv bench/results]

X <- 15/8 X - 10/8 (X X') X + 3/8 (X X')^2 X moves every singular value of X between 0 and 1 towards 1, cubically in the
end; started from A = U S V' it arrives at U V'. (Muon orthogonalises its updates like that, with coefficients that are
faster at first and never arrive.) What is left of X' X - I is the error of the arithmetic, which no further step mends.
Without a CUDA GPU every way is torch on the CPU, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.environment import environment
from triton_sgemm import sgemm
from triton_sgemm.precision import torch_matmul_precision

from .report import report

ITERATIONS = 16
RUNS = 5

Gemm = Callable[[float, Tensor, Tensor, float, Tensor], Tensor]  # alpha * A @ B + beta * C


def by_torch(alpha: float, a: Tensor, b: Tensor, beta: float, c: Tensor) -> Tensor:
    """cuBLAS, in the precision of torch's switch."""
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


# how a product is computed, and what torch's switch says meanwhile
WAYS: dict[str, tuple[Gemm, str]] = {
    "cuBLAS": (by_torch, "ieee"),
    "ieee": (partial(sgemm, precision="ieee"), "ieee"),
    "fp32": (partial(sgemm, precision="fp32"), "ieee"),
    "cuBLAS TF32": (by_torch, "tf32"),
    "tf32": (partial(sgemm, precision="tf32"), "tf32"),
}


@dataclass(frozen=True)
class Row:
    """X after an iteration: |X' X - I| and |X - U V'|, Frobenius, over |I|; at the last one, `ms` of all iterations."""

    way: str
    n: int
    condition: float
    iteration: int
    residual: float
    error: float
    ms: float | None = None


def step(x: Tensor, gemm: Gemm) -> Tensor:
    """X, its singular values moved towards 1."""
    s = gemm(1.0, x, x.mT, 0.0, x)  # beta is 0: x is not added
    p = gemm(3 / 8, s, s, -10 / 8, s)
    return gemm(1.0, p, x, 15 / 8, x)


def matrix(n: int, condition: float, device: str) -> tuple[Tensor, Tensor]:
    """A in float32, with singular values from 1 down to 1 / condition, and its orthogonal factor in float64."""
    u, v = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, device=device)).Q for _ in range(2))
    values = condition ** -torch.linspace(0, 1, n, dtype=torch.float64, device=device)
    return ((u * values) @ v.mT).float(), u @ v.mT


def followed(a: Tensor, factor: Tensor, gemm: Gemm) -> list[tuple[float, float]]:
    """Residual and error after each iteration, in float64."""
    eye = torch.eye(len(a), dtype=torch.float64, device=a.device)
    x, found = a, []
    for _ in range(ITERATIONS):
        x = step(x, gemm)
        exact = x.double()
        found.append(tuple((t.norm() / eye.norm()).item() for t in (exact.mT @ exact - eye, exact - factor)))
    return found


def timed(a: Tensor, gemm: Gemm) -> float:
    """Milliseconds of all iterations: the median of RUNS, by CUDA events."""
    samples = []
    for _ in range(RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x = a
        for _ in range(ITERATIONS):
            x = step(x, gemm)
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)


def measured(n: int, condition: float, device: str) -> list[Row]:
    """Every way from the same matrix."""
    a, factor = matrix(n, condition, device)
    rows = []
    for way, (gemm, switch) in WAYS.items():
        with torch_matmul_precision(switch):
            found = followed(a, factor, gemm)
            ms = timed(a, gemm) if device == "cuda" else None
        for i, (residual, error) in enumerate(found, 1):
            last = ms if i == ITERATIONS else None
            rows.append(Row(way, n, condition, i, residual, error, last))
    return rows


def main() -> None:
    """Measures and prints."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        prog="python -m examples.orthogonalise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--n", type=int, default=4096 if on_gpu else 64, help="rows and columns (default: %(default)s)")
    parser.add_argument(
        "--condition", type=float, default=1000.0, help="largest over smallest singular value (default: %(default)s)"
    )
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write <gpu>/example_orthogonalise.csv there")
    args = parser.parse_args()
    if args.n < 1:
        parser.error(f"--n is {args.n}; need 1 or more")
    if not args.condition >= 1:
        parser.error(f"--condition is {args.condition:g}; need 1 or more")
    print(environment().header(), end="\n\n")
    if not on_gpu:
        print("No CUDA GPU: every way is torch on the CPU; they show the iteration, and not how they differ.\n")
    torch.manual_seed(0)
    report("orthogonalise", measured(args.n, args.condition, "cuda" if on_gpu else "cpu"), args.csv)


if __name__ == "__main__":
    main()
