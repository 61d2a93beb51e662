"""Which precision a call gets, which algorithm that is, and operands prepared for it: without a GPU."""

from __future__ import annotations

import pytest
import torch

from triton_sgemm import Prepared, ShapeError, enable, matmul, prepare, sgemm
from triton_sgemm.algorithms import tensor_core
from triton_sgemm.device import Gpu
from triton_sgemm.plan import Plan, plan
from triton_sgemm.precision import resolved, torch_matmul_precision
from triton_sgemm.problem import problem

H200 = Gpu("NVIDIA H200", 90, 132, 50 << 20, 1980.0)
H100 = Gpu("NVIDIA H100 80GB HBM3", 90, 132, 50 << 20, 1980.0)


def planned(M: int, N: int, K: int, precision: str, gpu: Gpu = H200, prepared: bool = False) -> Plan:
    a, b, out = (torch.empty(size, device="meta") for size in ((M, K), (K, N), (M, N)))
    return plan(problem(a, b, None, out, 1.0, 0.0), gpu, precision, prepared)


def test_none_means_torchs_switch_and_fp32_while_it_is_not_set() -> None:
    assert resolved(None) == "fp32"
    for switch in ("ieee", "tf32"):
        with torch_matmul_precision(switch):
            assert resolved(None) == switch and resolved("fp32") == "fp32"
    torch.backends.cuda.matmul.allow_tf32 = True  # the older switch, mixed with the newer
    try:
        assert resolved(None) == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@pytest.mark.parametrize("size", [1024, 2048, 4095, 4096, 8192])
def test_tensor_cores_where_they_pay(size: int) -> None:
    assert planned(size, size, size, "fp32").tile in tensor_core.TILES
    assert planned(size, size, size, "tf32").tile in tensor_core.TF32_TILES
    assert not isinstance(planned(size, size, size, "ieee").tile, tensor_core.Tile)


def test_strict_float32_elsewhere() -> None:
    strict = planned(4096, 4096, 4096, "ieee")
    for precision in ("fp32", "tf32"):
        assert planned(4096, 4096, 4096, precision, H100).tile == strict.tile  # nobody measured it there
        for M, N, K in ((4096, 4096, 63), (16, 4096, 4096), (4096, 8, 4096), (128, 128, 128), (64, 64, 2**21)):
            chosen = planned(M, N, K, precision)
            assert chosen == planned(M, N, K, "ieee") and not isinstance(chosen.tile, tensor_core.Tile)
    assert strict.in_order(4096) and not planned(4096, 4096, 4096, "fp32").in_order(4096)


@pytest.mark.parametrize("precision", ["ieee", "fp32", "tf32"])
@pytest.mark.parametrize(("batch", "M", "N", "K"), [(0, 64, 64, 64), (0, 3, 100, 100), (2, 0, 64, 64), (2, 64, 64, 0)])
def test_a_product_of_nothing_has_a_plan(batch: int, M: int, N: int, K: int, precision: str) -> None:
    a, b, out = (torch.empty(batch, *size, device="meta") for size in ((M, K), (K, N), (M, N)))
    for gpu in (H200, H100, None):
        assert plan(problem(a, b, None, out, 1.0, 0.0), gpu, precision).tile


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "fp32", "tf32"])
def test_a_product_of_nothing_runs(precision: str) -> None:
    a = torch.randn(0, 64, 64, device="cuda")
    assert matmul(a, a, precision=precision).shape == (0, 64, 64)
    with enable(precision):
        assert torch.bmm(a, a).shape == (0, 64, 64)


def test_a_plan_says_what_and_why() -> None:
    chosen = planned(4096, 4096, 4096, "fp32")
    assert chosen.name == "fp16x3_128x128x64" and "us predicted: 8 tiles on an SM" in chosen.why


def test_a_prepared_operand_makes_tensor_cores_pay_earlier() -> None:
    assert not isinstance(planned(64, 4096, 4096, "fp32").tile, tensor_core.Tile)
    assert isinstance(planned(64, 4096, 4096, "fp32", prepared=True).tile, tensor_core.Tile)


def test_prepare_without_a_gpu_is_the_operand_itself() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    once = prepare(b)
    assert isinstance(once, Prepared) and once.planes is None and once.precision == "fp32"
    assert torch.equal(matmul(a, once), a @ b)
    assert torch.allclose(sgemm(2.0, a, once, 0.5, c), 2 * (a @ b) + 0.5 * c)
    assert torch.equal(matmul(a.double(), prepare(b.double())), a.double() @ b.double())
    b.add_(1)
    with pytest.raises(ValueError, match="matmul: b was changed in place after prepare"):
        matmul(a, once)


def test_what_was_prepared_is_shown_without_its_elements() -> None:
    once = prepare(torch.randn(3, 4), "ieee")
    assert repr(once) == "Prepared((3, 4), torch.float32, cpu, 'ieee', as it is)"
    with pytest.raises(TypeError, match="b is prepared already"):
        prepare(once)


def test_wrong_calls_of_prepare() -> None:
    with pytest.raises(TypeError, match=r"prepare: b is of type list; need a torch\.Tensor"):
        prepare([[1.0]])
    with pytest.raises(ShapeError, match=r"prepare: b is \(2, 3, 4\); need a matrix"):
        prepare(torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="precision is 'half'; use None or one"):
        prepare(torch.randn(3, 4), "half")
    with pytest.raises(
        ValueError, match=r"precision is 'tf32' but b was prepared for 'fp32'; use prepare\(b, 'tf32'\)"
    ):
        matmul(torch.randn(3, 4), prepare(torch.randn(4, 5)), precision="tf32")
