"""A launch made once and run on other tensors: the right addresses and factors, and the bits of one made anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton import knobs

from bench.catalog import VARIANTS
from bench.measure import Operands
from bench.suites import Case
from triton_sgemm import prepare, sgemm
from triton_sgemm.execute import execute
from triton_sgemm.launch import Launch
from triton_sgemm.product import _recipe, product
from triton_sgemm.recorded import Alpha, Beta, Recorded

CPU = torch.device("cpu")


class Kernel:
    """Stands in for a kernel and for what it compiles to: it keeps the arguments of each start."""

    __name__ = "kernel"
    function, packed_metadata = 7, (1, 2)
    arg_names = ("src", "desc", "alpha", "beta", "dst", "n", "BLOCK")

    def __init__(self) -> None:
        self.started: list[tuple[Any, ...]] = []
        self.by_triton = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*args: Any, stream: int | None = None, **options: Any) -> Kernel:
            self.started.append((grid[0], *args, *options.values()))
            self.by_triton += 1
            return self

        return start

    def run(self, x: int, y: int, z: int, stream: int, function: int, metadata: Any, *rest: Any) -> None:
        assert (y, z, stream, function, metadata) == (1, 1, 0, self.function, self.packed_metadata)
        assert rest[:3] == (None, None, None)  # no hooks, and nothing for them
        self.started.append((x, *rest[3:]))


class Described:
    def __init__(self, base: Tensor) -> None:
        self.base = base


def test_addresses_and_factors_follow_the_call() -> None:
    kernel = Kernel()
    a, room = torch.arange(8.0), torch.ones(16)
    first = Launch(kernel, 2, (a, Described(room), Alpha(1.0), 1.0, room[4:], 8), {"BLOCK": 32}, clears=(room[8:],))
    nothing = Launch(kernel, 0, ())
    last = Launch(kernel, 3, (room[4:], Described(a), 1.0, Beta(1.0), a, 8), {"BLOCK": 64}, (first, nothing))
    recorded = Recorded(last, [a, None], CPU)
    assert recorded.rooms == (64,) and len(kernel.started) == 2
    assert (room[8:] == 0).all() and (room[:8] == 1).all()

    other = torch.zeros(8)
    recorded._run([other, None], 3.0, 0.5)
    (n, src, desc, alpha, beta, dst, size, block), (m, src_2, desc_2, alpha_2, beta_2, dst_2, _, block_2) = (
        kernel.started[2:]
    )
    assert (n, alpha, beta, size, block) == (2, 3.0, 1.0, 8, 32) and (m, alpha_2, beta_2, block_2) == (3, 1.0, 0.5, 64)
    assert src == dst_2 == other.data_ptr() and desc_2.base is other
    assert dst == src_2 == desc.base.data_ptr() + 16 and desc.base.nbytes == 64
    assert dst != room.data_ptr() + 16


def test_hooks_of_triton_are_called_where_there_are_any(monkeypatch) -> None:
    kernel = Kernel()
    a = torch.zeros(8)
    recorded = Recorded(Launch(kernel, 1, (a, None, 1.0, 1.0, a, 8), {"BLOCK": 32}), [a], CPU)
    recorded._run([a], 1.0, 0.0)
    assert kernel.by_triton == 1
    for name in ("launch_enter_hook", "launch_exit_hook"):
        before = kernel.by_triton
        with monkeypatch.context() as patched:
            patched.setattr(getattr(knobs.runtime, name), "calls", [print])
            recorded._run([a], 1.0, 0.0)
        assert kernel.by_triton == before + 1
        recorded._run([a], 1.0, 0.0)
        assert kernel.by_triton == before + 1
    assert all(started == kernel.started[1] for started in kernel.started[1:])


@pytest.mark.parametrize("case", [Case(128, 128, 256), Case(96, 160, 256, layout="TT"), Case(64, 64, 128, 3)], ids=str)
def test_the_bench_replays_every_variants_launches(case: Case, monkeypatch) -> None:
    """On operands that only look as if they were on a GPU, with kernels that do nothing."""
    kernels: list[Kernel] = []
    monkeypatch.setattr(Launch, "start", lambda launch, device: kernels.append(Kernel()) or kernels[-1])
    x = Operands.random(case, "cpu")
    variants = [v for v in VARIANTS.values() if v.launch and not v.why_not(x.problem)]
    assert variants
    for v in variants:
        kernels.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Operands, "on_gpu", True)
            call = x.ready(v)
        call.func.__self__._run(*call.args)  # without torch.cuda's current device
        started = [arg for kernel in kernels for one in kernel.started for arg in one]
        assert kernels and not any(isinstance(arg, Tensor) for arg in started), v.name
        assert {t.data_ptr() for t in (x.a, x.b, x.out)} <= {arg for arg in started if isinstance(arg, int)}, v.name


def test_a_view_of_memory_that_two_tensors_share_is_refused() -> None:
    a = torch.zeros(8)
    alias = a.detach()
    with pytest.raises(RuntimeError, match="share"):
        Recorded(Launch(Kernel(), 1, (a[2:], None, 1.0, 1.0, a, 8), {"BLOCK": 32}), [a, alias], CPU)
    with pytest.raises(RuntimeError, match="starts 8 bytes into"):
        Recorded(Launch(Kernel(), 1, (a, Described(a[2:]), 1.0, 1.0, a, 8), {"BLOCK": 32}), [a], CPU)


def test_empty_tensors_have_no_memory_to_share() -> None:
    a, b, room = torch.empty(5, 0), torch.empty(0, 1), torch.empty(0)
    recorded = Recorded(Launch(Kernel(), 1, (room, None, 1.0, 1.0, a, 8), {"BLOCK": 32}), [a, b], CPU)
    assert recorded.rooms == (0,)
    recorded._run([torch.empty(5, 0), torch.empty(0, 1)], 1.0, 0.0)


def randn(*shape: int, offset: int = 0, turned: bool = False, gap: int = 0) -> Tensor:
    *batch, rows, cols = shape
    if turned:
        return randn(*batch, cols, rows, offset=offset, gap=gap).mT
    size = rows * (cols + gap)
    for n in batch:
        size *= n
    return torch.randn(size + offset, device="cuda")[offset:].view(*batch, rows, cols + gap)[..., :cols]


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "dot": ((64, 64), (64, 64), {}, "ieee"),
    "fma": ((1024, 512), (512, 2048), {}, "ieee"),
    "fma, moved": ((1030, 514), (514, 2050), {}, "ieee"),
    "columns": ((512, 256), (256, 384), {"turned": True}, "ieee"),
    "odd steps": ((200, 300), (300, 260), {"gap": 3, "offset": 1}, "ieee"),
    "rows": ((1, 4096), (4096, 4096), {}, "ieee"),
    "parts": ((64, 32768), (32768, 64), {}, "ieee"),
    "tensor cores": ((1024, 1024), (1024, 1024), {}, "fp32"),
    "tensor cores, columns": ((1000, 1030), (1030, 1100), {"turned": True}, "fp32"),
    "tensor cores, one plane": ((1024, 1024), (1024, 1024), {"offset": 1}, "tf32"),
    "tensor cores, K cut": ((256, 32768), (32768, 200), {}, "fp32"),
    "a batch": ((8, 512, 512), (512, 512), {}, "fp32"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_a_launch_made_anew(name: str) -> None:
    a_shape, b_shape, how, precision = CASES[name]
    for alpha, beta in ((1.0, 0.0), (-0.5, 0.0), (2.0, 0.25), (3.0, -1.5)):
        a, b = randn(*a_shape, **how), randn(*b_shape, **how)
        c = torch.randn((*a_shape[:-1], b_shape[-1]), device="cuda")
        given: dict[str, Any] = {"alpha": alpha, "beta": beta, "c": c if beta else None, "precision": precision}
        result = product("matmul", a, b, **given)
        execution = _recipe_of(a, b, **given)
        expected = torch.full_like(c, float("nan"))
        p = type(execution.p)(**{**vars(execution.p), "alpha": alpha, "beta": beta})
        execute(execution.plan, p, a, b, c if beta else None, expected)
        assert torch.equal(result, expected)
        product("matmul", a, b, **given | {"out": c})  # beside its C, and in its place
        assert torch.equal(c, expected)


def _recipe_of(a: Tensor, b: Tensor, alpha: float, beta: float, c: Tensor | None, precision: str) -> Any:
    lies = [None if t is None else (t.shape, t.stride()) for t in (a, b, c, None)]
    found = _recipe.__wrapped__("matmul", ("a", "b", "c"), *lies, alpha != 0, beta != 0, None, 0, precision, False)
    return found[1]


@pytest.mark.gpu
def test_prepared_operands_take_turns() -> None:
    a = torch.randn(1024, 1024, device="cuda")
    matrices = [torch.randn(1024, 1024, device="cuda") for _ in range(3)]
    for b in matrices * 2:
        assert torch.equal(sgemm(2.0, a, prepare(b, "fp32")), sgemm(2.0, a, b, precision="fp32"))


@pytest.mark.gpu
def test_tensors_at_odd_addresses_and_at_the_end_of_their_memory() -> None:
    whole = torch.randn(130 * 131 + 8, device="cuda")
    for offset in (0, 1, 2, 4, 7):
        a = whole[offset : offset + 130 * 131].view(130, 131)
        b = torch.randn(131, 130, device="cuda").mT.contiguous().mT
        for _ in range(2):
            error = (product("matmul", a, b, precision="ieee") - (a.double() @ b.double())).abs().max()
            assert error < 1e-4


@pytest.mark.gpu
def test_a_graph_captures_what_was_called_before_and_nothing_else() -> None:
    a, out = torch.randn(96, 160, device="cuda"), torch.empty(96, 96, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="run it once before"):
        product("matmul", a, a.mT, out=out)
    product("matmul", a, a.mT, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product("matmul", a, a.mT, out=out)
    a.normal_()
    graph.replay()
    assert (out - a @ a.mT).abs().max() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("shapes", [((5, 0), (0, 1)), ((5, 0), (0,)), ((0,), (0,)), ((3, 5, 0), (3, 0, 1))])
def test_products_of_nothing(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.empty(shape, device="cuda") for shape in shapes)
    for _ in range(2):
        assert torch.equal(product("matmul", a, b), torch.matmul(a, b))


@pytest.mark.gpu
def test_no_memory_is_kept() -> None:
    a = torch.randn(2048, 2048, device="cuda")
    product("matmul", a, a, precision="fp32")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        product("matmul", a, a, precision="fp32")
    assert torch.cuda.memory_allocated() == before
