"""NVIDIA's kernel profiler, ncu: what is asked of it, and its answer read.

The kernels of one call are one answer: their times and bytes are added; the rest is that of the kernel that takes
longest.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from torch.utils.cpp_extension import CUDA_HOME

TIMEOUT_S = 300  # a call is repeated once for each few metrics

TIME = "gpu__time_duration.sum"  # ns
SUMS = {"dram_bytes": "dram__bytes.sum", "l2_bytes": "lts__t_bytes.sum"}
OF_THE_LONGEST = {
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "tensor_pct": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
# why a warp did not issue; "selected", which did, is none of them
STALLS = {
    f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio": reason
    for reason in (
        "long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "barrier", "math_pipe_throttle", "wait",
        "not_selected", "no_instruction", "dispatch_stall", "drain", "membar", "sleeping", "tex_throttle", "imc_miss",
        "branch_resolving", "gmma",
    )
}  # fmt: skip
METRICS = (TIME, *SUMS.values(), *OF_THE_LONGEST.values(), *STALLS)

Kernels = list[dict[str, float]]  # of each kernel, in the order of their launches, the metrics that there are


class Failed(RuntimeError):
    """No kernel was profiled; the message says why."""


def find() -> str | None:
    """The path of ncu, None where there is none."""
    beside_nvcc = Path(CUDA_HOME or "/usr/local/cuda", "bin", "ncu")
    return shutil.which("ncu") or (str(beside_nvcc) if beside_nvcc.exists() else None)


def command(ncu: str, metrics: Iterable[str], log: Path, program: list[str]) -> list[str]:
    """How ncu is called: it counts what `program` marks, at the clocks of every day, in units of one."""
    return [
        ncu, "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "application-only",
        "--metrics", ",".join(metrics), "--csv", "--print-units", "base", "--log-file", str(log), *program,
    ]  # fmt: skip


def profile(ncu: str, program: list[str], unknown: set[str]) -> Kernels:
    """Runs the program under ncu; adds the metrics that it does not know to `unknown` and does without them."""
    while True:
        metrics = [m for m in METRICS if m not in unknown]
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log.csv")
            try:
                done = subprocess.run(
                    command(ncu, metrics, log, program), capture_output=True, text=True, timeout=TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                raise Failed(f"failed: no answer in {TIMEOUT_S} s") from None
            answer = log.read_text() if log.exists() else ""
        if kernels := parsed(answer):
            return kernels
        said = f"{done.stdout}\n{answer}\n{done.stderr}"
        refused = refused_metrics(said, metrics)
        if not refused:
            raise Failed(why(said))
        unknown |= refused


def refused_metrics(said: str, metrics: Iterable[str]) -> set[str]:
    """Those of `metrics` that ncu says it failed to find; it writes them as regular expressions."""
    lines = re.findall(r"==ERROR==.*[Ff]ailed to find metric.*", said.replace("\\", ""))
    return {m for m in metrics if any(re.search(rf"\b{m.split('.')[0]}\b", line) for line in lines)}


def why(said: str) -> str:
    """The reason in what the program and ncu said: the program's own verdict, else the first error, else the end."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("skipped: ", "wrong: ")):
            return line
    errors = [line for line in lines if line.startswith("==ERROR==") and "error code" not in line]
    own = [line for line in lines if not line.startswith("==")]
    return f"failed: {(errors or own[-1:] or ['ncu profiled no kernel'])[0].removeprefix('==ERROR== ')}"


def parsed(answer: str) -> Kernels:
    """What ncu wrote with --csv: lines of its own, then a table with a row for each metric of each kernel."""
    lines = answer.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(line for line in lines[start:] if not line.startswith("==")):
        value = (row["Metric Value"] or "").replace(",", "")
        known = kernels.setdefault(row["ID"], {})
        if re.fullmatch(r"[-+.\deE]+", value):  # else "n/a" or "(!) nan"
            known[row["Metric Name"]] = float(value)
    return list(kernels.values())


def figures(kernels: Kernels) -> dict[str, float | str | None]:
    """The figures of one call, None for those that ncu did not give."""
    longest = max(kernels, key=lambda k: k.get(TIME, 0.0))
    found: dict[str, float | str | None] = {"ms": _total(kernels, TIME, 1e-6)}
    found |= {name: _total(kernels, metric) for name, metric in SUMS.items()}
    found |= {name: longest.get(metric) for name, metric in OF_THE_LONGEST.items()}
    stalls = sorted(((longest.get(metric, 0.0), reason) for metric, reason in STALLS.items()), reverse=True)
    total = sum(ratio for ratio, _ in stalls)
    for i, (ratio, reason) in enumerate(stalls[:3], 1):
        if ratio:
            found |= {f"stall_{i}": reason, f"stall_{i}_pct": 100 * ratio / total}
    return found


def _total(kernels: Kernels, metric: str, scale: float = 1.0) -> float | None:
    values = [k[metric] for k in kernels if metric in k]
    return scale * sum(values) if len(values) == len(kernels) else None
