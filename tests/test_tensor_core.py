"""fp16x3 and fp16x1 on a GPU: their bounds, what they leave to strict float32, graphs, memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from bench.data import DATA
from triton_sgemm import matmul, prepare, sgemm
from triton_sgemm import plan as planning
from triton_sgemm.algorithms import split, tensor_core
from triton_sgemm.device import gpu
from triton_sgemm.execute import execute, in_panels
from triton_sgemm.plan import Plan, _plan, plan
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.problem import problem
from triton_sgemm.product import _recipe
from triton_sgemm.testing import Reference, errors, fp32_bound, guarded, ieee_bound, random_bound, reference, tf32_bound

pytestmark = pytest.mark.gpu

TILES = (*tensor_core.TILES, *tensor_core.TF32_TILES)
FP32 = tensor_core.TILES[0]
named = pytest.mark.parametrize("tile", TILES, ids=lambda t: t.name)


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("its wgmma is Hopper's")


def computed(
    a: Tensor,
    b: Tensor,
    tile: tensor_core.Tile = FP32,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, float]:
    """The product between guard bands and the share of elements that fell back; twice, to the same bits."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    a, b = a.expand(*shape[:-2], *a.shape[-2:]), b.expand(*shape[:-2], *b.shape[-2:])
    results, share = [], 0.0
    for _ in range(2):
        mine, whole = guarded(shape, "cuda")
        if out is not None:
            mine.copy_(out)
        added = mine if out is not None else c
        share = tensor_core.fallback(problem(a, b, added, mine, alpha, beta), a, b, added, mine, tile)
        assert whole()
        results.append(mine)
    assert torch.equal(*(r.nan_to_num(nan=12345.0) for r in results))
    return results[0], share


def keeps(tile: tensor_core.Tile, result: Tensor, expected: Reference) -> bool:
    K = expected.depth
    always = tf32_bound(K) if tile.TERMS == 1 else max(fp32_bound(K), ieee_bound(K))
    return errors(result, expected).within(always)


def stored(rows: int, cols: int, how: str, *batch: int) -> Tensor:
    if how == "T":
        return torch.randn(*batch, cols, rows, device="cuda").mT
    if how == "gaps":
        return torch.full((*batch, rows, cols + 3), float("nan"), device="cuda")[..., :cols].normal_()
    if how == "offset":
        size = rows * cols
        for n in batch:
            size *= n
        return torch.randn(size + 1, device="cuda")[1:].view(*batch, rows, cols)
    if how == "steps":
        return torch.full((*batch, 2 * rows, 3 * cols), float("nan"), device="cuda")[..., ::2, ::3].normal_()
    return torch.randn(*batch, rows, cols, device="cuda")


@pytest.mark.parametrize(
    ("layout", "tile"),
    [(layout, FP32) for layout in ("NN", "NT", "TN", "TT", "gaps", "offset", "steps")]
    + [(layout, tile) for layout in ("NT", "TN") for tile in TILES[1:]],
    ids=str,
)
def test_layouts_and_odd_sizes(layout: str, tile: tensor_core.Tile) -> None:
    how_a, how_b = layout if len(layout) == 2 else (layout, layout)
    for M, N, K in ((313, 259, 177), (130, 70, 1000)):
        a, b, c = stored(M, K, how_a), stored(K, N, how_b), torch.randn(N, M, device="cuda").mT
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
            result, share = computed(a, b, tile, alpha, beta, c)
            expected = reference(a, b, alpha, beta, c)
            assert share == 0 and keeps(tile, result, expected)
            assert tile.TERMS == 1 or errors(result, expected).within(random_bound(K))


@named
def test_batches(tile: tensor_core.Tile) -> None:
    for a, b in (
        (stored(70, 100, "N", 3), stored(100, 200, "T", 3)),
        (stored(70, 100, "T", 2, 3), stored(100, 200, "N", 3)),
        (stored(70, 100, "N"), stored(100, 200, "N", 5)),
    ):
        result, share = computed(a, b, tile)
        assert share == 0 and keeps(tile, result, reference(a, b))


@pytest.mark.parametrize("name", DATA)
def test_every_kind_of_data_keeps_its_bounds(name: str) -> None:
    for M, N, K in ((200, 300, 500), (129, 130, 4096)):
        a, b = DATA[name](M, N, K, torch.Generator("cuda").manual_seed(K), "cuda")
        expected = reference(a, b)
        for tile in (FP32, tensor_core.TF32_TILES[0]):
            result, share = computed(a, b, tile)
            if name == "infinite":
                assert share == 1 and torch.equal(result.isnan() | result.isinf(), ~expected.value.isfinite())
                continue
            assert keeps(tile, result, expected)
            if tile.TERMS == 3 and DATA[name].random:
                assert errors(result, expected).within(random_bound(K))


def test_what_the_planes_cannot_hold_falls_back() -> None:
    a, b = torch.zeros(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    a[3, 0], a[3, 2] = 1, 2.0**-40
    b[1, 5], b[2, 5] = 1, 2.0**-40
    result, share = computed(a, b)
    assert share == 1 / 64**2 and result[3, 5] == 2.0**-80

    a = torch.exp(6 * torch.randn(300, 512, device="cuda"))
    result, share = computed(a, torch.eye(512, device="cuda"))
    assert share > 0 and torch.equal(result, a)
    result, share = computed(torch.eye(300, device="cuda"), a)
    assert share > 0 and torch.equal(result, a)


@named
def test_a_single_element_is_left_alone(tile: tensor_core.Tile) -> None:
    a, b = torch.randn(300, 200, device="cuda"), torch.randn(200, 400, device="cuda")
    a[3] = 0
    a[3, 0], a[3, 2] = 1, 2.0**-40
    b[0, 5], b[2, 5] = 0, 2.0**-40
    result, share = computed(a, b, tile)
    assert share == 1 / (300 * 400) and result[3, 5] == 2.0**-80
    assert keeps(tile, result, reference(a, b))
    c = torch.randn(300, 400, device="cuda")
    result, share = computed(a, b, tile, 1.0, 1.0, out=c)
    assert share > 0.01 and keeps(tile, result, reference(a, b, 1.0, 1.0, c))


def test_single_elements_of_a_batch_in_any_layout() -> None:
    for layout in ("NN", "NT", "TN", "TT", "steps"):
        how_a, how_b = layout if len(layout) == 2 else (layout, layout)
        a, b = stored(150, 300, how_a, 3), stored(300, 260, how_b, 3)
        rows, cols = torch.tensor([3, 77], device="cuda"), torch.tensor([5, 200], device="cuda")
        a[:, rows] *= 2.0**-40
        a[:, rows, 7] = 1.0
        b[:, 7] = b[:, 7].sign()
        b[:, 7, cols] = 0.0
        result, share = computed(a, b)
        assert share == pytest.approx(4 / (150 * 260)) and keeps(FP32, result, reference(a, b))


@named
def test_parts_of_k(tile: tensor_core.Tile) -> None:
    for layout, batch in (("NN", ()), ("TT", ()), ("NT", (3,))):
        a, b = stored(150, 1280, layout[0], *batch), stored(1280, 140, layout[1], *batch)
        a[..., 7, 700], b[..., 700, 9] = float("inf"), 0.0
        c, plan = torch.randn(*batch, 150, 140, device="cuda"), Plan(tile, "", 320)
        out, whole = guarded(c.shape, "cuda")
        execute(plan, problem(a, b, c, out, 1.5, -0.5), a, b, c, out)
        expected = reference(a, b, 1.5, -0.5, c)
        finite = expected.value.isfinite()
        assert whole() and torch.equal(out.isnan(), expected.value.isnan()) and torch.equal(out.isfinite(), finite)
        kept = Reference(expected.value[finite], expected.scale[finite], expected.depth)
        assert keeps(tile, out[finite], kept)


def test_without_the_check_it_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.exp(6 * torch.randn(300, 512, device="cuda"))
    p = problem(a, torch.eye(512, device="cuda"), None, out := torch.empty_like(a), 1.0, 0.0)
    launch = tensor_core.launch(p, a, torch.eye(512, device="cuda"), None, out, FP32)
    [splitting] = launch.before[0].before
    splitting.run(out.device)
    launch.before[0].args[2][:, 1].zero_()  # A's small entries
    object.__setattr__(launch.before[0], "before", ())
    launch.run(out.device)
    assert not launch.args[0].any() and not torch.equal(out, a)
    assert not errors(out, reference(a, torch.eye(512, device="cuda"))).within(fp32_bound(512))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_special_values_land_where_float32_puts_them(layout: str, beta: float) -> None:
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-45, 1e30], device="cuda")
    for seed in range(4):
        torch.manual_seed(seed)
        a, b = stored(150, 200, layout[0]), stored(200, 260, layout[1])
        for t in (a, b):
            for _ in range(1 + 4 * seed):
                at = (torch.randint(t.shape[0], ()), torch.randint(t.shape[1], ()))
                t[at] = special[torch.randint(len(special), ())]
        c = torch.randn(150, 260, device="cuda")
        result, _ = computed(a, b, FP32, 1.0, beta, c)
        with torch_matmul_precision("ieee"):
            expected = a @ b + beta * c
        exact = (a.double() @ b.double() + beta * c).float()
        for t in (torch.isnan, torch.isposinf, torch.isneginf):
            assert (t(result) == t(expected)).logical_or(t(result) == t(exact)).all()
        finite = result.isfinite() & exact.isfinite()
        scale = a.double().abs().nan_to_num(0, 0, 0) @ b.double().abs().nan_to_num(0, 0, 0) + 1
        assert ((result - exact).abs() <= 300 * 2.0**-24 * scale)[finite].all()


@pytest.mark.parametrize("flip", [False, True])
def test_powers_at_both_ends_of_float32(flip: bool) -> None:
    """No exponent may be applied so that a finite product passes float32's range, or rounds twice."""
    large = torch.rand(33, 64, device="cuda").add(1) * 2.0**-9, torch.rand(64, 33, device="cuda").add(1) * 2.0**126
    a, b = torch.zeros(33, 64, device="cuda"), torch.zeros(64, 33, device="cuda")
    a[:, 0], a[:, 1] = 2.0**42, 2.0**15 * 1.2345
    b[1], b[2] = 2.0**-139 * (1 + 2.0**-9), 2.0**-112
    for x, y, bound in ((*large, random_bound(64)), (a, b, 8 * 2.0**-24)):
        if flip:
            x, y = y.mT.contiguous(), x.mT.contiguous()
        result, share = computed(x, y)
        assert share == 0 and errors(result, reference(x, y)).within(bound)


def test_beta_in_place_where_a_part_falls_back() -> None:
    a, b, c = torch.randn(300, 500, device="cuda"), torch.randn(500, 400, device="cuda"), torch.randn(300, 400).cuda()
    a[7] *= torch.exp(20 * torch.randn(500, device="cuda"))
    a[200, 3] = float("inf")
    result, share = computed(a, b, FP32, 1.5, 2.0, out=c)
    assert 0 < share < 1
    expected = reference(a, b, 1.5, 2.0, c)
    rows = torch.arange(300, device="cuda") != 200
    part = Reference(expected.value[rows], expected.scale[rows], 500)
    assert keeps(FP32, result[rows], part) and not result[200].isfinite().any()


def test_a_graph_replays_on_data_that_comes_to_need_the_fallback() -> None:
    a, b = torch.randn(300, 500, device="cuda"), torch.randn(500, 400, device="cuda")
    out = torch.empty(300, 400, device="cuda")
    run = lambda: tensor_core.launch(problem(a, b, None, out, 1.0, 0.0), a, b, None, out, FP32).run(out.device)  # noqa: E731
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for change in (1.0, float("nan"), 1e-3, 1e36):
        a.normal_()
        a[5, 9] *= change
        out.fill_(float("nan"))
        graph.replay()
        expected = reference(a, b)
        rows = expected.value.isfinite().all(1)
        assert rows.sum() >= 299 and out[~rows].isnan().all()
        assert keeps(FP32, out[rows], Reference(expected.value[rows], expected.scale[rows], 500))


def test_a_side_stream() -> None:
    a, b = torch.randn(700, 512, device="cuda"), torch.randn(512, 600, device="cuda")
    x = torch.zeros_like(a)
    computed(x, b)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(a)
        result, _ = computed(x, b)
    stream.synchronize()
    assert keeps(FP32, result, reference(a, b))


def large(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes this GPU for one where tensor cores were measured."""
    monkeypatch.setattr(planning, "MEASURED", (gpu(torch.cuda.current_device()).name,))
    _plan.cache_clear()
    _recipe.cache_clear()
    yield
    _plan.cache_clear()
    _recipe.cache_clear()


def test_matmul_takes_tensor_cores_where_they_pay(measured: None) -> None:
    a, b = large(2048, 2048), large(2048, 2048)
    p = problem(a, b, None, torch.empty_like(a), 1.0, 0.0)
    for precision, tiles in (("fp32", tensor_core.TILES), ("tf32", tensor_core.TF32_TILES)):
        assert plan(p, gpu(0), precision).tile in tiles
    assert plan(p, gpu(0), "ieee").in_order(2048)
    expected, bits = reference(a, b), {}
    for precision in ("ieee", "fp32", "tf32"):
        bits[precision] = matmul(a, b, precision=precision)
        assert torch.equal(bits[precision], matmul(a, b, precision=precision))
    relative = {precision: errors(bits[precision], expected).relative for precision in bits}
    assert relative["fp32"] < relative["ieee"] < 2e-6 < relative["tf32"] < 4e-4
    assert torch.equal(matmul(a, b), bits["fp32"])
    for switch in ("ieee", "tf32"):
        with torch_matmul_precision(switch):
            assert torch.equal(matmul(a, b), bits[switch])
            assert torch.equal(matmul(a, b, precision="fp32"), bits["fp32"])
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(matmul(a, b), bits["fp32"])
    small = problem(a[:, :32], b[:32], None, torch.empty_like(a), 1.0, 0.0)
    assert plan(small, gpu(0), "fp32").tile not in TILES


def test_a_prepared_operand(measured: None) -> None:
    a, b, c = large(3, 700, 1500), large(2000, 1500).mT, large(700, 2000)
    for precision in ("fp32", "tf32", "ieee"):
        once = prepare(b, precision)
        assert (once.planes is None) == (precision == "ieee")
        for x in (a, a[0], a[:, :3]):
            expected = reference(x, b)
            for _ in range(2):
                bound = tf32_bound(1500) if precision == "tf32" else random_bound(1500)
                assert errors(matmul(x, once), expected).within(bound)
        result = sgemm(2.0, a[0], once, 0.5, c)
        bound = tf32_bound(1500) if precision == "tf32" else random_bound(1500)
        assert errors(result, reference(a[0], b, 2.0, 0.5, c)).within(bound)
        with pytest.raises(ValueError, match="was prepared for"):
            matmul(a, once, precision="fp32" if precision != "fp32" else "tf32")
    assert torch.equal(matmul(a[0], prepare(b)), matmul(a[0], b))
    once = prepare(b)
    b[0, 0] = 1
    with pytest.raises(ValueError, match="prepare it again"):
        matmul(a, once)


def test_panels_where_the_planes_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = large(3000, 256), large(256, 5000), large(3000, 5000)
    whole = split.launch

    def little(sources: list[split.Source], planes: int, spare: int = 0):
        if any(s.X > 2600 for s in sources):
            raise torch.OutOfMemoryError("no room")
        return whole(sources, planes, spare)

    monkeypatch.setattr(split, "launch", little)
    out = c.clone()
    in_panels(FP32, problem(a, b, out, out, 1.0, 0.5), a, b, out, out)
    assert errors(out, reference(a, b, 1.0, 0.5, c)).within(random_bound(256))

    monkeypatch.setattr(split, "launch", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")))
    with pytest.raises(torch.OutOfMemoryError, match=r'bytes more .* precision="ieee"'):
        in_panels(FP32, problem(a, b, None, out, 1.0, 0.0), a, b, None, out)


def test_memory_is_as_stated(measured: None) -> None:
    a, b = large(2048, 2048), large(2048, 2048)
    out = torch.empty_like(a)
    matmul(a, b, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    matmul(a, b, out=out)
    extra = torch.cuda.max_memory_allocated() - before
    assert 1.0 <= extra / (4 * (a.numel() + b.numel())) < 1.02
