"""The public product, element by element against float64: shapes, layouts, inputs, outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import triton_sgemm
from triton_sgemm.product import product
from triton_sgemm.testing import errors, guarded, ieee_bound, random_bound, reference

SHAPES = [
    (1, 1, 1),  # one element
    (1, 70, 33),  # one row, one column: a tile almost empty
    (70, 1, 33),
    (5, 7, 1),  # K = 1
    (15, 17, 16),  # around the smallest tile
    (31, 33, 32),
    (63, 65, 64),  # around a step of K
    (127, 129, 31),  # around the largest tile
    (35, 79, 19),  # no common factor with anything
    (130, 40, 300),  # several tiles, several steps, all with a tail
]

LAYOUTS: dict[str, Callable[[int, int, str], Tensor]] = {
    "contiguous": lambda r, c, device: torch.randn(r, c, device=device),
    "transposed": lambda r, c, device: torch.randn(c, r, device=device).mT,
    "padded": lambda r, c, device: torch.randn(r, c + 5, device=device)[:, :c],
    "offset 1": lambda r, c, device: torch.randn(r * c + 1, device=device)[1:].view(r, c),
    "step 2": lambda r, c, device: torch.randn(2 * r, 2 * c, device=device)[::2, ::2],
    "expanded": lambda r, c, device: torch.randn(r, 1, device=device).expand(r, c),
}


def ours(a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None, **kw: Any) -> Tensor:
    """The public call on a GPU; on the CPU, where that is torch's, the same path in the interpreter."""
    if a.is_cuda:
        return triton_sgemm.sgemm(alpha, a, b, beta, c, **kw)
    return product("sgemm", a, b, alpha=alpha, beta=beta, c=c, **kw)


def assert_right(result: Tensor, a: Tensor, b: Tensor, *args: Any) -> None:
    expected = reference(a, b, *args)
    bound = min(random_bound(expected.depth), ieee_bound(expected.depth))
    assert errors(result, expected).within(bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_operands(shape: tuple[int, int, int], device: str) -> None:
    M, N, K = shape
    a, b = torch.randn(M, K, device=device), torch.randn(K, N, device=device)
    result = ours(a, b)
    assert result.dtype == torch.float32 and result.is_contiguous()
    assert_right(result, a, b)
    assert torch.equal(ours(a, b), result)


@pytest.mark.parametrize("shape", [(63, 65, 64), (35, 79, 19), (130, 40, 300)], ids=str)
def test_integers_are_exact(shape: tuple[int, int, int], device: str) -> None:
    # odd numbers up to 4097: TF32 keeps 11 bits of them; sums stay below 2^24
    M, N, K = shape
    a = torch.randint(-2048, 2049, (M, K), device=device).float() * 2 + 1
    b = torch.randint(-1, 2, (K, N), device=device).float()
    assert torch.equal(ours(a, b).double(), a.double() @ b.double())


@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(layout_a: str, layout_b: str, device: str) -> None:
    a, b = LAYOUTS[layout_a](37, 70, device), LAYOUTS[layout_b](70, 41, device)
    assert_right(ours(a, b), a, b)


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("shape", [(33, 17, 45), (64, 64, 64)], ids=str)
def test_nothing_outside_is_read_or_written(shape: tuple[int, int, int], pad: int, device: str) -> None:
    M, N, K = shape
    a, a_whole = guarded((M, K), device, pad=pad)
    b, b_whole = guarded((K, N), device, pad=pad)
    out, out_whole = guarded((M, N), device, pad=pad)
    a.normal_()
    b.normal_()
    a_before, b_before = a.clone(), b.clone()
    assert ours(a, b, out=out) is out
    assert_right(out, a, b)  # NaN from beside an operand, or left in the output, would show
    assert a_whole() and b_whole() and out_whole()
    assert torch.equal(a, a_before) and torch.equal(b, b_before)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "padded", "offset 1", "step 2"])
def test_out_keeps_its_strides(layout: str, device: str) -> None:
    a, b = torch.randn(20, 50, device=device), torch.randn(50, 30, device=device)
    out = LAYOUTS[layout](20, 30, device).fill_(float("nan"))
    stride = out.stride()
    assert ours(a, b, out=out) is out and out.stride() == stride
    assert_right(out, a, b)


@pytest.mark.parametrize("c_shape", [(40, 30), (30,), (40, 1), ()], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (-0.5, 2.0), (0.3, -0.7)])
def test_alpha_and_beta(alpha: float, beta: float, c_shape: tuple[int, ...], device: str) -> None:
    a, b, c = (torch.randn(s, device=device) for s in ((40, 50), (50, 30), c_shape))
    assert_right(ours(a, b, alpha, beta, c), a, b, alpha, beta, c.expand(40, 30))


def test_in_place(device: str) -> None:
    a, b, c = (torch.randn(s, device=device) for s in ((40, 50), (50, 30), (40, 30)))
    before = c.clone()
    assert ours(a, b, 2.0, -1.0, c, out=c) is c
    assert_right(c, a, b, 2.0, -1.0, before)


def test_beta_0_reads_no_c_and_alpha_0_no_operands(device: str) -> None:
    a, b, c = (torch.randn(s, device=device) for s in ((8, 9), (9, 7), (8, 7)))
    nan = torch.full_like(c, float("nan"))
    assert_right(ours(a, b, 1.0, 0.0, nan), a, b)
    assert torch.equal(ours(a * float("nan"), b / 0, 0.0, 2.0, c), 2 * c)
    assert torch.equal(ours(a, b * float("nan"), 0.0), torch.zeros_like(c))


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (0, 5, 0)], ids=str)
def test_no_output(shape: tuple[int, int, int], device: str) -> None:
    M, N, K = shape
    assert ours(torch.randn(M, K, device=device), torch.randn(K, N, device=device)).shape == (M, N)


def test_no_inner_dimension(device: str) -> None:
    a, b, c = torch.randn(5, 0, device=device), torch.randn(0, 3, device=device), torch.randn(5, 3, device=device)
    assert torch.equal(ours(a, b, out=torch.full_like(c, float("nan"))), torch.zeros_like(c))
    assert torch.equal(ours(a, b, 1.0, 3.0, c), 3 * c)
    assert ours(torch.empty(3, 0, 0, device=device), torch.empty(0, 0, device=device)).shape == (3, 0, 0)


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), float("nan"), 3.4e38, 1e-45])
def test_special_values_land_where_float32_puts_them(special: float, device: str) -> None:
    a, b = torch.randn(20, 40, device=device), torch.randn(40, 24, device=device)
    a[3, 5] = b[7, 11] = special
    b[5, 2] = 0.0
    result, expected = ours(a, b), (a.cpu() @ b.cpu()).to(device)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(result), kind(expected))


RANKS = [
    ((5,), (5,)),
    ((4, 5), (5,)),
    ((5,), (5, 6)),
    ((2, 4, 5), (5,)),
    ((5,), (2, 5, 6)),
    ((2, 3, 4, 5), (5, 6)),
    ((2, 3, 1, 5), (5, 6)),
    ((4, 5), (2, 3, 5, 6)),
    ((3, 1, 4, 5), (2, 5, 6)),  # both sides broadcast, so that no one stride walks the batch
    ((2, 1, 3, 1, 4, 5), (4, 1, 2, 5, 6)),
    ((0, 4, 5), (5, 6)),
    ((1, 4, 5), (0, 5, 6)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), RANKS, ids=str)
def test_ranks_and_broadcasting(a_shape: tuple[int, ...], b_shape: tuple[int, ...], device: str) -> None:
    a, b = torch.randn(a_shape, device=device), torch.randn(b_shape, device=device)
    expected = torch.matmul(a.double(), b.double())
    for out in (None, torch.full(expected.shape, float("nan"), device=device)):
        result = ours(a, b, out=out)
        assert result.shape == expected.shape
        assert torch.allclose(result.double(), expected, rtol=1e-5, atol=1e-5)


@given(
    batch=st.lists(st.integers(1, 3), max_size=3),
    sizes=st.tuples(*[st.integers(0, 40)] * 3),
    ones=st.tuples(*[st.lists(st.booleans(), min_size=3, max_size=3)] * 3),
    transpose=st.tuples(*[st.booleans()] * 3),
    factors=st.sampled_from([(1.0, 0.0), (2.0, -3.0), (0.0, 1.0)]),
    pad=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
def test_any_batch(device: str, batch, sizes, ones, transpose, factors, pad) -> None:
    """Integers, so exact: A, B and C broadcast, transposed or padded, into a strided output."""
    M, N, K = sizes
    alpha, beta = factors

    def operand(rows: int, cols: int, broadcast: list[bool], transposed: bool) -> Tensor:
        dims = [1 if one else n for n, one in zip(batch, broadcast, strict=False)]
        x = torch.randint(-8, 9, (*dims, *((cols, rows) if transposed else (rows, cols))), device=device).float()
        return x.mT if transposed else x

    a, b, c = (
        operand(*shape, one, turned)
        for shape, one, turned in zip(((M, K), (K, N), (M, N)), ones, transpose, strict=True)
    )
    expected = alpha * (a.double() @ b.double()) + beta * c.double()
    if expected.shape != (a @ b).shape:  # c alone has the full batch: not a product with a C that broadcasts to it
        c = c[(0,) * (c.ndim - 2)]
        expected = alpha * (a.double() @ b.double()) + beta * c.double()
    shape = expected.shape
    out = torch.full((*shape[:-2], shape[-2] + pad, shape[-1] + pad), float("nan"), device=device)
    out = out[..., : shape[-2], : shape[-1]]
    if len(shape) > 3:
        out = out.transpose(0, 1).contiguous().transpose(0, 1)  # the batch in another order in memory
    assert torch.equal(ours(a, b, alpha, beta, c, out=out).double(), expected)
