"""The doctor: what this machine is, what computes a product on it, whether that is right, and how fast it is.

The exit status is 0 where all is well, 1 where a check failed, 2 for wrong options.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import triton

from . import __version__, matmul, selfcheck
from .device import driver_version, gpu
from .plan import MEASURED, plan
from .precision import PRECISIONS, switches_set, torch_matmul_precision
from .problem import problem

CHECKS_S = 60.0
SHOWN = ((512, 512, 512), (1000, 1001, 999), (4096, 4096, 4096), (1, 4096, 4096), (64, 64, 20_000), (64, 256, 256, 256))
SIZES = (512, 2048, 4096, 8192)
SAMPLES = 7
SAMPLE_MS = 5.0
TOO_SLOW_MS = 100.0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m triton_sgemm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no table of speeds")
    parser.add_argument("--device", type=int, metavar="N", help="which CUDA device (default: the current one)")
    args = parser.parse_args(argv)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if args.device is not None and not 0 <= args.device < count:
        parser.error(f"there is no CUDA device {args.device}; " + (f"0 to {count - 1} are" if count else "none is"))
    return args


def main(argv: list[str] | None = None) -> int:
    """Prints the report."""
    args = arguments(argv)
    versions = f"triton_sgemm {__version__}, torch {torch.__version__}, Triton {triton.__version__}, "
    print(f"{versions}Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    if switches_set():
        print(f"set in the environment, and able to change results: {', '.join(switches_set())}")
    if not torch.cuda.is_available():
        print(without_gpu())
        return checked(torch.device("cpu"))

    index = torch.cuda.current_device() if args.device is None else args.device
    device = torch.device("cuda", index)
    card = gpu(index)
    print(
        f"cuda:{index}: {card.name}, compute capability {card.capability / 10}, {card.sms} SMs, "
        f"driver {driver_version() or 'unknown'}, CUDA {torch.version.cuda}"
    )
    with torch.cuda.device(device):
        print(plans(device))
        status = checked(device)
        if not args.quick and not status:  # what is wrong has no speed
            print(speeds(device))
    return status


def without_gpu() -> str:
    """What can be had here."""
    driver = driver_version()
    why = "No CUDA GPU was found" + (
        f", though there is a driver, {driver}: this torch is built for CUDA {torch.version.cuda}, "
        "and CUDA_VISIBLE_DEVICES may hide a GPU"
        if driver
        else ""
    )
    return (
        f"\n{why}. Without one\n"
        "  - the package imports, and CPU tensors are multiplied by torch.matmul, gradients included;\n"
        "  - TRITON_INTERPRET=1 runs its Triton kernels in Triton's interpreter, slowly, to test them\n"
        "    (Triton 3.6 needs a numpy older than 2.4 for that);\n"
        "  - they compile for GPUs that are not here (in a checkout: make compile)."
    )


def plans(device: torch.device) -> str:
    """Which algorithm serves which product, and why."""
    card = gpu(device.index)
    lines = ["", "What computes a product here"]
    if card.name not in MEASURED:
        lines.append(
            f'  ("fp32" and "tf32" are done as "ieee": tensor cores were measured on {", ".join(MEASURED)} only)'
        )
    for *batch, M, N, K in SHOWN:
        shape = " x ".join(map(str, (*batch, M, N, K)))
        a, b, out = (torch.empty(*batch, *size, device="meta") for size in ((M, K), (K, N), (M, N)))
        for precision in PRECISIONS:
            chosen = plan(problem(a, b, None, out, 1.0, 0.0), card, precision)
            lines.append(f"  {shape:24}{precision:6}{chosen.name:22}{chosen.why}")
            shape = ""
    return "\n".join(lines)


def checked(device: torch.device) -> int:
    """Runs the self-check and prints what came of it; 1 where something is wrong."""
    print(f"\nSelf-check, {CHECKS_S:.0f} seconds at most (the first one compiles kernels)", flush=True)
    done, left = selfcheck.run(selfcheck.checks(device), CHECKS_S)
    failures = [(check, wrong) for check, wrong in done if wrong]
    failed = Counter(check.group for check, _ in failures)
    for group, count in Counter(check.group for check, _ in done).items():
        verdict = f"FAILED ({failed[group]} of {count})" if failed[group] else f"ok ({count})"
        print(f"  {verdict:18}{group}")
    if left:
        print(f"  not done          {len(left)} more, for want of time; run it again, now that kernels are compiled")
    for check, wrong in failures:
        print(f"\nFAILED {check.name}\n  expected  {wrong.expected}\n  came      {wrong.came}")
    if failures:
        print(
            "\nWhat to do: unset the environment variables named above, if there are any; delete Triton's compiled "
            f"kernels ({triton.knobs.cache.dir}); see\nthat no other program uses up the GPU's memory; run it again. "
            "If it still fails, please open an issue with all that was\nprinted here. Until then use torch.matmul, or "
            "a precision without a failure."
        )
        return 1
    print("  What was checked is well." if left else "  All is well.")
    return 0


def speeds(device: torch.device) -> str:
    """This package beside cuBLAS, each precision beside cuBLAS in it."""
    lines = [
        "",
        "Milliseconds a product, M = N = K, and percent of cuBLAS's speed in the same precision.",
        f"Medians of {SAMPLES} samples in turn, by CUDA events, after warm-up: each {SAMPLE_MS:.0f} ms of calls on",
        "one pair of operands, so that the L2 is warm and, of small products, the host's work is in it.",
        "python -m bench measures with a cold L2.",
        f"  {'':6}{'cuBLAS':>10}{'ieee':>10}{'':>8}{'fp32':>10}{'':>8}{'cuBLAS TF32':>14}{'tf32':>10}",
    ]
    measured, slowest = SIZES[0], 0.0
    for n in SIZES:
        predicted = slowest * (n / measured) ** 3
        if predicted > TOO_SLOW_MS:
            lines.append(f"  {n:<6}left out: a call would take about {predicted:,.0f} ms")
            continue
        try:
            strict, ieee, fp32, loose, tf32 = timed(n, device)
        except torch.OutOfMemoryError:
            lines.append(f"  {n:<6}left out: the GPU has too little free memory")
            break
        measured, slowest = n, max(strict, ieee, fp32)
        cells = f"{strict:10.4g}{ieee:10.4g}{strict / ieee:8.0%}{fp32:10.4g}{strict / fp32:8.0%}"
        lines.append(f"  {n:<6}{cells}{loose:14.4g}{tf32:10.4g}{loose / tf32:8.0%}")
    return "\n".join(lines)


def timed(n: int, device: torch.device) -> list[float]:
    """Milliseconds a call: cuBLAS with TF32 off, "ieee", "fp32", cuBLAS with TF32 on, "tf32"."""
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    out = torch.empty(n, n, device=device)
    cublas = partial(torch.mm, a, b, out=out)
    ieee, fp32, tf32 = (partial(matmul, a, b, out=out, precision=precision) for precision in PRECISIONS)
    ways = ((cublas, "ieee"), (ieee, "ieee"), (fp32, "ieee"), (cublas, "tf32"), (tf32, "tf32"))
    calls = []
    for call, switch in ways:
        with torch_matmul_precision(switch):
            sample(call, 2)
            calls.append(min(200, max(1, int(SAMPLE_MS / sample(call, 3)))))
    samples: list[list[float]] = [[] for _ in ways]
    for _ in range(SAMPLES):
        for (call, switch), count, kept in zip(ways, calls, samples, strict=True):
            with torch_matmul_precision(switch):
                kept.append(sample(call, count))
    return [statistics.median(kept) for kept in samples]


def sample(call: Callable[[], object], count: int) -> float:
    """Milliseconds a call of `count`, one after the other."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


if __name__ == "__main__":
    sys.exit(main())
