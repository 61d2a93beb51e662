"""What matmul chooses from, each by itself: operands moved, K cut into parts, a few columns, outer products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.catalog import VARIANTS
from triton_sgemm.algorithms import dot, fma, relay, rows
from triton_sgemm.device import gpu
from triton_sgemm.execute import execute
from triton_sgemm.plan import Plan, plan
from triton_sgemm.problem import problem
from triton_sgemm.testing import errors, guarded, random_bound, reference

LAYOUTS = ("NN", "NT", "TN", "TT", "gaps", "offset", "steps")


def operand(rows_: int, cols: int, layout: str, device: str, *batch: int) -> Tensor:
    """A random matrix; what lies between its elements is NaN."""
    shape = {"gaps": (rows_ + 1, cols + 3), "steps": (2 * rows_, 3 * cols), "T": (cols, rows_)}.get(
        layout, (rows_, cols)
    )
    whole = torch.full((*batch, *shape), float("nan"), device=device)
    if layout == "offset":
        flat = torch.full((whole.numel() + 1,), float("nan"), device=device)
        whole = flat[1:].view(*batch, *shape)
    t = {
        "gaps": whole[..., :rows_, :cols],
        "steps": whole[..., ::2, ::3],
        "T": whole.mT,
    }.get(layout, whole)
    return t.copy_(torch.randn(t.shape, device=device))


def operands(M: int, N: int, K: int, layout: str, device: str, batch: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    a, b = (layout, layout) if layout not in ("NN", "NT", "TN", "TT") else layout
    return operand(M, K, a, device, *batch), operand(K, N, b, device, *batch)


def computed(
    chosen: Plan, a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None
) -> Tensor:
    """The product by a plan, into NaN between guard bands; twice, to the same bits."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    results = []
    for _ in range(2):
        out, whole = guarded(shape, str(a.device))
        execute(chosen, problem(a, b, c, out, alpha, beta), a, b, c, out)
        assert whole()
        results.append(out)
    assert torch.equal(*results)
    return results[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_relay_moves_every_element(layout: str, batch: tuple[int, ...], device: str) -> None:
    a, b = operands(35, 70, 130, layout, device, batch)
    out = torch.empty(*batch, 35, 70, device=device)
    p = problem(a, b, None, out, 1.0, 0.0)
    moved, room, launch = relay.moved(p, a)
    launch.run(a.device)
    assert torch.equal(room[..., :35].reshape(a.mT.shape), a.mT)  # a batch of one stride is one dimension
    assert moved.a_strides[-2:] == (1, room.stride(-2)) and relay.in_place(moved, room)


def test_relay_moves_a_broadcast_operand_once(device: str) -> None:
    a, b = torch.randn(33, 40, device=device).expand(2, 5, 33, 40), torch.randn(2, 5, 40, 17, device=device)
    p = problem(a, b, None, torch.empty(2, 5, 33, 17, device=device), 1.0, 0.0)
    moved, room, launch = relay.moved(p, a)
    launch.run(a.device)
    assert room.numel() <= 40 * 64 and set(moved.a_strides[:-2]) <= {0}
    assert torch.equal(room.reshape(40, -1)[:, :33], a[0, 0].mT)


def test_an_empty_result_launches_nothing(device: str) -> None:
    everywhere = torch.randn(1, device=device)  # a broadcast operand, in a batch of none
    for tile in (dot.TILES[-1], rows.TILES[0]):
        for relay_first in (False, True):
            a, b = torch.randn(0, 5, 40, device=device), everywhere.expand(0, 40, 40)
            out = torch.empty(0, 5, 40, device=device)
            execute(Plan(tile, "", 40, relay=relay_first), problem(a, b, None, out, 1.0, 0.0), a, b, None, out)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("depth", [32, 96, 352, 700])  # 22 parts, more than are added at a time, to one
def test_parts_of_k(depth: int, transposed: bool, device: str) -> None:
    a, b = torch.randn(2, 33, 700, device=device), torch.randn(2, 700, 17, device=device)
    c = torch.randn(33, 17, device=device).expand(2, 33, 17)
    for tile in (dot.TILES[-2], dot.TILES[-3]):
        out = computed(Plan(tile, "", depth, transposed, relay=transposed), a, b, -0.5, 2.0, c)
        assert errors(out, reference(a, b, -0.5, 2.0, c)).within(random_bound(700))
        assert errors(computed(Plan(tile, "", depth, transposed), a, b), reference(a, b)).within(random_bound(700))


@pytest.mark.parametrize("cols", [1, 2, 3, 8, 13, 16])
def test_a_few_columns(cols: int, device: str) -> None:
    tile = next((t for t in rows.TILES if cols <= t.COLS), rows.TILES[-1])
    for layout in ("NN", "NT", "gaps", "offset"):
        a, b = operands(7, cols, 700, layout, device)
        c = torch.randn(7, cols, device=device)
        out = computed(Plan(tile, "", 700), a, b, -0.5, 2.0, c)
        assert errors(out, reference(a, b, -0.5, 2.0, c)).within(random_bound(700))
    a, b = operands(5, cols, 70, "NN", device, (3,))
    assert errors(computed(Plan(tile, "", 70), a, b), reference(a, b)).within(random_bound(70))


def naive(a: Tensor, b: Tensor) -> Tensor:
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=a.device)
    a, b = a.contiguous(), b.contiguous()
    VARIANTS["naive_cuda"].run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("tile", fma.TILES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_outer_products_give_the_naive_kernels_bits(tile: fma.Tile, layout: str) -> None:
    # whole tiles; one element short and one over; less than a tile; K of one, less than a stage, odd stages
    for M, N, K in (
        (256, 512, 64),
        (255, 257, 129),
        (257, 255, 40),
        (35, 79, 19),
        (1, 1, 1),
        (300, 130, 7),
        (5, 600, 24),
    ):
        a, b = operands(M, N, K, layout, "cuda")
        assert torch.equal(computed(Plan(tile, "", K), a, b), naive(a, b)), (M, N, K)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", fma.TILES, ids=str)
def test_outer_products_in_batches_in_place_and_in_parts(tile: fma.Tile) -> None:
    a, b = operands(70, 300, 520, "NT", "cuda", (2, 3))
    c = torch.randn(70, 1, device="cuda").expand(2, 3, 70, 300)
    for depth in (520, 160):
        out = computed(Plan(tile, "", depth), a, b, -0.5, 2.0, c)
        assert errors(out, reference(a, b, -0.5, 2.0, c)).within(random_bound(520))
    shared = a[0, 0].expand(2, 3, 70, 520)
    assert errors(computed(Plan(tile, "", 520), shared, b), reference(shared, b)).within(random_bound(520))
    out = torch.randn(70, 300, device="cuda").T.contiguous().T
    expected = reference(a[0, 0], b[0, 0], 1.5, 0.5, out)
    execute(Plan(tile, "", 520), problem(a[0, 0], b[0, 0], out, out, 1.5, 0.5), a[0, 0], b[0, 0], out, out)
    assert errors(out, expected).within(random_bound(520))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [31, 256, 512, 1000, 1024, 2048, 2049, 4096])
def test_matmul_gives_the_naive_kernels_bits_where_k_is_whole(n: int) -> None:
    a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda")
    out = torch.empty(n, n, device="cuda")
    chosen = plan(problem(a, b, None, out, 1.0, 0.0), gpu(0))
    if not chosen.in_order(n):
        pytest.skip(f"the plan cuts K: {chosen}")
    VARIANTS["matmul_ieee"].run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
    assert torch.equal(out, naive(a, b))
