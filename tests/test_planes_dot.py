"""fp16x3 and fp16x1 in plain Triton: bounds, layouts, and what is left to float32."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from triton_sgemm.algorithms import dot, planes_dot
from triton_sgemm.algorithms.planes_dot import Tile
from triton_sgemm.problem import problem
from triton_sgemm.testing import U, errors, fp32_bound, guarded, ieee_bound, random_bound, reference, tf32_bound

FP16X3, FP16X1 = planes_dot.TILES
SMALL = replace(FP16X3, BLOCK_M=32, BLOCK_N=32)  # several tiles of a small problem


def computed(
    a: Tensor, b: Tensor, tile: Tile = FP16X3, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The product, checked for what it writes outside, and 1 for each tile that was computed in float32."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    out, whole = guarded((*batch, a.shape[-2], b.shape[-1]), a.device, pad=3)
    launch, left = planes_dot.prepare(problem(a, b, c, out, alpha, beta), a, b, c, out, tile)
    launch.run(a.device)
    assert whole()
    return out, left


LAYOUTS = {
    "N": lambda x: x,
    "T": lambda x: x.mT.contiguous().mT,
    "gaps": lambda x: torch.full((x.shape[0] + 1, x.shape[1] + 3), math.nan, device=x.device)[:-1, 1:-2].copy_(x),
    "steps": lambda x: torch.full((2 * x.shape[0], 3 * x.shape[1]), math.nan, device=x.device)[::2, ::3].copy_(x),
    "expanded": lambda x: x[:1].expand_as(x),
}


PAIRS = ("N N", "N T", "T N", "T T", "gaps steps", "steps gaps", "expanded N", "T expanded")


@pytest.mark.parametrize("pair", PAIRS)
def test_layouts(pair: str, device: str) -> None:
    layout_a, layout_b = pair.split()
    a, b = torch.randn(37, 70, device=device), torch.randn(70, 41, device=device)
    a, b = LAYOUTS[layout_a](a), LAYOUTS[layout_b](b)
    for tile, bound in ((FP16X3, random_bound(70)), (FP16X1, tf32_bound(70))):
        out, left = computed(a, b, tile)
        assert errors(out, reference(a, b)).within(bound)
        assert not left.any()


# one element, one row, one column; around the tile and a step of K; tails everywhere, a K that the split samples
SHAPES = ((1, 1, 1), (1, 70, 33), (70, 1, 33), (127, 65, 31), (129, 63, 64), (131, 67, 65), (3, 5, 1000))


@pytest.mark.parametrize("tile", planes_dot.TILES, ids=["fp16x3", "fp16x1"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(shape: tuple[int, int, int], tile: Tile, device: str) -> None:
    M, N, K = shape
    a, b, c = (torch.randn(s, device=device) for s in ((M, K), (K, N), (M, N)))
    bound = max(random_bound(K), 8 * U) if tile is FP16X3 else tf32_bound(K)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        out, left = computed(a, b, tile, alpha, beta, c)
        expected = reference(a, b, alpha, beta, c)
        assert errors(out, expected).within(bound)
        if tile is FP16X3 and K >= 64:
            assert errors(out, expected).within(fp32_bound(K))
        assert not left.any()


def test_low_sums_are_folded(device: str) -> None:
    a, b = torch.randn(20, 300, device=device), torch.randn(300, 30, device=device)
    once, _ = computed(a, b, SMALL)
    often, _ = computed(a, b, replace(SMALL, FOLD=64))
    assert not torch.equal(once, often)
    assert errors(often, reference(a, b)).within(random_bound(300))


def test_batches(device: str) -> None:
    a, b = torch.randn(3, 1, 33, 70, device=device), torch.randn(2, 70, 41, device=device)
    c = torch.randn(3, 2, 33, 41, device=device)
    a[1, 0, 5, 7] = math.inf  # of the products that meet it some tiles are float32's, and no others
    for alpha, beta in ((2.0, 0.0), (-0.5, 2.0)):
        out, left = computed(a, b, SMALL, alpha, beta, c)
        rest = [0, 2]
        assert errors(out[rest], reference(a[rest], b, alpha, beta, c[rest])).within(random_bound(70))
        assert left.view(3, 2, 4).sum(2).tolist() == [[0, 0], [2, 2], [0, 0]]
        assert not out[1, :, 5].isfinite().any() and out[1, :, :5].isfinite().all()


def test_in_place_and_a_c_that_is_not_read(device: str) -> None:
    a, b, c = (torch.randn(s, device=device) for s in ((40, 70), (70, 50), (40, 50)))
    a[3, 5] = 1e-30  # one row falls back, and reads C as well
    b[:, 7] = 0
    b[5, 7] = 1
    out = c.clone()
    launch, left = planes_dot.prepare(problem(a, b, out, out, 2.0, -1.0), a, b, out, out, SMALL)
    launch.run(a.device)
    assert left.tolist() == [1, 0, 0, 0]
    assert errors(out, reference(a, b, 2.0, -1.0, c)).within(random_bound(70))
    unread, _ = computed(a, b, SMALL, 2.0, 0.0, torch.full_like(c, math.nan))
    assert errors(unread, reference(a, b, 2.0)).within(random_bound(70))


def test_alpha_0_reads_no_operands(device: str) -> None:
    a, b, c = torch.full((5, 6), math.nan, device=device), torch.randn(6, 7, device=device), torch.randn(5, 7)
    c = c.to(device)
    assert torch.equal(computed(a, b, SMALL, 0.0)[0], torch.zeros_like(c))
    assert torch.equal(computed(a, b, SMALL, 0.0, 2.0, c)[0], 2 * c)


@pytest.mark.parametrize("tile", planes_dot.TILES, ids=["fp16x3", "fp16x1"])
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 3.4e38, 2.0**100, 1e-45])
def test_special_values_land_where_float32_puts_them(special: float, tile: Tile, device: str) -> None:
    a, b = torch.randn(20, 70, device=device), torch.randn(70, 24, device=device)
    a[3, 5] = b[7, 11] = special
    b[5, 2] = 0.0
    (out, left), expected = computed(a, b, tile), (a.cpu() @ b.cpu()).to(device)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(out), kind(expected))
    if not math.isfinite(special) or special > 1e38:
        assert left.all()


def test_sums_that_could_overflow_are_float32s(device: str) -> None:
    a = torch.full((33, 64), 2.0**60, device=device)
    b = torch.full((64, 33), 2.0**61, device=device)
    a[:, 1::2] *= -1  # they cancel, unless summed in another order
    for scale, falls in ((0.5, True), (0.25, False)):
        out, left = computed(a * scale, b, SMALL)
        assert left.all() == falls and left.any() == falls
        assert torch.equal(out, torch.zeros_like(out))
    out, left = computed(a.abs() * 2.0**10, b, SMALL)
    assert left.all() and out.isposinf().all()


def small_facing_zeros(device: str) -> tuple[Tensor, Tensor]:
    """Row (1, 0, 2^-40, ...) and column (0, 1, 2^-40, ...): what counts lies in the low planes alone."""
    a, b = torch.zeros(33, 64, device=device), torch.zeros(64, 33, device=device)
    a[0, 0] = b[1, 0] = 1
    a[0, 2] = b[2, 0] = 2.0**-40
    return a, b


@pytest.mark.parametrize("tile", [SMALL, replace(SMALL, TERMS=1)], ids=["fp16x3", "fp16x1"])
def test_small_entries_that_matter(tile: Tile, device: str) -> None:
    out, left = computed(*small_facing_zeros(device), tile)
    assert out[0, 0].item() == 2.0**-80 and torch.count_nonzero(out) == 1
    assert left[0] == 1


def test_the_check_is_needed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = small_facing_zeros(device)
    monkeypatch.setattr(planes_dot, "WEIGHT", {3: 0.0, 1: 0.0})
    out, left = computed(a, b, SMALL)
    assert not left.any() and out[0, 0] == 0
    assert not errors(out, reference(a, b)).within(0.5)


def test_small_entries_beside_large_products_do_no_harm(device: str) -> None:
    a, b = torch.randn(33, 256, device=device), torch.rand(256, 33, device=device)
    a = torch.exp(6 * a)  # entries far below their row's largest
    assert (a.amin(1) < a.amax(1) * 2.0**-27).any()
    out, left = computed(a, b, SMALL)
    assert not left.any()
    assert errors(out, reference(a, b)).within(min(random_bound(256), fp32_bound(256)))


@pytest.mark.parametrize("tile, bound", [(SMALL, fp32_bound), (replace(SMALL, TERMS=1), tf32_bound)])
def test_many_small_entries_that_meet_few_large_ones_do_no_harm(tile: Tile, bound, device: str) -> None:
    a, b = (
        torch.exp(4 * torch.randn(s, device=device)).sort(dim).values for s, dim in (((33, 256), 1), ((256, 33), 0))
    )
    a[:, :200] *= 2.0**-30  # more than the sum excuses by their number
    out, left = computed(a, b, tile)
    assert not left.any()
    assert errors(out, reference(a, b)).within(bound(256))


@pytest.mark.parametrize("order", ["identity", "permutation"])
def test_a_permutation_moves_float32_exactly(order: str, device: str) -> None:
    x = torch.exp(10 * torch.randn(70, 64, device=device))
    at = torch.arange(70) if order == "identity" else torch.randperm(70)
    p = torch.eye(70, device=device)[at]
    out, left = computed(p, x, SMALL)
    # an entry of many bits is held to 22 of them; those too small for that are float32's
    assert ((out - x[at]).abs() <= 2 * U * x[at]).all()
    assert left.any()
    whole = torch.randint(-(2**11), 2**11, (70, 64), device=device).float()
    out, left = computed(p, whole, SMALL)
    assert torch.equal(out, whole[at]) and not left.any()


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_and_a_small_operand_stay_finite(turned: bool, device: str) -> None:
    """2^-8 and 2^127: no part of the two exponents may be applied so that the product passes float32's range."""
    a = torch.rand(33, 64, device=device).add(1) * 2.0**-9
    b = torch.rand(64, 33, device=device).add(1) * 2.0**126
    if turned:
        a, b = b.mT.contiguous(), a.mT.contiguous()
    out, left = computed(a, b, SMALL)
    assert not left.any()
    assert errors(out, reference(a, b)).within(random_bound(64))


@pytest.mark.parametrize("flip", [False, True])
def test_scales_at_both_ends_of_float32_round_once(flip: bool, device: str) -> None:
    """A row of 2^14 and a column of subnormals: neither power, nor a half of one, may come before the other."""
    a, b = torch.zeros(33, 64, device=device), torch.zeros(64, 33, device=device)
    a[:, 0], a[:, 1] = 2.0**42, 2.0**15 * 1.2345
    b[1], b[2] = 2.0**-139 * (1 + 2.0**-9), 2.0**-112
    if flip:
        a, b = b.mT.contiguous(), a.mT.contiguous()
    out, left = computed(a, b, SMALL)
    assert not left.any()
    assert errors(out, reference(a, b)).within(8 * U)


def test_float32s_tiles_are_those_of_dot(device: str) -> None:
    a, b, c = (torch.randn(s, device=device) for s in ((40, 70), (70, 50), (40, 50)))
    a[:, 0], b[0] = 2.0**40, 0  # all else is small beside it, and all there is
    out, left = computed(a, b, SMALL, 1.5, -0.5, c)
    assert left.all()
    expected = torch.empty_like(c)
    dot.launch(problem(a, b, c, expected, 1.5, -0.5), a, b, c, expected, dot.TILES[-1]).run(a.device)
    assert torch.equal(out, expected) or device == "cpu"  # the interpreter's sums are numpy's, in its own order
    assert errors(out, reference(a, b, 1.5, -0.5, c)).within(ieee_bound(70))


def test_fallback_is_the_share_of_float32s_tiles(device: str) -> None:
    a, b = torch.randn(40, 70, device=device), torch.randn(70, 50, device=device)
    a[3, 5] = math.nan
    out = torch.empty(40, 50, device=device)
    p = problem(a, b, None, out, 1.0, 0.0)
    assert planes_dot.fallback(p, a, b, None, out, SMALL) == 0.5
