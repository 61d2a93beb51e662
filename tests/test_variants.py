"""Every variant of the catalog: right on its grid, compiled as promised, and registered properly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import triton

from bench import peers
from bench.catalog import VARIANTS, run_cuda, select, twins
from bench.compiled import read_all
from bench.measure import bound
from reference_cuda import rungs as rungs_module
from reference_cuda.loader import source
from reference_cuda.rungs import RUNGS, Rung
from triton_sgemm.device import ARCHS
from triton_sgemm.ladder import rungs
from triton_sgemm.problem import problem
from triton_sgemm.testing import errors, guarded, random_bound, reference
from triton_sgemm.variants import Variant, unique

SHAPES = [(32, 32, 32), (64, 96, 160)]
ODD = [(1, 1, 1), (33, 65, 17), (70, 35, 129)]  # for those that check their bounds


def cases() -> list:
    return [
        pytest.param(v, shape, id=f"{v.name}-{'x'.join(map(str, shape))}")
        for v in VARIANTS.values()
        for shape in (
            SHAPES + ODD if v.multiple_of == 1 else [(v.multiple_of,) * 3, tuple(v.multiple_of * n for n in (2, 3, 5))]
        )
    ]


@pytest.mark.parametrize(("variant", "shape"), cases())
def test_against_float64(variant: Variant, shape: tuple[int, int, int], device: str) -> None:
    if device == "cpu" and variant.backend == "gluon":
        pytest.skip("Gluon has no interpreter: this kernel is compiled here, and runs in the GPU tests")
    M, N, K = shape
    a, b, c = (torch.randn(s, device=device) for s in ((M, K), (K, N), (M, N)))
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        out, whole = guarded((M, N), device)
        source = c if beta else None
        variant.run(problem(a, b, source, out, alpha, beta), a, b, source, out)
        assert errors(out, reference(a, b, alpha, beta, c)).within(bound(variant.precision, K))
        assert whole()
        again = torch.full_like(out, float("nan"))
        variant.run(problem(a, b, source, again, alpha, beta), a, b, source, again)
        assert torch.equal(again, out)


ANY_STRIDE = [v for v in VARIANTS.values() if v.launch and not v.row_major]


@pytest.mark.parametrize("variant", ANY_STRIDE, ids=lambda v: v.name)
def test_any_stride(variant: Variant, device: str) -> None:
    if device == "cpu" and variant.backend == "gluon":
        pytest.skip("Gluon has no interpreter: this kernel is compiled here, and runs in the GPU tests")
    a, b = torch.randn(50, 40, device=device).mT, torch.randn(50, 99, device=device)[:, 1:90:3]
    out = torch.full((30, 40), float("nan"), device=device).mT
    variant.run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
    assert errors(out, reference(a, b)).within(bound(variant.precision, 50))


@pytest.mark.parametrize("variant", [v for v in VARIANTS.values() if v.batched], ids=lambda v: v.name)
def test_batches(variant: Variant, device: str) -> None:
    if device == "cpu" and variant.backend == "gluon":
        pytest.skip("Gluon has no interpreter: this kernel is compiled here, and runs in the GPU tests")
    a, b = torch.randn(3, 33, 40, device=device), torch.randn(3, 17, 40, device=device).mT
    c = torch.randn(3, 33, 17, device=device)
    for alpha, beta in ((1.0, 0.0), (2.0, 0.0), (-0.5, 2.0)):
        out, added = torch.full((3, 33, 17), float("nan"), device=device), c if beta else None
        variant.run(problem(a, b, added, out, alpha, beta), a, b, added, out)
        assert errors(out, reference(a, b, alpha, beta, c)).within(bound(variant.precision, 40))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [v for v in VARIANTS.values() if v.precision == "ieee"], ids=lambda v: v.name)
def test_strict_variants_give_the_naive_kernels_bits(variant: Variant) -> None:
    if variant.name in ("cublas", "matmul_ieee"):
        pytest.skip("it may cut K; tests/test_algorithms.py has matmul where it does not")
    a, b = torch.randn(256, 512, device="cuda"), torch.randn(512, 768, device="cuda")
    results = []
    for v in (VARIANTS["naive_cuda"], variant):
        out = torch.full((256, 768), float("nan"), device="cuda")
        v.run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
        results.append(out)
    assert torch.equal(*results)


# the Triton that the GPU has; 3.9 keeps three values of the loop of fp16x3_128x128x64 in memory, and more around it
MEASURED_WITH = triton.__version__.startswith("3.6.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", metafunc.config.getoption("--arch") or sorted(ARCHS))


@pytest.mark.slow
def test_compiled_code(arch: int) -> None:
    found = read_all([arch])
    assert not [c for c in found if c.note.startswith("failed")]
    compiled = [c for c in found if not c.note]
    assert {c.variant for c in compiled} >= {v.name for v in VARIANTS.values() if v.launch and arch in v.archs}
    for c in compiled:
        what = f"{c.variant} for sm_{arch}"
        assert c.shared_bytes <= ARCHS[arch].smem_bytes, what
        if VARIANTS[c.variant] in peers.VARIANTS:  # Triton's own code, as it is
            assert c.registers > 32, what
            assert arch != 90 or (c.opcodes["HGMMA"] and c.tf32 == ("tf32" in c.variant)), what
            continue
        # between the loops of fp16x3 and fp16x1 an element that is left to float32 takes registers
        few = {"fp16x3_128x128x64": 50, "fp16x1_128x256x64": 30}.get(c.variant, 0)
        assert c.spills <= few * (1 if MEASURED_WITH else 3), what
        assert c.opcodes["FFMA"] + c.opcodes["FFMA2"] > 0, what
        tensor = VARIANTS[c.variant].precision != "ieee"
        on_tensor_cores = sum(c.opcodes[op] for op in ("HMMA", "HGMMA", "UTCHMMA"))
        assert bool(on_tensor_cores) == tensor and not c.tf32, what
        if c.variant.startswith("smem_tiling"):
            assert c.shared_bytes == 8192, what  # the chapter's two tiles
        if VARIANTS[c.variant].rung in range(3, 8):
            assert c.opcodes["BAR"] == 2, what
        if VARIANTS[c.variant].rung in (6, 7):
            assert c.opcodes["LDS"] == 8 * 4, what  # at each k of a tile two vectors of A and two of B


@pytest.mark.slow
def test_a_triton_switch_does_not_unfuse_the_products(monkeypatch) -> None:
    counts = []
    for fusion in ("0", "1"):
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", fusion)
        names = ["dot_32x32x32", "smem_tiling_triton", "naive_gluon", "thread_tile_1d_gluon"]  # one a kernel
        counts.append([c.opcodes["FFMA"] for c in read_all([90], names, general=True)])
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_the_general_form_compiles_too() -> None:
    for c in read_all([90], [v.name for v in ANY_STRIDE], general=True):
        # around tensor cores odd strides may spill, before and after the loops
        assert c.spills == 0 or (VARIANTS[c.variant].precision != "ieee" and c.opcodes["HGMMA"]), c
        assert c.opcodes["FFMA"] > 0, c


def test_every_rung_has_a_twin() -> None:
    assert [(cuda.rung, twin.rung) for cuda, twin in twins()] == [(r.number, r.number) for r in RUNGS]


def test_rungs_say_what_they_do() -> None:
    for rung in RUNGS:
        assert rung.doc.startswith(f"Rung {rung.number}:") and "Twin:" in rung.doc
    for twin in rungs():
        assert twin.doc.startswith(f"Rung {twin.rung}:") and "Twin:" in twin.doc


def test_a_name_used_twice_is_refused() -> None:
    v = VARIANTS["cublas"]
    with pytest.raises(ValueError, match="two variants are called 'cublas'"):
        unique([v, v])


def test_a_variant_without_a_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match="has no docstring"):
        replace(VARIANTS["cublas"], doc=" ")
    with pytest.raises(ValueError, match="either launch or run_with"):
        replace(VARIANTS["cublas"], run_with=None)


def test_a_variant_names_what_it_cannot_take() -> None:
    a = torch.randn(33, 64)
    v = VARIANTS["smem_tiling_cuda"]
    with pytest.raises(ValueError, match="multiples of 32; got M=33"):
        v.run(problem(a, a.mT, None, torch.empty(33, 33), 1.0, 0.0), a, a.mT, None, torch.empty(33, 33))
    batch = torch.randn(2, 32, 32)
    with pytest.raises(ValueError, match="one product, not a batch of 2"):
        v.run(problem(batch, batch, None, batch, 1.0, 0.0), batch, batch, None, batch)
    out, square = torch.empty(32, 32), torch.randn(32, 32)
    for x in (square.mT, torch.randn(32, 33)[:, :32]):
        with pytest.raises(ValueError, match="needs A, B and the result row by row without gaps"):
            v.run(problem(square, x, None, out, 1.0, 0.0), square, x, None, out)
    shifted = torch.randn(32 * 32 + 1)[1:].view(32, 32)
    assert v.why_not(problem(shifted, square, None, out, 1.0, 0.0)) is None


def test_select() -> None:
    assert [v.name for v in select(["smem_*"])] == ["smem_tiling_cuda", "smem_tiling_triton"]
    with pytest.raises(ValueError, match="no variant is called 'nope'; there are cublas"):
        select(["nope"])


def test_a_new_cuda_rung_is_a_file_and_a_line(monkeypatch, tmp_path) -> None:
    (tmp_path / "ninth.cu").write_text(
        RUNGS[1].source.replace("Rung 2:", "Rung 9:").replace("sgemm_coalesced", "sgemm_9")
    )
    monkeypatch.setattr(rungs_module, "HERE", tmp_path)
    rung = Rung("ninth", 9, "sgemm_9<32>", tile=(32, 32), threads=1024)
    variant = Variant("ninth_cuda", "cuda", "ieee", rung=9, run_with=partial(run_cuda, rung), doc=rung.doc)
    a, b, out = torch.randn(40, 50), torch.randn(50, 60), torch.full((40, 60), float("nan"))
    variant.run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
    assert errors(out, reference(a, b)).within(random_bound(50))
    assert rung.doc.startswith("Rung 9:") and "sgemm_9<32><<<" in source((rung,))[1]
