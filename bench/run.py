"""From a case and variants to rows: verified and timed on a GPU, or cross-checked without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from triton_sgemm.device import Gpu
from triton_sgemm.errors import first_line
from triton_sgemm.plan import plan
from triton_sgemm.problem import Problem
from triton_sgemm.testing import Reference
from triton_sgemm.variants import Variant

from . import measure
from .catalog import BASELINES, MATMULS
from .environment import Environment
from .suites import Case
from .table import Row

CHECKED_BY = {
    "torch": "checked: torch on the CPU",
    "triton": "checked: Triton's interpreter",
    "cuda": "checked: executed on the CPU",
    "gluon": "compiled only: Gluon has no interpreter",
}
NO_TIME = "no time: no CUDA GPU"


def timed(
    case: Case,
    variants: list[Variant],
    card: Gpu,
    where: Environment,
    step: Callable[[], None],
    effort: measure.Effort = measure.FULL,
) -> list[Row]:
    """Verifies, then times `variants` on the GPU; a variant that is wrong, too slow or unfit gets a note, no time.

    `step` is called once for each variant verified and for each round of it timed.
    """
    x = measure.Operands.random(case, "cuda")
    expected = measure.expectation(x)
    figures: dict[str, dict[str, Any]] = {}
    for v in variants:
        figures[v.name] = _verified(v, x, case, expected)
        step()
    del expected

    right = [v for v in variants if not figures[v.name].get("note")]
    times = measure.time_all(right, x, case, card, step, effort)
    for v in variants:
        if v.name not in times:
            continue
        t, cublas = times[v.name], times.get(BASELINES[v.precision].name)
        gflops = 1e-6 * case.flops / t.ms
        figures[v.name] |= {
            "ms": t.ms,
            "ms_p20": t.p20,
            "ms_p80": t.p80,
            "ms_eager": t.eager,
            "gflops": gflops,
            "pct_cublas": 100 * cublas.ms / t.ms if cublas else None,
        }
        peak = card.fma_peak_gflops if v.precision == "ieee" else None
        if peak and gflops > peak:
            figures[v.name] |= {"note": f"wrong: above the {peak:,.0f} GFLOP/s that float32 units can do"}
    return [_row(v, case, x.problem, card, asdict(where) | figures[v.name]) for v in variants]


def _verified(v: Variant, x: measure.Operands, case: Case, expected: Reference) -> dict[str, Any]:
    reason = v.why_not(x.problem)
    if reason:
        return {"note": reason}
    try:
        ms = measure.predicted_ms(v, case)
        if ms > measure.TOO_SLOW_MS:
            return {"note": f"skipped: about {ms:,.0f} ms a call, over {measure.TOO_SLOW_MS:.0f}"}
        return _errors(v, x, case, expected)
    except Exception as e:  # one variant that cannot be built or launched leaves the others their rows
        return {"note": f"failed: {first_line(e)}"}


def crosschecked(case: Case, variants: list[Variant], where: Environment) -> list[Row]:
    """Checks `variants` on the CPU, which gives no times."""
    x = measure.Operands.random(case, "cpu")
    expected = measure.expectation(x)
    rows = []
    for v in variants:
        figures: dict[str, Any] = {}
        note = v.why_not(x.problem) or CHECKED_BY[v.backend]
        if note == CHECKED_BY[v.backend] and v.backend != "gluon":
            try:
                figures = _errors(v, x, case, expected)
            except Exception as e:
                figures = {"note": f"failed: {first_line(e)}"}
        figures["note"] = f"{figures.get('note', note)}; {NO_TIME}"
        rows.append(_row(v, case, x.problem, None, asdict(where) | figures))
    return rows


def failed(row: Row) -> bool:
    """Whether a row reports a wrong or failed variant, not merely one that was left out."""
    return row.note.startswith(("wrong", "failed"))


def _errors(v: Variant, x: measure.Operands, case: Case, expected: Reference) -> dict[str, Any]:
    e, wrong = measure.verify(v, x, expected, case.data)
    figures: dict[str, Any] = {"rel_err": e.relative, "max_err": e.largest} if e else {}
    if v.fallback:
        figures["fallback"] = v.fallback(x.problem, x.a, x.b, None, x.out)
    return figures | ({"note": wrong} if wrong else {})


def _row(v: Variant, case: Case, p: Problem, card: Gpu | None, figures: dict[str, Any]) -> Row:
    algorithm = plan(p, card, v.precision).name if v in MATMULS else v.name  # what the public call picks
    shape = (case.layout, case.batch, case.M, case.N, case.K)
    return Row(v.name, v.backend, algorithm, v.precision, *shape, data=case.data, **figures)
