"""Activations in a product's last step: torch's functions, by every algorithm, and torch's own where it must be."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product as pairs
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_sgemm import execute as executing
from triton_sgemm import linear, prepare
from triton_sgemm.algorithms import dot, fma, rows, split, tensor_core
from triton_sgemm.algorithms._activation import ACTIVATIONS
from triton_sgemm.execute import execute, in_panels
from triton_sgemm.plan import Plan
from triton_sgemm.problem import problem
from triton_sgemm.product import product
from triton_sgemm.testing import U, Reference, errors, fp32_bound, guarded, random_bound, reference, tf32_bound

ROOT = Path(__file__).parent.parent
FP32 = tensor_core.TILES[0]
STEEPEST = 1.13  # what an error before an activation can become behind it: gelu's largest slope
named = pytest.mark.parametrize("name", ACTIVATIONS)


def torchs(name: str, x: Tensor) -> Tensor:
    return getattr(torch.nn.functional, name)(x)


def same(name: str, result: Tensor, before: Tensor) -> bool:
    """Whether `result` is torch's activation of `before` to 4 ulps; gelu's formula cancels, torch's too."""
    expected = torchs(name, before)
    scale = (before if name == "gelu" else expected).double().abs()
    finite = expected.isfinite()
    close = ((result.double() - expected.double()).abs() <= 8 * U * scale + 2.0**-148)[finite].all()
    return bool(close) and all(torch.equal(t(result), t(expected)) for t in (torch.isnan, torch.isposinf))


def computed(
    chosen: Plan,
    a: Tensor,
    b: Tensor,
    name: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
) -> Tensor:
    """The product by a plan, into NaN between guard bands."""
    out, whole = guarded((*a.shape[:-1], b.shape[-1]), a.device)
    execute(chosen, problem(a, b, c, out, alpha, beta, name), a, b, c, out)
    assert whole()
    return out


def check(name: str, chosen: Plan, a: Tensor, b: Tensor, bound: float) -> None:
    """Both ways, with C and without: the activation of the kernel's own product, and of float64's."""
    c = torch.randn(*a.shape[:-1], b.shape[-1], device=a.device)
    for given in ((), (-0.5, 2.0, c)):
        result = computed(chosen, a, b, name, *given)
        assert same(name, result, computed(chosen, a, b, None, *given))
        exact = reference(a, b, *given)
        after = Reference(torchs(name, exact.value), exact.scale, exact.depth)
        assert errors(result, after).within(STEEPEST * bound + 8 * U)


@named
def test_every_number_becomes_what_torch_makes_of_it(name: str, device: str) -> None:
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, -88.72, -88.73, -87.0]
    x = torch.cat([torch.linspace(-110, 110, 20_000), torch.randn(5000), torch.tensor(special)]).to(device)
    one = torch.ones(1, 1, device=device)
    assert same(name, product("linear", x[:, None], one, activation=name), x[:, None])


@named
@pytest.mark.parametrize("depth", [700, 96, 32])  # one part, a few, more than are added at a time
def test_dot_and_parts(name: str, depth: int, device: str) -> None:
    a, b = torch.randn(2, 33, 700, device=device), torch.randn(2, 700, 17, device=device)
    for transposed in (False, True):
        check(name, Plan(dot.TILES[-1], "", depth, transposed), a, b, random_bound(700))


@named
def test_a_few_columns(name: str, device: str) -> None:
    for cols in (1, 3):
        tile = next(t for t in rows.TILES if cols <= t.COLS)
        a, b = torch.randn(9, 700, device=device), torch.randn(700, cols, device=device)
        check(name, Plan(tile, "", 700), a, b, random_bound(700))


@named
def test_no_depth_leaves_the_bias(name: str, device: str) -> None:
    a, b, c = torch.empty(5, 0, device=device), torch.empty(0, 7, device=device), torch.randn(7, device=device)
    assert same(name, product("linear", a, b, beta=1.0, c=c, activation=name), c.expand(5, 7))


def test_products_that_differ_in_nothing_else_are_told_apart(device: str) -> None:
    a, b = torch.randn(20, 30, device=device), torch.randn(30, 40, device=device)
    before = product("linear", a, b)
    for name in (*ACTIVATIONS, *ACTIVATIONS):
        assert same(name, product("linear", a, b, activation=name), before)
        assert torch.equal(product("linear", a, b), before)
    out = torch.empty(20, 40, device=device)._neg_view()
    assert same("relu", product("linear", a, b, activation="relu", out=out), before)


CODE = """
import sys, torch
from triton_sgemm.algorithms import fma, tensor_core
from triton_sgemm.problem import problem

x = torch.empty(1024, 1024)
for name in sys.argv[1:]:
    p = problem(x, x, x, x, 1.0, 1.0, name)
    for launch in (fma.launch(p, x, x, x, x, fma.TILES[-1]), tensor_core.launch(p, x, x, x, x, tensor_core.TILES[1])):
        for each in launch.all():
            kernel = each.compile(90)
            print(name, each.kernel.__name__, "ex2" in kernel.asm["ptx"])
"""


@pytest.mark.slow
def test_gluons_kernels_compile() -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", CODE, *ACTIVATIONS], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    lines = set(done.stdout.splitlines())
    for name, kernel in pairs(ACTIVATIONS, ("fma_kernel", "tensor_core_kernel", "rest_kernel")):
        assert f"{name} {kernel} {name != 'relu'}" in lines


# ---- as torch's own function


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    """Where `linear` is called: on the CPU torch computes it."""
    return request.param


def layer(where: str, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(shape, device=where, **options) for shape in ((2, 3, 4), (5, 4), (5,)))  # type: ignore


def expected(name: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torchs(name, torch.nn.functional.linear(x.double(), weight.double(), bias.double()))


CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}


@named
def test_gradients_are_torchs(name: str, where: str) -> None:
    inputs = layer(where, requires_grad=True)
    y = linear(*inputs, activation=name)
    torch.testing.assert_close(y, expected(name, *inputs), **CLOSE)
    mine = torch.autograd.grad(y.square().sum(), inputs)
    theirs = torch.autograd.grad(expected(name, *inputs).square().sum(), inputs)
    for x, z in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, z, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(linear(*inputs, activation=name), y, **CLOSE)


@named
def test_gradients_in_float64(name: str) -> None:
    inputs = layer("cpu", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *inputs: linear(*inputs, activation=name), inputs)


@named
def test_compile_vmap_and_func(name: str, where: str) -> None:
    x, weight, bias = layer(where)
    call = lambda x, weight, bias: linear(x, weight, bias, activation=name)  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    mapped = torch.vmap(call, (0, None, None))
    for each in (call, compiled, mapped):
        torch.testing.assert_close(each(x, weight, bias), expected(name, x, weight, bias), **CLOSE)
    jacobians = [
        torch.func.jacrev(lambda x, f=f: f(x, weight, bias))(x[0]) for f in (call, lambda *t: expected(name, *t))
    ]
    torch.testing.assert_close(*jacobians, **CLOSE)


@named
def test_other_dtypes_and_prepared_weights(name: str, where: str) -> None:
    x, weight, bias = layer(where)
    y = linear(x, prepare(weight.T), bias, activation=name)
    torch.testing.assert_close(y, expected(name, x, weight, bias), **CLOSE)
    half = [t.bfloat16() for t in (x, weight, bias)]
    y = linear(*half, activation=name)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected(name, *half), rtol=3e-2, atol=3e-2, check_dtype=False)


# ---- on a GPU


@pytest.mark.gpu
@named
@pytest.mark.parametrize("tile", fma.TILES, ids=str)
def test_outer_products(name: str, tile: fma.Tile) -> None:
    for M, N, K, depth in ((256, 512, 64, 64), (255, 257, 129, 129), (70, 300, 520, 160)):
        a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
        check(name, Plan(tile, "", depth), a, b, random_bound(K))


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("its wgmma is Hopper's")


@pytest.mark.gpu
@named
@pytest.mark.parametrize("tile", (*tensor_core.TILES, *tensor_core.TF32_TILES), ids=lambda t: t.name)
def test_tensor_cores(name: str, tile: tensor_core.Tile, hopper: None) -> None:
    bound = fp32_bound if tile.TERMS == 3 else tf32_bound
    for M, N, K, depth in ((313, 259, 177, 177), (256, 512, 1024, 1024), (150, 140, 1280, 320)):
        a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
        check(name, Plan(tile, "", depth), a, b, bound(K))


@pytest.mark.gpu
@named
def test_what_tensor_cores_leave(name: str, hopper: None) -> None:
    a, b = torch.randn(300, 200, device="cuda"), torch.randn(200, 400, device="cuda")
    a[3] = 0
    a[3, 0], a[3, 2] = 1, 2.0**-40
    b[0, 5], b[2, 5] = 0, -1.0
    a[200, 3], a[201, 4], b[7, 300] = float("inf"), float("nan"), -float("inf")
    c = torch.randn(300, 400, device="cuda")
    for given, added in (((1.0, 0.0), None), ((1.0, 2.0), c)):
        results = []
        for activation in (None, name):
            out, whole = guarded((300, 400), "cuda")
            p = problem(a, b, added, out, *given, activation)
            share = tensor_core.fallback(p, a, b, added, out, FP32)
            assert whole() and share > 1 / 1000  # marked pieces; without C, one element too
            results.append(out)
        assert same(name, results[1], results[0])
    single = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    out, _ = guarded((300, 400), "cuda")
    share = tensor_core.fallback(problem(*single, None, out, 1.0, 0.0, name), *single, None, out, FP32)
    assert share == 1 / (300 * 400)
    torch.testing.assert_close(out[3, 5], torchs(name, torch.tensor(-(2.0**-40), device="cuda")), rtol=8 * U, atol=0)


@pytest.mark.gpu
@named
def test_panels_keep_it(name: str, hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (torch.randn(*shape, device="cuda") for shape in ((3000, 256), (256, 5000), (3000, 5000)))
    before = computed(Plan(FP32, "", 256), a, b, None, 1.0, 0.5, c)
    whole = split.launch

    def little(sources: list[split.Source], planes: int, spare: int = 0) -> Any:
        if any(s.X > 2600 for s in sources):
            raise torch.OutOfMemoryError("no room")
        return whole(sources, planes, spare)

    monkeypatch.setattr(split, "launch", little)
    in_panels(FP32, problem(a, b, c, c, 1.0, 0.5, name), a, b, c, c)
    assert same(name, c, before)


@pytest.mark.gpu
@named
@pytest.mark.parametrize(
    ("shape", "weight", "precision"),
    [
        ((64, 64), (64, 64), "ieee"),
        ((4, 256, 512), (2048, 512), "ieee"),
        ((1, 4096), (4096, 4096), "ieee"),
        ((64, 32768), (64, 32768), "ieee"),
        ((1024, 1024), (1024, 1024), "fp32"),
        ((1024, 1024), (1024, 1024), "tf32"),
        ((256, 32768), (200, 32768), "fp32"),
    ],
    ids=["dot", "fma", "rows", "parts", "tensor cores", "one plane", "tensor cores, K cut"],
)
def test_a_layer_called_again(
    name: str, shape: tuple[int, ...], weight: tuple[int, ...], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, bias = torch.randn(weight, device="cuda"), torch.randn(weight[0], device="cuda")
    called = []
    run = executing.Execution.run
    monkeypatch.setattr(executing.Execution, "run", lambda self, *args: (called.append(self.p), run(self, *args))[1])
    for _ in range(3):
        x = torch.randn(shape, device="cuda")
        before = linear(x, w, bias, precision=precision)
        assert same(name, linear(x, w, bias, activation=name, precision=precision), before)
        assert [p.activation for p in called[-2:]] == [None, name]
        once = prepare(w.T, precision)
        before = linear(x, once, bias)
        assert same(name, linear(x, once, bias, activation=name), before)
