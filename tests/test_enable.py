"""`enable`: torch's own products run on this package; `last_plan`: what ran.

Without a GPU the kernels of torch's CPU products are replaced instead, and Triton interprets ours: the same code but
for the name of a dispatch key.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import triton_sgemm
from triton_sgemm import disable, enable, last_plan, matmul, overrides, routing
from triton_sgemm.errors import CaptureError
from triton_sgemm.precision import torch_matmul_precision

ROOT = Path(__file__).parent.parent
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def device(device: str, monkeypatch: pytest.MonkeyPatch):
    """Tensors are created there, and its products are those that `enable` replaces."""
    monkeypatch.setattr(routing, "KEY", device.upper())
    with torch.device(device):
        yield device
    disable()
    assert not replaced(device)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str | None]]:
    """Counts what the package computes for torch, in all threads: the function and the precision."""
    counts: Counter[tuple[str, str | None]] = Counter()

    def product(name: str, *args: Tensor, **options: Any) -> Tensor:
        counts[name, options["precision"]] += 1
        return real(name, *args, **options)

    real = overrides.product
    monkeypatch.setattr(overrides, "product", product)
    return counts


def replaced(device: str) -> bool:
    """Whether torch's kernels on a device are not torch's."""
    kernels = {str(torch.library.get_kernel(f"aten::{name}", device.upper())) for name in overrides.OVERLOADS}
    ours = {"overrides.py" in kernel for kernel in kernels}
    assert len(ours) == 1, kernels
    return ours.pop()


def f32(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


# ---- what is served


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


CALLS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], set[str]]] = {
    "mm": (torch.mm, ((5, 7), (7, 3)), {"mm"}),
    "mm of views": (lambda a, b: torch.mm(a.T, b[:, ::2].T), ((7, 5), (3, 14)), {"mm"}),
    "mv": (torch.mv, ((5, 7), (7,)), {"mv"}),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), ((3,), (5, 7), (7, 3)), {"addmm"}),
    "addmm of one number": (torch.addmm, ((), (5, 7), (7, 3)), {"addmm"}),
    "bmm": (torch.bmm, ((2, 5, 7), (2, 7, 3)), {"bmm"}),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=-1), ((5, 1), (2, 5, 7), (2, 7, 3)), {"baddbmm"}),
    "@": (lambda a, b: a @ b, ((5, 7), (7, 3)), {"mm"}),
    "@ of batches": (lambda a, b: a @ b, ((2, 1, 5, 7), (3, 7, 3)), {"bmm"}),
    "matmul of a vector": (torch.matmul, ((7,), (7, 3)), {"mm"}),
    "matmul by a vector": (torch.matmul, ((2, 5, 7), (7,)), {"mv"}),
    "linear": (F.linear, ((2, 5, 7), (3, 7), (3,)), {"addmm"}),
    "linear without a bias": (F.linear, ((2, 5, 7), (3, 7)), {"mm"}),
    "linear of a vector": (F.linear, ((7,), (3, 7), (3,)), {"mm", "mv", "addmm"}),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((2, 5, 7), (2, 3, 7)), {"bmm"}),
    "attention": (attention, ((1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3)), {"bmm"}),
    "in place": (lambda c, a, b: (c + 0).addmm_(a, b), ((5, 3), (5, 7), (7, 3)), {"addmm"}),
    "batches in place": (lambda c, a, b: (c + 0).baddbmm_(a, b), ((2, 5, 3), (2, 5, 7), (2, 7, 3)), {"baddbmm"}),
}


@pytest.mark.parametrize(("call", "shapes", "expected"), CALLS.values(), ids=CALLS)
def test_products_are_served_forward_and_backward(call, shapes, expected, ran) -> None:
    inputs = [f32(*shape) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    of_exact = call(*exact)
    with enable("ieee"):
        y = call(*inputs)
        assert ran and {name for name, _ in ran} <= expected
        torch.testing.assert_close(y.double(), of_exact, **CLOSE)
        ran.clear()
        gradients = torch.autograd.grad(y.square().sum(), inputs)
    assert sum(ran.values()) >= (1 if expected == {"mv"} else 2) and {p for _, p in ran} == {"ieee"}
    for mine, theirs in zip(gradients, torch.autograd.grad(of_exact.square().sum(), exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mm", "mv", "addmm", "bmm", "baddbmm"])
def test_results_are_written_where_out_says(name: str, ran) -> None:
    _, shapes, _ = CALLS[name]
    inputs = [torch.randn(shape) for shape in shapes]
    exact = getattr(torch, name)(*(t.double() for t in inputs))
    out = torch.full(exact.shape[::-1], float("nan")).permute(*reversed(range(exact.ndim)))
    strides = out.stride()
    with enable():
        assert getattr(torch, name)(*inputs, out=out) is out
    torch.testing.assert_close(out.double(), exact, **CLOSE)
    assert out.stride() == strides and ran == {(name, None): 1}


def test_bits_are_those_of_matmul_and_the_model_needs_no_change(ran, device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    x = torch.randn(6, 24)
    with enable("ieee"), torch.inference_mode():
        y = model(x)
    a, b = model[0], model[2]
    hidden = triton_sgemm.linear(x, a.weight, a.bias, precision="ieee").relu()
    expected = triton_sgemm.linear(hidden, b.weight, b.bias, precision="ieee")
    assert ran == {("addmm", "ieee"): 2}
    torch.testing.assert_close(y, expected, rtol=0 if device == "cuda" else 1e-5, atol=0 if device == "cuda" else 1e-5)


def test_autograd_notices_what_was_overwritten() -> None:
    saved, w = torch.randn(4, 4), f32(4, 4)
    with enable():
        loss = (w * saved).sum()
        saved.addmm_(saved.clone(), saved.clone())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# ---- what is left alone


def test_other_dtypes_keep_their_kernels_bit_for_bit(ran, device: str) -> None:
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.complex64]
    operands = [torch.randn(2, 8, 8).to(dtype) for dtype in dtypes]
    if device == "cpu":
        operands.append(torch.randint(9, (2, 8, 8)))
    calls = lambda t: (t @ t, t[0] @ t[1], torch.addmm(t[0, 0], t[0], t[1]), F.linear(t, t[0]), t[0] @ t[0, 0])  # noqa: E731
    expected = [calls(t) for t in operands]
    with enable():
        results = [calls(t) for t in operands]
        torch.testing.assert_close(results, expected, rtol=0, atol=0)
        with torch.autocast(device, torch.bfloat16):
            assert (f32(4, 4) @ f32(4, 4)).dtype == torch.bfloat16
        sparse = torch.eye(4).to_sparse()
        assert torch.equal(sparse @ torch.ones(4, 4), torch.ones(4, 4))
        assert torch.equal(torch.ones(7).dot(torch.ones(7)), torch.tensor(7.0))
        torch.addmm(torch.ones(3, 3).cfloat(), torch.ones(3, 3).cfloat(), torch.ones(3, 3).cfloat(), alpha=1j)
    assert not ran


@pytest.mark.gpu
def test_cpu_tensors_are_not_touched(ran) -> None:
    a = torch.randn(5, 5, device="cpu")
    expected = a @ a
    with enable():
        assert torch.equal(a @ a, expected) and not ran
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(a, a.cuda())


WRONG = {
    "inner sizes": lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
    "no matrix": lambda: torch.mm(torch.ones(3), torch.ones(3, 2)),
    "batch sizes": lambda: torch.bmm(torch.ones(1, 2, 3), torch.ones(4, 3, 2)),
    "a bias too long": lambda: torch.addmm(torch.ones(3), torch.ones(2, 3), torch.ones(3, 2)),
    "a bias too deep": lambda: torch.addmm(torch.ones(1, 1, 2), torch.ones(2, 3), torch.ones(3, 2)),
    "a complex factor": lambda: torch.addmm(torch.ones(2), torch.ones(2, 3), torch.ones(3, 2), alpha=1j),
    "dtypes": lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2).double()),
    "dtype of out": lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2), out=torch.ones(2, 2).long()),
    "vector": lambda: torch.mv(torch.ones(2, 3), torch.ones(2)),
    "in place of fewer": lambda: torch.ones(2).addmm_(torch.ones(2, 3), torch.ones(3, 2)),
    "overlap": lambda: torch.ones(1).expand(2, 2).addmm_(torch.ones(2, 3), torch.ones(3, 2)),
}


def error(call: Callable[[], Any]) -> tuple[type, str] | None:
    try:
        call()
    except Exception as e:
        return type(e), str(e)
    return None


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_errors_are_torchs(call, device: str) -> None:
    theirs = error(call)
    assert theirs or device == "cuda"  # there torch need not look for overlap
    with enable():
        assert error(call) == theirs


def test_an_out_of_another_shape_is_resized_by_torch() -> None:
    out = torch.empty(0)
    with enable():
        torch.mm(torch.ones(2, 3), torch.ones(3, 2), out=out)
    assert torch.equal(out, torch.full((2, 2), 3.0))


def test_modes_subclasses_and_transforms_see_torchs_functions_only(ran) -> None:
    seen = []

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Sub(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    a, b, c, w = torch.randn(3, 5, 4), torch.randn(4, 2), torch.randn(3, 4, 2), f32(4, 2)
    with enable():
        with Seen():
            y = torch.mm(a[0], w)
            torch.autograd.grad(y, w, y)
        assert seen == ["__getitem__", "mm", "grad"] and ran.total() == 2
        seen.clear()
        y = torch.mm(w.mT, b.as_subclass(Sub)).as_subclass(Tensor)
        torch.autograd.grad(y, w, y)  # multiplies by the subclass again
        assert seen == ["mm"] and ran.total() == 4
        mapped = torch.vmap(torch.mm, (0, None))(a, b)
        jacobian = torch.func.jacrev(torch.mm)(a[0], b)
        assert make_fx(torch.mm)(a[0], b).code.count("torch.ops.aten.mm.default") == 1
        served = ran.total()
        with FakeTensorMode() as mode:
            fakes = mode.from_tensor(a), mode.from_tensor(c)
            assert torch.bmm(*fakes).shape == (3, 5, 2) and ran.total() == served
    torch.testing.assert_close(mapped, a @ b, **CLOSE)
    torch.testing.assert_close(jacobian, torch.func.jacrev(torch.mm)(a[0], b), **CLOSE)


CODE = """
import sys, types, unittest
try:
    import expecttest
except ImportError:  # torch's test helpers derive a class from its TestCase, which nothing here uses
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False)
import torch
from torch.testing._internal.common_methods_invocations import op_db
from triton_sgemm import enable, routing

device = sys.argv[1]
routing.KEY = device.upper()
torch.manual_seed(0)
NAMES = ("matmul", "mm", "mv", "bmm", "addmm", "baddbmm", "nn.functional.linear", "einsum")
for info in op_db:
    if info.name not in NAMES or info.variant_test_name:
        continue
    count = 0
    for sample in info.sample_inputs(device, torch.float32, requires_grad=True):
        args = (sample.input, *sample.args)
        tensors = (t for arg in args for t in (arg if isinstance(arg, (list, tuple)) else [arg]))
        differentiable = [t for t in (*tensors, *sample.kwargs.values()) if isinstance(t, torch.Tensor)]
        def both():
            y = info.op(*args, **sample.kwargs)
            return y, y.stride(), torch.autograd.grad(y, differentiable, torch.ones_like(y), allow_unused=True)
        theirs = both()
        with enable():
            mine = both()
        where = lambda text: f"{info.name} {sample}: {text}"
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4, msg=where)
        count += 1
    for wrong in info.error_inputs(device) if info.error_inputs_func else ():
        sample = wrong.sample_input
        with enable():
            try:
                info.op(sample.input, *sample.args, **sample.kwargs)
            except Exception as e:
                assert isinstance(e, wrong.error_type), where(repr(e))
            else:
                raise AssertionError(f"{info.name} {sample} did not raise")
    print(info.name, count)
"""


@pytest.mark.slow
def test_torchs_own_samples(device: str) -> None:
    # in a process of its own: importing torch's test helpers sets global flags
    done = subprocess.run([sys.executable, "-c", CODE, device], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8 and not re.search(" 0$", done.stdout, re.M), done.stdout


# ---- scope


def multiply() -> None:
    torch.mm(torch.ones(3, 4), torch.ones(4, 5))


def test_the_innermost_precision_wins_and_the_outer_comes_back(ran, device: str) -> None:
    def now() -> str | None:
        ran.clear()
        multiply()
        assert replaced(device) == bool(ran)
        ((_, precision),) = ran or {("", "torch's")}
        return precision

    assert now() == "torch's"
    with enable("ieee"):
        assert now() == "ieee"
        with enable():
            assert now() is None
            with enable("tf32"):
                assert now() == "tf32"
            assert now() is None
        assert now() == "ieee"
    assert now() == "torch's"

    first, second = enable("ieee"), enable("tf32")
    first.disable()  # not the last one
    assert now() == "tf32"
    first.disable()
    assert now() == "tf32"
    second.disable()
    assert now() == "torch's"
    with first:  # on again
        assert now() == "ieee"
    assert now() == "torch's"


def test_one_object_opens_blocks_in_blocks(device: str) -> None:
    both = enable("ieee")
    with both:
        with both:
            assert replaced(device)
        assert replaced(device)
    assert not replaced(device)


@pytest.mark.parametrize("failing", ["triton_sgemm.routing.Overrides", "triton_sgemm.inductor.Installed"])
def test_an_enabling_that_fails_leaves_nothing(failing: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    with monkeypatch.context() as patched:
        patched.setattr(failing, lambda key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            enable()
    assert not replaced(device)
    assert config.post_grad_custom_pre_pass is None  # it may have been set before what fails
    with enable():
        assert replaced(device)
    assert not replaced(device)


def test_replacing_that_fails_half_way_puts_back(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = torch.library.get_kernel, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args)

    switch = enable()
    switch.disable()
    with monkeypatch.context() as patched:
        patched.setattr(torch.library, "get_kernel", failing)
        with pytest.raises(KeyboardInterrupt), switch:
            pass
    assert not replaced(device)
    with switch:
        assert replaced(device)
    assert not replaced(device)


@pytest.mark.parametrize("error", [CaptureError, ValueError, torch.OutOfMemoryError])
def test_what_cannot_be_done_here_is_done_by_torch(error, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(*args: Any, **options: Any) -> Tensor:
        raise error("not here")

    monkeypatch.setattr(overrides, "product", product)
    a, out = torch.randn(3, 3), torch.empty(3, 3)
    expected = torch.mm(a, a)
    with enable():
        assert torch.equal(torch.mm(a, a), expected)
        if error is torch.OutOfMemoryError:  # a part of `out` may have been written
            with pytest.raises(error):
                torch.mm(a, a, out=out)
        else:
            assert torch.equal(torch.mm(a, a, out=out), expected)


def test_disable_ends_every_enabling(ran, device: str) -> None:
    enable()
    with enable("ieee"):
        disable()
        multiply()
        assert not replaced(device)
    disable()
    multiply()
    assert not ran and not replaced(device)


def test_an_exception_ends_it_and_an_unknown_precision_begins_nothing(device: str) -> None:
    with pytest.raises(ZeroDivisionError), enable():
        _ = 1 / 0
    assert not replaced(device)
    with pytest.raises(ValueError, match="enable: precision is 'fp16'; use None or one of 'ieee'"):
        enable("fp16")
    assert not replaced(device)


def in_thread(call: Callable[[], Any]) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    thread.join()
    return result[0]


def test_all_threads_are_served_and_each_knows_its_last_plan(ran, device: str) -> None:
    def other() -> Any:
        before = last_plan()
        with torch.device(device):
            torch.mm(torch.ones(8, 16), torch.ones(16, 32))
        return before, last_plan()

    multiply()
    with enable():
        multiply()
        before, after = in_thread(other)
        mine = last_plan()
        switch = in_thread(lambda: enable("ieee"))  # by another thread, for this one too
        multiply()
        switch.disable()
    assert before is None and after.shape == (8, 32, 16) and mine.shape == (3, 5, 4)
    assert ran == {("mm", None): 2, ("mm", "ieee"): 1}


def test_the_switch_of_torch_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    module = sys.modules["triton_sgemm.product"]
    real = module._recipe
    monkeypatch.setattr(module, "_recipe", lambda *args: (chosen.append(args[-2]), real(*args))[1])
    with enable():
        multiply()
        for switch in ("ieee", "tf32"):
            with torch_matmul_precision(switch):
                multiply()
        multiply()
    assert chosen == ["fp32", "ieee", "tf32", "fp32"]


# ---- last_plan


def test_last_plan_tells_what_ran_and_why() -> None:
    assert in_thread(last_plan) is None
    with enable("ieee"):
        torch.matmul(torch.ones(2, 6, 8), torch.ones(8, 20))
        name, why, shape = told = last_plan()
        assert re.match(r"(dot|fma|rows)_\w+", name) and why and shape == (12, 20, 8)  # the batch is rows of a taller A
        torch.mm(torch.ones(0, 8), torch.ones(8, 20))  # nothing to launch
        assert last_plan() == told
        torch.bmm(torch.ones(3, 6, 8), torch.ones(3, 8, 20))
        assert last_plan().shape == (3, 6, 20, 8)


@pytest.mark.gpu
def test_last_plan_is_matmuls_too() -> None:
    matmul(torch.ones(512, 256), torch.ones(256, 128), precision="ieee")
    assert last_plan().shape == (512, 128, 256)


# ---- torch.compile


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing was compiled before, in this process or another."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(torch.nn.Module):
    """Two layers, attention by products, and a bias added to batches: all four of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(24, 32), torch.nn.Linear(32, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        scores = torch.baddbmm(x[:, :1, :1], hidden, hidden.mT, beta=0.5, alpha=0.1).softmax(-1)
        return self.last(torch.bmm(scores, hidden))


def step(model: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    y = model(inputs[0])
    return y, *torch.autograd.grad(y.square().sum(), inputs)


def assert_right(results: tuple[Tensor, ...], model: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
    exact = Model().double()
    exact.load_state_dict(model.state_dict())
    x = inputs[0].detach().double().requires_grad_()
    for mine, theirs in zip(results, step(exact, (x, *exact.parameters())), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


PRODUCTS = 4 + 8  # forward, and the gradients of both operands of each


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", [None, pytest.param("max-autotune-no-cudagraphs", marks=pytest.mark.gpu)])
def test_compiled_code_follows_forward_and_backward(mode: str | None, ran) -> None:
    model = Model()
    inputs = (f32(3, 5, 24), *model.parameters())
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    with enable():
        step(compiled, inputs)  # compiled, and this once
    for precision in ("ieee", None):
        ran.clear()
        with enable(precision):
            assert_right(step(compiled, inputs), model, inputs)
        assert ran == {(name, precision): ran[name, precision] for name in ("mm", "addmm", "bmm", "baddbmm")}
        assert ran.total() == PRODUCTS
    ran.clear()
    assert_right(step(compiled, inputs), model, inputs)
    assert not ran


@pytest.mark.usefixtures("fresh")
def test_what_was_compiled_before_follows_too(ran) -> None:
    layer = torch.nn.Linear(24, 8)
    inputs = (f32(5, 24), *layer.parameters())
    compiled = torch.compile(layer, fullgraph=True)
    expected = step(compiled, inputs)
    assert not ran
    with enable():
        torch.testing.assert_close(step(compiled, inputs), expected, rtol=1e-4, atol=1e-4)
    assert ran == {("addmm", None): 1, ("mm", None): 2}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ was not found, which compiles C++ wrappers")
def test_a_cpp_wrapper_which_calls_torch_past_the_dispatcher_follows(ran) -> None:
    from torch._inductor import config

    layer = torch.nn.Linear(24, 8)
    inputs = (f32(5, 24), *layer.parameters())
    compiled = torch.compile(layer, fullgraph=True)
    # an option of torch.compile would be gone when the backward is compiled (pytorch/pytorch#178845)
    with config.patch(cpp_wrapper=True):
        with enable():
            step(compiled, inputs)  # compiled, and perhaps tuned
            ran.clear()
            results = step(compiled, inputs)
        assert ran == {("addmm", None): 1, ("mm", None): 2}
        torch.testing.assert_close(results, step(compiled, inputs), rtol=1e-4, atol=1e-4)
        assert ran.total() == 3


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_inductor(dynamic: bool, ran) -> None:
    model = Model()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with enable("ieee"):
        for rows in (4, 5):
            inputs = (f32(3, rows, 24), *model.parameters())
            assert_right(step(compiled, inputs), model, inputs)
    assert ran.total() == 2 * PRODUCTS


def products(graph: torch.fx.Graph) -> Counter[str]:
    return Counter(str(n.target) for n in graph.nodes if "mm" in str(n.target) or "product" in str(n.target))


def test_the_pass_hides_float32_products_on_the_device_only() -> None:
    from triton_sgemm.inductor import LeaveToTorch

    def calls(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        bias, batch = a[0], a.expand(2, 4, 4)
        return (
            torch.mm(a, a),
            torch.addmm(bias, a, a, beta=2, alpha=0.5),
            torch.bmm(batch, batch),
            torch.baddbmm(bias, batch, batch, alpha=3),
            torch.mm(b, b),
        )

    a, b = torch.randn(4, 4), torch.randn(4, 4, dtype=torch.float64)
    traced = make_fx(calls, tracing_mode="fake")(a, b)
    assert products(traced.graph).total() == 5
    LeaveToTorch("meta")(traced.graph)
    assert products(traced.graph).total() == 5 and "product" not in str(traced.graph)
    LeaveToTorch(a.device.type)(traced.graph)
    traced.graph.lint()
    traced.recompile()
    assert products(traced.graph) == {"triton_sgemm.torch_product.default": 4, "aten.mm.default": 1}
    torch.testing.assert_close(traced(a, b), calls(a, b), rtol=0, atol=0)


def test_the_operator_in_compiled_graphs() -> None:
    from triton_sgemm import inductor

    assert inductor.NAME == "triton_sgemm::torch_product"
    a, batch = torch.randn(4, 5), torch.randn(2, 5, 4)
    for args, options in (
        ((None, a, a.T), {}),
        ((a[0, :4], a, a.T), {"beta": 2, "alpha": 0.5}),
        ((None, batch, batch.mT), {}),
        ((a[0], batch, batch.mT), {"beta": -1.0}),
    ):
        torch.library.opcheck(torch.ops.triton_sgemm.torch_product.default, args, options)


def test_a_pass_of_the_users_runs_first_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from triton_sgemm.inductor import LeaveToTorch

    seen = []

    class Mine(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.append(products(graph))

        def uuid(self) -> Any:
            return "mine"

    mine = Mine()
    with config.patch(post_grad_custom_pre_pass=mine):
        with enable():
            now = config.post_grad_custom_pre_pass
            assert now is not mine
            graph = make_fx(torch.mm, tracing_mode="fake")(torch.ones(2, 2), torch.ones(2, 2)).graph
            for each in now if isinstance(now, tuple) else [now]:
                each(graph)
            assert seen == [{"aten.mm.default": 1}] and products(graph) == {"triton_sgemm.torch_product.default": 1}
            with enable("ieee"):
                assert config.post_grad_custom_pre_pass is now
        assert config.post_grad_custom_pre_pass is mine
        with enable():
            config.post_grad_custom_pre_pass = other = Mine()
        assert config.post_grad_custom_pre_pass is other
    assert config.post_grad_custom_pre_pass is None
    own = LeaveToTorch("cuda").uuid()
    assert own and own != LeaveToTorch("cpu").uuid() and LeaveToTorch("cuda", mine).uuid() == (*own, "mine")
    assert LeaveToTorch("cuda", print).uuid() is None  # graphs are not cached


def test_what_is_packaged_for_elsewhere_is_left_alone() -> None:
    from torch._inductor.virtualized import V

    from triton_sgemm.inductor import LeaveToTorch

    a = torch.ones(2, 2)
    graph = make_fx(torch.mm, tracing_mode="fake")(a, a).graph
    with V.set_aot_compilation(True):
        LeaveToTorch(a.device.type)(graph)
    assert products(graph) == {"aten.mm.default": 1}


# ---- on a GPU


OURS = ("dot", "fma", "rows", "parts", "relay", "split", "repair", "rest", "tensor_core")


def kernels(call: Callable[[], Any]) -> set[str]:
    """The names of the kernels that a call runs on the GPU."""
    call()  # warm
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return {e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA}


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.removesuffix("_kernel") in OURS}


def torchs(names: set[str]) -> set[str]:
    return {name for name in names if re.search("gemm|gemv|cutlass|xmma|nvjet|splitK|triton_tem", name, re.I)}


@pytest.mark.gpu
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", ["eager", None, "reduce-overhead", "max-autotune"])
def test_the_profiler_sees_our_kernels_and_no_other_products(mode: str | None) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))
    x = f32(768, 512)
    model = layers if mode == "eager" else torch.compile(layers, fullgraph=True, mode=mode)

    def train() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        model(x).square().sum().backward()
        x.grad = None
        layers.zero_grad()

    for precision in ("ieee", "fp32"):
        if mode not in ("eager", None):
            torch._dynamo.reset()  # what a CUDA graph replays was decided when it was captured
            model = torch.compile(layers, fullgraph=True, mode=mode)
        with enable(precision):
            for _ in range(3):
                train()
            names = kernels(train)
        assert ours(names) and not torchs(names), names
        assert precision == "fp32" or "tensor_core_kernel" not in names
    if mode in ("eager", None):
        names = kernels(train)
        assert torchs(names) and not ours(names), names


@pytest.mark.gpu
def test_bits_on_a_gpu_are_torchs_before_and_after() -> None:
    a, b = torch.randn(300, 500), torch.randn(500, 200)
    for switch in ("tf32", "ieee"):
        with torch_matmul_precision(switch):
            before = a @ b
            with enable("fp32"):
                assert torch.equal(a @ b, matmul(a, b, precision="fp32"))
            with enable():
                assert torch.equal(a @ b, matmul(a, b, precision=switch))
            assert torch.equal(a @ b, before)


@pytest.mark.gpu
def test_a_training_step_is_captured() -> None:
    layer, x = torch.nn.Linear(512, 384), torch.randn(256, 512)
    inputs = tuple(layer.parameters())
    call = lambda: torch.autograd.grad(layer(x).square().sum(), inputs)  # noqa: E731
    stream = torch.cuda.Stream()
    with enable():
        with torch.cuda.stream(stream):
            for _ in range(2):  # warm
                expected = call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = call()
    for each in captured:
        each.fill_(float("nan"))
    names = kernels(graph.replay)  # after the block: what was captured stays
    assert ours(names) and not torchs(names)
    assert all(torch.equal(x, y) for x, y in zip(captured, expected, strict=True))
