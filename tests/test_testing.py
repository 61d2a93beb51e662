"""The checker itself: it accepts float32 arithmetic and refuses everything that is worse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triton_sgemm.testing import errors, fp32_bound, guarded, ieee_bound, random_bound, reference, tf32_bound

M, N, K = 96, 80, 512


def tf32(x: Tensor) -> Tensor:
    """float32 rounded to TF32's 11 bits, ties to even."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@pytest.fixture
def operands() -> tuple[Tensor, Tensor]:
    return torch.randn(M, K), torch.randn(K, N)


def accepted(result: Tensor, a: Tensor, b: Tensor) -> bool:
    return errors(result, reference(a, b)).within(random_bound(K))


def test_float32_is_accepted(operands) -> None:
    a, b = operands
    in_order = torch.zeros(M, N)
    for k in range(K):
        in_order += a[:, k, None] * b[k]
    assert accepted(a @ b, a, b) and accepted(in_order, a, b)
    assert random_bound(K) < ieee_bound(K) < 2 * K * 2.0**-24


def test_tf32_is_refused(operands) -> None:
    a, b = operands
    assert not accepted((tf32(a).double() @ tf32(b).double()).float(), a, b)


def test_half_is_refused(operands) -> None:
    a, b = operands
    assert not accepted(a.half().float() @ b.half().float(), a, b)


@pytest.mark.parametrize("tile", [32, 16, 1])
def test_a_dropped_step_of_k_is_refused(operands, tile: int) -> None:
    a, b = operands
    assert not accepted(a[:, : K - tile] @ b[: K - tile], a, b)


def test_swapped_tiles_are_refused(operands) -> None:
    a, b = operands
    c = a @ b
    c[:32, :32], c[32:64, :32] = c[32:64, :32].clone(), c[:32, :32].clone()
    assert not accepted(c, a, b)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0])
def test_one_wrong_element_is_refused(operands, wrong: float) -> None:
    a, b = operands
    c = a @ b
    c[17, 23] = wrong
    assert not accepted(c, a, b)


def test_an_unwritten_output_is_refused(operands) -> None:
    out, _ = guarded((M, N))
    assert not accepted(out, *operands)


def test_a_missing_row_is_refused(operands) -> None:
    a, b = operands
    with pytest.raises(ValueError, match=r"the result is \(95, 80\) but the reference is \(96, 80\)"):
        accepted((a @ b)[1:], a, b)


def test_exact_zero_is_accepted_where_the_scale_is_zero() -> None:
    a, b = torch.zeros(3, 4), torch.zeros(4, 5)
    assert errors(torch.zeros(3, 5), reference(a, b)).largest == 0
    assert not errors(torch.full((3, 5), 1e-30), reference(a, b)).within(1.0)


@pytest.mark.parametrize("alpha", [1.0, 2.0**60])
def test_one_rounding_to_a_subnormal_is_accepted(alpha: float) -> None:
    """Numbers of 1e-43 have seven bits in float32."""
    a, b = 1e-30 * torch.randn(8, 64), 1e-14 * torch.randn(64, 8)
    result = alpha * (a.double() @ b.double()).float()
    assert errors(result, reference(a, b, alpha)).within(random_bound(64))
    assert not errors(0.5 * result, reference(a, b, alpha)).within(random_bound(64))


def test_bias_has_a_sign() -> None:
    a, b = torch.rand(32, 64), torch.rand(64, 32)
    exact = a.double() @ b.double()
    assert abs(errors(exact.float(), reference(a, b)).bias) < 2e-9
    toward_zero = torch.where(exact.float() > exact, exact.float().nextafter(torch.tensor(0.0)), exact.float())
    assert -(2.0**-23) < errors(toward_zero, reference(a, b)).bias < -(2.0**-26)


def test_the_bounds_in_their_order() -> None:
    for K in (64, 100, 4096, 262144):
        assert fp32_bound(K) < tf32_bound(K) and random_bound(K) < tf32_bound(K)
    for K in (63, 2**20 + 1):
        assert fp32_bound(K) == ieee_bound(K)
    assert random_bound(4096) < fp32_bound(4096) < ieee_bound(4096) / 20
    assert tf32_bound(64) < 2.0**-6


def test_guards_notice_a_write_on_either_side() -> None:
    inner, whole = guarded((4, 5), pad=3)
    assert whole() and inner.shape == (4, 5) and inner.stride() == (8, 1)
    parent = inner._base
    for index in (63, 64 + 5, parent.numel() - 64):
        before = parent[index].clone()
        parent[index] = 0.0
        assert not whole()
        parent[index] = before
    assert whole()
