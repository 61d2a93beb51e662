"""The operator as a citizen of PyTorch: derivatives, torch.compile, vmap, autocast, fake tensors.

On the CPU torch computes it, in float64 too; on a GPU the kernels do, float32 only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from triton_sgemm import ShapeError, addmm, baddbmm, bmm, linear, matmul, op, prepare, sgemm
from triton_sgemm.product import product

GEMM = torch.ops.triton_sgemm.gemm.default
VIEWS = ("view", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "reshape", "detach", "alias", "t")
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request: pytest.FixtureRequest):
    """Every test creates its tensors there."""
    with torch.device(request.param):
        yield request.param


def f64(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def f32(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


class Calls(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func._schema.name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def gemms(self) -> int:
        return self.of["triton_sgemm::gemm"]

    @property
    def copies(self) -> set[str]:
        return {name for name in self.of if "clone" in name or "copy" in name or "contiguous" in name}


SHAPES = {
    "matrices": ((3, 4), (4, 5), (3, 5)),
    "no c": ((3, 4), (4, 5), None),
    "vectors": ((4,), (4,), ()),
    "a vector and a batch": ((4,), (2, 4, 5), (2, 5)),
    "a batch and a vector": ((2, 3, 4), (4,), (3,)),
    "a linear layer": ((2, 3, 4), (4, 5), (5,)),
    "one A for a batch": ((3, 4), (2, 4, 5), (2, 1, 1)),
    "batches broadcast both ways": ((2, 1, 3, 4), (3, 4, 2), (3, 2)),
    "no depth": ((3, 0), (0, 5), (3, 1)),
    "no rows": ((0, 4), (4, 5), (5,)),
}


def operands(shapes: tuple, make=f64) -> list[Tensor | None]:
    return [None if shape is None else make(*shape) for shape in shapes]


# ---- registration


@pytest.mark.parametrize(
    "args",
    [
        lambda: (f32(3, 4), f32(4, 5), None, 1.0, 0.0, None),
        lambda: (f32(5, 2).mT, f32(5, 5).mT, f32(5), 0.5, 2.0, "ieee"),
        lambda: (f32(2, 1, 3, 4), f32(2, 4, 5), f32(3, 1), 0.5, 2.0, "tf32"),
        lambda: (f64(2, 3, 4), f64(4, 5).detach(), None, 0.0, 0.0, "fp32"),
    ],
    ids=["matrices", "views", "batches", "float64"],
)
def test_opcheck(args) -> None:
    torch.library.opcheck(GEMM, args(), **CLOSE)


@pytest.mark.parametrize(
    "layout", [lambda t: t, lambda t: t.mT, lambda t: t.expand(3, *t.shape)], ids=["", "T", "batch"]
)
def test_a_fake_result_lies_as_the_real_one(layout) -> None:
    calls = (
        lambda a, c: matmul(layout(a), layout(a)),
        lambda a, c: sgemm(2.0, layout(a), layout(a), 0.5, c),
        lambda a, c: matmul(layout(a), c[0]),
        lambda a, c: matmul(c[0], layout(a)),
        lambda a, c: linear(layout(a), a, c[0]),
    )
    a, c = f32(4, 4), f32(4, 4).mT
    real = [call(a, c) for call in calls]
    with FakeTensorMode() as mode:
        fake = [call(mode.from_tensor(a), mode.from_tensor(c)) for call in calls]
    for r, f in zip(real, fake, strict=True):
        assert (r.shape, r.stride(), r.dtype, r.device) == (f.shape, f.stride(), f.dtype, f.device)
        assert r.is_contiguous()


# ---- derivatives


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_gradients_of_both_orders(shapes) -> None:
    a, b, c = operands(shapes)
    inputs = [t for t in (a, b, c) if t is not None]
    beta = 0.0 if c is None else -2.0
    call = lambda a, b, c=None: sgemm(0.5, a, b, beta, c)  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_gradients_in_forward_mode_and_of_forward_over_reverse() -> None:
    inputs = operands(SHAPES["a linear layer"])
    call = lambda a, b, c: sgemm(0.5, a, b, -2.0, c)  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(call, inputs, check_fwd_over_rev=True)


def test_gradients_of_complex_operands() -> None:
    a, b = (torch.randn(3, 3, dtype=torch.complex128, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: sgemm(0.5, a, b, 2.0, a), (a, b))
    assert torch.autograd.gradcheck(lambda a, b: matmul(a.mT, b.mH), (a, b))


INCOMING = {
    "sum": lambda y: y.sum(),
    "cat": lambda y: torch.cat([y, 2 * y], -1).square().sum(),
    "expanded": lambda y: (y * torch.ones(()).expand(y.shape)).sum(),
    "transposed": lambda y: (y.mT.contiguous() ** 2).sum(),
    "one column": lambda y: y[..., 1].sum(),
}


@pytest.mark.parametrize("loss", INCOMING.values(), ids=INCOMING)
@pytest.mark.parametrize(
    ("ours", "torchs", "shapes"),
    [
        (matmul, torch.matmul, ((3, 4), (4, 5))),
        (lambda a, b: matmul(a, b.mT), lambda a, b: a @ b.mT, ((2, 3, 4), (5, 4))),
        (lambda a, b: matmul(a.mT, b), lambda a, b: a.mT @ b, ((2, 4, 3), (2, 4, 5))),
        (linear, torch.nn.functional.linear, ((2, 3, 4), (5, 4), (5,))),
        (addmm, torch.addmm, ((5,), (3, 4), (4, 5))),
        (bmm, torch.bmm, ((2, 3, 4), (2, 4, 5))),
        (baddbmm, torch.baddbmm, ((3, 1), (2, 3, 4), (2, 4, 5))),
    ],
    ids=["NN", "NT", "TN", "linear", "addmm", "bmm", "baddbmm"],
)
def test_gradients_are_torchs_whatever_comes_in(ours, torchs, shapes, loss) -> None:
    inputs = operands(shapes, f32)
    mine = torch.autograd.grad(loss(ours(*inputs)), inputs)
    theirs = torch.autograd.grad(loss(torchs(*(t.double() for t in inputs))), inputs)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, **CLOSE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA GPU is here, so that Triton does not interpret")
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_the_kernels_take_what_backward_gives_them(shapes, monkeypatch) -> None:
    def by_kernels(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
        return product("gemm", a, b, alpha=alpha, beta=beta, c=c)

    inputs = [t for t in operands(shapes, f32) if t is not None]
    beta = 2.0 if len(inputs) == 3 else 0.0
    theirs = torch.autograd.grad(sgemm(0.5, *inputs[:2], beta, *inputs[2:]).sum(), inputs)
    monkeypatch.setattr(op, "by_torch", by_kernels)
    mine = torch.autograd.grad(sgemm(0.5, *inputs[:2], beta, *inputs[2:]).sum(), inputs)
    torch.testing.assert_close(mine, theirs, **CLOSE)


def test_only_needed_gradients_are_computed() -> None:
    a, b, c = f32(3, 4), f32(4, 5), f32(3, 5)
    for needs, expected in (((0, 0, 1), 0), ((1, 0, 0), 1), ((0, 1, 0), 1), ((1, 1, 1), 2)):
        inputs = [t.detach().requires_grad_(bool(need)) for t, need in zip((a, b, c), needs, strict=True)]
        y = sgemm(1.0, *inputs[:2], 1.0, inputs[2])
        assert sum(t is not None for t in y.grad_fn.saved_tensors) == expected  # the other operand of each
        with Calls() as calls:
            y.sum().backward()
        assert calls.gemms == expected
        assert [t.grad is not None for t in inputs] == [bool(need) for need in needs]


def test_backward_copies_nothing_and_gradients_lie_as_their_operands() -> None:
    x, weight, bias = f32(2, 3, 4), f32(5, 4), f32(5)
    b, cols = f32(5, 4), f32(4, 3)
    for y, inputs in (
        (linear(x, weight, bias), (x, weight, bias)),
        (matmul(x, b.T), (x, b)),
        (matmul(cols.mT, b.mT), (cols, b)),
    ):
        with Calls() as calls:
            y.sum().backward()
        assert not calls.copies and calls.gemms == 2
        assert all(t.grad.stride() == t.stride() for t in inputs)


class Nothing(torch.autograd.Function):
    """A step whose gradient is undefined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def test_an_undefined_gradient_stays_one_and_computes_nothing() -> None:
    a, b = f32(3, 4), f32(4, 5)
    for product_of in (matmul, torch.matmul):
        result = Nothing.apply(product_of(a, b)).sum()
        with Calls() as calls:
            assert torch.autograd.grad(result, (a, b), allow_unused=True) == (None, None)
        assert not calls.gemms


def test_a_shared_operand_and_batch_are_summed_by_the_product() -> None:
    x, w = f32(6, 3, 4), f32(4, 5)
    y = matmul(x, w)
    with Calls() as calls:
        y.backward(torch.randn_like(y))
    assert calls.gemms == 2 and not calls.of["aten::sum"]


def test_what_is_not_read_has_a_gradient_of_zero() -> None:
    a, b = torch.full((2, 2), float("nan"), requires_grad=True), f32(2, 2)
    assert torch.equal(sgemm(0.0, a, b), torch.zeros(2, 2))
    sgemm(0.0, a, b, 1.0, b).sum().backward()
    assert torch.equal(a.grad, torch.zeros(2, 2)) and torch.equal(b.grad, torch.ones(2, 2))
    y = addmm(a, b, b, beta=0)
    assert not y.isnan().any()
    y.sum().backward()
    assert torch.equal(a.grad, torch.zeros(2, 2))


@pytest.mark.parametrize("precision", ["ieee", "fp32", "tf32"])
def test_backward_keeps_the_precision(precision) -> None:
    seen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is GEMM:
                seen.append(args[5])
            return func(*args, **(kwargs or {}))

    with Seen():
        matmul(f32(3, 4), f32(4, 5), precision=precision).sum().backward()
        assert seen == [precision] * 3
        matmul(f32(3, 4), f32(4, 5))
    assert seen[-1] == "fp32"  # resolved before the operator is called


# ---- torch.compile


def step(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return linear(sgemm(0.5, a, b, 2.0, c), b, c[0, :4]).relu() + matmul(a, b[:, 0])[:, None]


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_is_the_same(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for M in (6, 7, 9):
        inputs = f32(M, 4), f32(4, 5), f32(M, 5)
        y, expected = compiled(*inputs), step(*inputs)
        torch.testing.assert_close(y, expected, **CLOSE)
        g = torch.randn_like(y)
        for x, z in zip(torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True):
            torch.testing.assert_close(x, z, **CLOSE)


def test_a_compiled_graph_holds_the_operator_and_asks_the_switch_when_it_runs() -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    once = prepare(torch.randn(4, 5), "ieee")
    calls = lambda a, b: (matmul(a, b), matmul(a, b, precision="tf32"), matmul(a, once))  # noqa: E731
    with torch.no_grad():
        torch.compile(calls, fullgraph=True, backend=backend)(f32(3, 4), f32(4, 5))
    nodes = [n for n in graphs[0].graph.nodes if "gemm" in str(n.target)]
    assert [n.args[5] for n in nodes] == [None, "tf32", "ieee"]


# ---- vmap


@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (None, None, 0), (1, 2, 0), (0, 0, None)], ids=str
)
@pytest.mark.parametrize(
    "core", [((3, 4), (4, 5), (5,)), ((2, 3, 4), (4, 5), (3, 5)), ((3, 4), (2, 4, 5), ()), ((4,), (4, 5), (5,))]
)
def test_vmap_folds_into_the_batch(core, in_dims) -> None:
    def mapped(shape: tuple[int, ...], dim: int | None) -> Tensor:
        t = torch.randn(shape if dim is None else (6, *shape))
        return t if dim is None else t.movedim(0, min(dim, len(shape)))

    in_dims = tuple(None if dim is None else min(dim, len(shape)) for shape, dim in zip(core, in_dims, strict=True))
    inputs = [mapped(shape, dim) for shape, dim in zip(core, in_dims, strict=True)]
    with Calls() as calls:
        y = torch.vmap(lambda a, b, c: sgemm(0.5, a, b, 2.0, c), in_dims)(*inputs)
    assert calls.gemms == 1
    expected = torch.vmap(lambda a, b, c: 0.5 * (a @ b) + 2.0 * c, in_dims)(*(t.double() for t in inputs))
    torch.testing.assert_close(y.double(), expected, **CLOSE)


def test_vmap_of_the_operator_itself_and_of_a_vmap() -> None:
    a, b = torch.randn(6, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(torch.vmap(lambda a: GEMM(a, b, None, 1.0, 0.0, "ieee"))(a), a[:, None] @ b, **CLOSE)
    nested = torch.vmap(torch.vmap(matmul, (None, 0)), (0, None))(a, b)
    torch.testing.assert_close(nested, a[:, None] @ b, **CLOSE)


def test_only_what_a_gradient_needs_is_kept_and_only_until_then() -> None:
    a, b, weight = torch.randn(3, 4), f32(4, 5), torch.randn(5, 6)
    y = GEMM(GEMM(a, b, None, 1.0, 0.0, None), weight, None, 1.0, 0.0, None)
    kept = StorageWeakRef(a.untyped_storage())
    del a
    assert not kept.expired()
    y.sum().backward()
    assert kept.expired()

    a, b = f32(3, 4) + 0, torch.randn(4, 5)
    y = GEMM(a, b, None, 1.0, 0.0, None)
    kept = StorageWeakRef(a.untyped_storage())  # the gradient of A is a product of B
    del a
    assert y.requires_grad and kept.expired()


def test_results_and_gradients_are_no_views() -> None:
    a, b, w = torch.randn(2, 3, 4), torch.randn(4), torch.randn(2, 3, requires_grad=True)
    with torch.no_grad():
        y = matmul(a, b)
    y.mul_(w)
    x = f32(2, 3, 4)
    (gradient,) = torch.autograd.grad(matmul(x, torch.randn(4, 5)).sum(), x)
    gradient.mul_(torch.randn(4, requires_grad=True))
    assert y.requires_grad and gradient.requires_grad


def test_compiled_autograd() -> None:
    a, b = f32(3, 4), f32(4, 5)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        matmul(a, b).pow(2).sum().backward()
    a_grad, b_grad = torch.autograd.grad((a @ b).pow(2).sum(), (a, b))
    torch.testing.assert_close((a.grad, b.grad), (a_grad, b_grad), **CLOSE)


def test_the_operator_takes_matrices() -> None:
    with pytest.raises(ShapeError, match=r"gemm: a is \(4,\) but b is \(4, 5\); need matrices"):
        GEMM(torch.ones(4), torch.ones(4, 5), None, 1.0, 0.0, None)


# ---- autocast, other dtypes, prepared operands


def test_autocast_leaves_float32(device: str) -> None:
    a, b = f32(3, 4), f32(4, 5)
    expected = matmul(a, b)
    with torch.autocast(device, torch.bfloat16):
        y = matmul(a, b)
        assert y.dtype == torch.float32 and torch.equal(y, expected)
        half = torch.nn.functional.linear(a, b.mT)
        assert half.dtype == torch.bfloat16
        z = linear(half, torch.randn(2, 5), torch.randn(2).bfloat16())  # what came out of autocast goes in
        assert z.dtype == torch.float32
        assert GEMM(half, half.mT, None, 1.0, 0.0, None).dtype == torch.float32
        (y.sum() + z.sum()).backward()
    assert a.grad.dtype == torch.float32
    assert matmul(half, half.mT).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_dtypes_keep_theirs(dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(4, 4).to(dtype) for _ in range(3))
    torch.testing.assert_close(matmul(a, b), a @ b)
    torch.testing.assert_close(
        addmm(c, a, b, beta=0.5, alpha=2), torch.addmm(c, a, b, beta=0.5, alpha=2), rtol=2e-2, atol=2e-2
    )
    assert baddbmm(c, a[None], b[None]).dtype == linear(a, b, c[0]).dtype == bmm(a[None], b[None]).dtype == dtype


def test_integers_sparse_and_nested_tensors_are_multiplied_as_torch_does(device: str) -> None:
    a = torch.randn(4, 4)
    assert torch.equal(matmul(a.to_sparse(), a), a.to_sparse() @ a)
    if device == "cpu":
        n = a.mul(5).long()
        assert torch.equal(matmul(n, n), n @ n) and torch.equal(linear(n, n), n @ n.T)


def test_linear_takes_a_weight_prepared_once() -> None:
    x, weight, bias = f32(2, 3, 4), torch.randn(5, 4), torch.randn(5)
    y = linear(x, prepare(weight.T), bias)
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight, bias), **CLOSE)
    y.sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(2, 3, 4), **CLOSE)


def test_out_takes_a_result_and_keeps_its_strides() -> None:
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    out = torch.empty(4, 4).mT
    assert addmm(c, a, b, out=out) is out and out.stride() == (1, 4)
    torch.testing.assert_close(out, torch.addmm(c, a, b), **CLOSE)
    expected = torch.addmm(c, a, b, beta=2)
    assert addmm(c, a, b, beta=2, out=c) is c
    torch.testing.assert_close(c, expected, **CLOSE)
