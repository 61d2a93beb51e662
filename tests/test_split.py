"""The split: planes that give back the operand, exponents, and the count of what they cannot hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests import model
from triton_sgemm.algorithms import split

U = 2.0**-24


def planes_of(t: Tensor, planes: int = 2) -> split.Planes:
    """Splits t (*batch, X, K)."""
    batch = tuple(t.shape[:-2])
    source = split.Source(t, batch, t.shape[-2], t.shape[-1], tuple(t.stride()))
    (result,), launch, spare = split.launch([source], planes, 5)
    launch.run(t.device)
    assert spare.tolist() == [0] * 5
    return result


def restored(p: split.Planes) -> tuple[Tensor, Tensor, Tensor]:
    """What the planes say in float64, (products, X, K), and e and the smalls, (products, X)."""
    products = len(p.rows)
    room = p.lanes if p.along_k else p.lanes.mT
    parts = room.double().unflatten(0, (products, p.planes, p.pitch))[:, :, : p.X]
    y = parts[:, 0] + (parts[:, 1] * 2.0**-11 if p.planes == 2 else 0)
    e, smalls, _ = p.rows[..., : p.X].unbind(1)
    return torch.ldexp(y, (e - 14)[..., None]), e, smalls


def norms_of(p: split.Planes) -> Tensor:
    """The bounds of the sums of |y|, in units of 2^15, (products, X)."""
    return p.K - p.rows[:, 2, : p.X] / split.PARTS.value


def stored(x: Tensor, how: str) -> Tensor:
    """x in another order in memory, with NaN in between."""
    if how == "along X":
        return x.mT.contiguous().mT
    if how == "gaps":
        whole = torch.full((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1] + 3), float("nan"), device=x.device)
        return whole[..., : x.shape[-2], : x.shape[-1]].copy_(x)
    if how == "steps":
        whole = torch.full((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), float("nan"), device=x.device)
        return whole[..., ::2, ::3].copy_(x)
    return x


# rows of one tile and of several, in both orders; X and K that no tile divides
SHAPES = ((70, 100), (33, 1500), (3, 33000), (1, 1), (64, 128), (130, 64))


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("how", ["along K", "along X", "gaps", "steps"])
@pytest.mark.parametrize("shape", SHAPES)
def test_planes_give_the_operand_back(shape: tuple[int, int], how: str, planes: int, device: str) -> None:
    if shape[1] > 10000 and how in ("along X", "steps"):
        pytest.skip("takes the interpreter long, and shows nothing that K = 1500 does not")
    x = torch.randn(shape, device=device)
    x *= torch.exp2(torch.randint(-100, 100, (shape[0], 1), device=device))
    x[-1] = 0
    p = planes_of(stored(x, how), planes)
    back, e, smalls = restored(p)
    x = x.double()
    y = torch.ldexp(x, (14 - e[0])[:, None])
    assert (y.abs() < 2**15).all()
    small = (y != 0) & (y.abs() < 2**-13)
    zero = x.abs().amax(1) == 0
    assert torch.equal(smalls[0].long()[~zero], small.sum(1)[~zero])
    one_tile = x.shape[1] <= (split.LONGEST if how != "along X" else split.ELEMENTS // split.ACROSS)
    assert (smalls[0][zero] == 0).all()
    norms = norms_of(p)[0]
    assert (norms >= y.abs().sum(1) / 2**15).all() and (norms <= x.shape[1]).all()
    assert (norms[zero] == 0).all() or not one_tile
    unit = 2 * U if planes == 2 else 2**-11
    assert ((back[0] - x).abs() <= unit * x.abs())[~small].all()


@pytest.mark.parametrize("how", ["along K", "along X"])
@pytest.mark.parametrize("shape", [(70, 100), (70, 700), (3, 33000)])
def test_norms_are_the_models(shape: tuple[int, int], how: str, device: str) -> None:
    """Where tiles hold small entries, and others beside them none; the sums are float32's, so a part may be missing."""
    if shape[1] > 10000 and how == "along X":
        pytest.skip("takes the interpreter long, and shows nothing that K = 700 does not")
    x = torch.randn(shape, device=device)
    x[: shape[0] // 2, : shape[1] // 2] = torch.exp(8 * x[: shape[0] // 2, : shape[1] // 2])
    p = planes_of(stored(x, how))
    algorithm = model.Algorithm(along_k=how == "along K")
    expected = torch.from_numpy(model.split(x.cpu().numpy(), algorithm).norm).to(device)
    assert ((norms_of(p)[0] - expected).abs() <= 2 / split.PARTS.value).all()
    assert (expected < shape[1]).any() and ((expected == shape[1]).any() or how == "along X")


@pytest.mark.parametrize("how", ["along K", "along X"])
def test_a_row_whose_largest_entry_no_sample_holds_is_split_again(how: str, device: str) -> None:
    x = torch.zeros(40, 1500, device=device)
    x[torch.arange(40), torch.arange(40) * 37 + 1] = 3e5  # an identity's columns, moved off the sample
    x[7, 80] = 1e30
    back, e, smalls = restored(planes_of(stored(x, how)))
    assert smalls[0].tolist() == [int(i == 7) for i in range(40)] and e[0, 7] >= 99
    x[7, 7 * 37 + 1] = 0  # lost beside 1e30
    assert torch.allclose(back[0], x.double(), rtol=2 * U, atol=0)


@pytest.mark.parametrize("how", ["along K", "along X"])
def test_both_ends_of_float32(how: str, device: str) -> None:
    largest, least = torch.finfo(torch.float32).max, 2.0**-149
    x = torch.tensor([[largest, -largest / 2, 1.0], [least, 2 * least, 0], [2.0**-126, least, 0], [0, 0, 0]])
    back, _, smalls = restored(planes_of(stored(x.repeat(1, 500).to(device), how)))
    x = x.double().to(device)
    assert torch.allclose(back[0, 0, :2], x[0, :2], rtol=2 * U, atol=0)
    assert smalls[0, 0] == 500 and smalls[0, 3] <= 0
    assert torch.equal(back[0, 1:, :3], x[1:])  # subnormals are few bits: nothing is lost


@pytest.mark.parametrize("how", ["along K", "along X"])
def test_entries_that_are_high_or_not_finite_are_noted(how: str, device: str) -> None:
    for value, high in ((1.0, 0), (2.0**25, 0), (2.0**32, 1), (float("inf"), 1), (float("nan"), 1)):
        x = torch.ones(5, 1000, device=device)
        x[3, 77] = -value
        p = planes_of(stored(x, how))
        assert bool(p.high) == bool(high)
        assert (p.rows[0, 0, 3].item() == 128) == (value != value or value == float("inf"))
        assert ((norms_of(p) >= 0) & (norms_of(p) <= 1000)).all()


def test_a_batch_and_what_is_broadcast(device: str) -> None:
    x = torch.randn(3, 1, 40, 100, device=device).expand(3, 5, 40, 100)
    p = planes_of(x)
    assert p.batch == (3, 1) and p.steps_in((3, 5)) == (0, 1) and len(p.rows) == 3
    assert torch.allclose(restored(p)[0], x[:, 0].double(), rtol=2 * U, atol=0)
