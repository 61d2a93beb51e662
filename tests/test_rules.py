"""torch.matmul's rules: what is handed to torch, what is refused and how, what a problem is folded to."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import Parameter

import triton_sgemm
from triton_sgemm import (
    DeviceError,
    DtypeError,
    OverlapError,
    ShapeError,
    addmm,
    baddbmm,
    bmm,
    linear,
    matmul,
    prepare,
    sgemm,
)
from triton_sgemm import call as calling
from triton_sgemm import op as operator
from triton_sgemm.device import Gpu
from triton_sgemm.direct import differentiated
from triton_sgemm.direct import plain as is_plain
from triton_sgemm.launch import Launch
from triton_sgemm.plan import Plan, plan
from triton_sgemm.problem import Problem, problem
from triton_sgemm.product import product

H200 = Gpu("NVIDIA H200", 90, 132, 60 << 20, 1980.0)


def f32(*shape: int) -> Tensor:
    return torch.randn(shape)


WRONG = [
    (
        lambda f: f(f32(128, 64), f32(48, 32)),
        ShapeError,
        "a is (128, 64) but b is (48, 32): inner sizes 64 and 48 differ",
    ),
    (lambda f: f(f32(3), f32(4)), ShapeError, "inner sizes 3 and 4 differ; need a (..., M, K) and b (..., K, N)"),
    (lambda f: f(torch.tensor(1.0), f32(4)), ShapeError, "a is () but b is (4,): need 1-D tensors at least"),
    (lambda f: f(f32(2, 4, 5), f32(3, 5, 6)), ShapeError, "batch sizes (2,) and (3,) do not broadcast"),
    (lambda f: f(f32(4, 5), f32(5, 6), out=f32(4, 7)), ShapeError, "out is (4, 7) but the result is (4, 6)"),
    (lambda f: f(f32(4, 5), f32(5, 6), out=f32(6).expand(4, 6)), OverlapError, "out has strides (0, 1)"),
    (lambda f: f(f32(4, 5), f32(5, 6), precision="tf16"), ValueError, "precision is 'tf16'; use None or one of 'ieee'"),
    (
        lambda f: f([[1.0]], f32(1, 1)),
        TypeError,
        "a is of type list; need a torch.Tensor, for instance torch.as_tensor(a)",
    ),
    (lambda f: f(f32(4, 5), f32(5, 6).double()), DtypeError, "a is torch.float32 but b is torch.float64; convert one"),
    (lambda f: f(f32(4, 5), f32(5, 6), out=[1.0]), TypeError, "out is of type list; need a torch.Tensor to write into"),
    (
        lambda f: f(f32(4, 5), f32(5, 6), out=f32(4, 6).double()),
        DtypeError,
        "a is torch.float32 but out is torch.float64; pass an out of torch.float32",
    ),
    (lambda f: f(prepare(f32(4, 5)), f32(5, 6)), TypeError, "a is of type Prepared; need a torch.Tensor"),
    (lambda f: f(f32(4, 5), f32(5, 6).long()), DtypeError, "torch.float32 but b is torch.int64"),
    (lambda f: f(f32(4, 5), f32(5, 6).to("meta")), DeviceError, "a is on cpu but b is on meta; move one"),
    (lambda f: f(f32(4, 5), f32(5, 6), out=torch.empty(4, 6).half()), DtypeError, "out is torch.float16"),
]


WRONG_HERE = [
    (lambda: addmm(f32(3), f32(3, 4), f32(5, 3)), ShapeError, "addmm: mat1 is (3, 4) but mat2 is (5, 3): inner sizes"),
    (lambda: addmm(f32(4), f32(3, 4), f32(4, 5)), ShapeError, "addmm: input is (4,) but the result is (3, 5)"),
    (lambda: addmm(f32(3), f32(2, 3, 4), f32(4, 3)), ShapeError, "need matrices (M, K) and (K, N), or matmul"),
    (lambda: addmm(f32(1), f32(1, 1).long(), f32(1, 1)), DtypeError, "mat1 is torch.int64 but mat2 is torch.float32"),
    (lambda: addmm(*(f32(1, 1).long(),) * 3), DtypeError, "addmm: mat1 is torch.int64; need a floating dtype"),
    (
        lambda: addmm(*(f32(1, 1),) * 3, alpha=f32()),
        TypeError,
        "alpha is of type Tensor; need a number, for instance al",
    ),
    (
        lambda: sgemm("1", f32(1, 1), f32(1, 1)),
        TypeError,
        "sgemm: alpha is of type str; need a number, for instance al",
    ),
    (lambda: baddbmm(*(f32(1, 1, 1),) * 3, beta=None), TypeError, "baddbmm: beta is of type NoneType; need a number"),
    (lambda: addmm(f32(1), f32(1, 1), prepare(f32(1, 1))), TypeError, "mat2 is of type Prepared; need a torch.Tensor"),
    (lambda: bmm(f32(1, 3, 4), f32(1, 5, 3)), ShapeError, "inner sizes 4 and 5 differ; need (Z, M, K) and (Z, K, N)"),
    (lambda: bmm(f32(3, 4), f32(4, 3)), ShapeError, "bmm: input is (3, 4) but mat2 is (4, 3); need batches (Z, M, K)"),
    (lambda: bmm(f32(1, 3, 4), f32(2, 4, 3)), ShapeError, "batch sizes 1 and 2 differ; matmul and sgemm broadcast"),
    (lambda: bmm(f32(1, 3, 4), 1.0), TypeError, "bmm: mat2 is of type float; need a torch.Tensor"),
    (
        lambda: baddbmm(f32(2, 3, 3), f32(1, 3, 4), f32(1, 4, 3)),
        ShapeError,
        "baddbmm: input is (2, 3, 3) but the result",
    ),
    (lambda: linear(f32(3, 4), f32(4, 5)), ShapeError, "weight is (4, 5): inner sizes 4 and 5 differ; need an input"),
    (lambda: linear(f32(3, 4), f32(2, 4, 5)), ShapeError, "linear: weight is (2, 4, 5); need (N, K) or (K,)"),
    (lambda: linear(f32(3, 4), f32(5, 4), f32(4)), ShapeError, "linear: bias is (4,) but the result is (3, 5)"),
    (
        lambda: linear(f32(3, 4), prepare(f32(5, 4))),
        ShapeError,
        "prepared is (5, 4): inner sizes 4 and 5 differ; need an input (..., K) and prepare(w",
    ),
    (
        lambda: linear(f32(3, 4), f32(5, 4), activation="tanh"),
        ValueError,
        "linear: activation is 'tanh'; use None or one of 'relu', 'gelu', 'silu'",
    ),
    (
        lambda: linear(f32(3, 4).int(), f32(5, 4).int(), activation="gelu"),
        DtypeError,
        "linear: input is torch.int32; need a floating dtype, for instance input.float()",
    ),
    (lambda: linear(f32(3, 4), None), TypeError, "linear: weight is of type NoneType; need a torch.Tensor"),
    (
        lambda: matmul(f32(2, 2).requires_grad_(), f32(2, 2), out=f32(2, 2)),
        RuntimeError,
        "matmul: out= is not differenti",
    ),
    (
        lambda: matmul(f32(2, 2).to_sparse(), f32(2, 2), precision="ieee"),
        ValueError,
        "sparse and nested tensors and takes no",
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [*((partial(call, matmul), kind, text) for call, kind, text in WRONG), *WRONG_HERE],
    ids=[w[2][:40] for w in (*WRONG, *WRONG_HERE)],
)
def test_wrong_calls_say_what_came_and_what_to_do(call, kind, text) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()


@pytest.mark.parametrize(("call", "kind", "text"), [w for w in WRONG if w[1] in (ShapeError, OverlapError)])
def test_the_kernels_side_refuses_the_same(call, kind, text) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call(partial(product, "matmul"))


def test_errors_are_torchs_kind_too() -> None:
    for kind in (ShapeError, DtypeError, DeviceError, OverlapError):
        assert issubclass(kind, RuntimeError)


def test_sgemm_needs_c_for_a_beta() -> None:
    with pytest.raises(ValueError, match=r"beta is 2.0 but c is missing; pass c, or beta=0"):
        sgemm(1.0, f32(2, 2), f32(2, 2), 2.0)
    with pytest.raises(ShapeError, match=r"c is \(3,\) but the result is \(2, 2\)"):
        product("sgemm", f32(2, 2), f32(2, 2), beta=1.0, c=f32(3))


@pytest.mark.parametrize("factor", [2, True, np.float32(2), np.int64(2), 2.0])
def test_alpha_and_beta_may_be_any_number(factor, device: str) -> None:
    a, b, c = (torch.randn(4, 4, device=device) for _ in range(3))
    expected = float(factor) * (a @ b) + float(factor) * c
    assert torch.allclose(product("sgemm", a, b, alpha=factor, beta=factor, c=c), expected, atol=1e-5)
    assert torch.allclose(sgemm(factor, a, b, factor, c), expected, atol=1e-5)


def test_sgemm_refuses_integers_and_a_c_that_would_broadcast_the_result() -> None:
    a = torch.ones(2, 2, dtype=torch.int64)
    with pytest.raises(DtypeError, match="need a floating dtype"):
        sgemm(0.5, a, a)
    with pytest.raises(ShapeError, match=r"c is \(4, 2, 2\) but the result is \(2, 2\)"):
        sgemm(1.0, f32(2, 2), f32(2, 2), 1.0, f32(4, 2, 2))


def cuda_but_fake(**options) -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(4, 4, device="cuda", **options)


def test_what_goes_straight_to_the_kernels(monkeypatch) -> None:
    assert not is_plain(cuda_but_fake())  # a subclass: it has no memory to compute from
    plain = torch.empty(4, 4)
    assert is_plain(plain) and is_plain(Parameter(plain), None)
    with torch.device("cpu"):  # a default device is no reason
        assert is_plain(plain)
    assert not is_plain(plain.to_sparse())
    assert not is_plain(torch.nested.nested_tensor([plain, plain]))
    with FakeTensorMode():
        assert not is_plain(plain)
    with forward_ad.dual_level():
        assert not is_plain(plain)
    torch.vmap(lambda t: pytest.fail("a mapped tensor is not plain") if is_plain(t) else t)(plain)
    watched: list[bool] = []
    x = plain.clone().requires_grad_()
    x.register_hook(lambda gradient: watched.append(is_plain(gradient)))
    torch.autograd.grad(x.sum(), x, torch.ones(3), is_grads_batched=True)  # in batches, which have no memory
    assert watched == [False] and not is_plain(torch._efficientzerotensor((4, 4)))
    monkeypatch.setattr("triton_sgemm.direct.is_compiling", lambda: True)
    assert not is_plain(plain)


def test_what_autograd_records() -> None:
    x, w = torch.empty(4, 4), torch.empty(4, 4, requires_grad=True)
    assert differentiated(x, w, None) and not differentiated(x, None)
    with torch.no_grad():
        assert not differentiated(w)
    with torch.inference_mode(), torch.enable_grad():
        assert not differentiated(w)


def test_which_calls_reach_the_kernels_without_the_operator(monkeypatch) -> None:
    straight: list[str] = []
    for module in (calling, operator):
        monkeypatch.setattr(module, "product", lambda name, a, b, **_: straight.append(name) or torch.empty(4, 4))
    monkeypatch.setattr(Tensor, "is_cuda", True)
    x = torch.empty(4, 4)
    matmul(x, x), addmm(x, x, x), linear(x, x)
    assert straight == ["matmul", "addmm", "linear"]
    matmul(x.double(), x.double())
    assert len(straight) == 3
    w = x.clone().requires_grad_()
    with torch.no_grad():
        assert not matmul(w, x).requires_grad and straight[3:] == ["matmul"]
    assert matmul(w, x).requires_grad and straight[4:] == ["matmul"]
    matmul(w, x).sum().backward()
    assert straight[5:] == ["matmul", "gemm"]  # forward, and the one gradient that is needed
    assert linear(w, x, activation="relu").requires_grad and straight[7:] == ["linear"]


def test_an_output_overwritten_changes_its_version(device: str) -> None:
    a, out = torch.randn(4, 4, device=device), torch.empty(4, 4, device=device)
    before = out._version
    product("matmul", a, a, out=out)
    assert out._version > before


def test_out_may_lie_beside_an_operand_but_not_on_it(device: str) -> None:
    buffer = torch.randn(8, 24, device=device)
    a, b, out = buffer[:, :8], torch.randn(8, 8, device=device), buffer[:, 8:16]
    expected = a.double() @ b.double()
    assert torch.allclose(product("matmul", a, b, out=out).double(), expected, atol=1e-5)
    for overlapping in (buffer[:, 4:12], a):
        with pytest.raises(
            OverlapError, match=r"out shares memory \(or may\) with a, which is still being read; pass a.clone\(\)"
        ):
            product("matmul", a, b, out=overlapping)
    c = torch.randn(9, 8, device=device)
    with pytest.raises(OverlapError, match=r"shares memory \(or may\) with c"):
        product("sgemm", b, b, beta=1.0, c=c[:8], out=c[1:])
    product("sgemm", b, b, beta=1.0, c=c[:8], out=c[:8])  # in place is legal
    row = torch.randn(4, 10, device=device)  # so it is where only the stride of a single row differs
    product("sgemm", b[:1], b, beta=1.0, c=row[::2][:1, :8], out=row[:1, :8])
    with pytest.raises(OverlapError, match=r"shares memory .* with b"):
        product("matmul", torch.randn(8, 8, device=device), buffer[:8, :8], out=buffer[:8, 4:12])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64])
def test_cpu_tensors_are_torchs(dtype: torch.dtype) -> None:
    a, b = (torch.randn(7, 9).mul(10).to(dtype), torch.randn(9, 5).mul(10).to(dtype))
    assert torch.equal(matmul(a, b), torch.matmul(a, b))
    out = torch.empty(7, 5, dtype=dtype)
    assert matmul(a, b, out=out) is out and torch.equal(out, torch.matmul(a, b))


def test_sgemm_on_the_cpu() -> None:
    a, b, c = f32(7, 9).requires_grad_(), f32(9, 5), f32(5)
    expected = 0.5 * (a @ b) + 2 * c
    assert torch.allclose(sgemm(0.5, a, b, 2.0, c), expected)
    sgemm(0.5, a, b, 2.0, c).sum().backward()
    assert torch.allclose(a.grad, 0.5 * torch.ones(7, 5) @ b.T)
    with torch.no_grad():
        out = torch.empty(7, 5)
        assert sgemm(0.5, a, b, 2.0, c, out=out) is out and torch.allclose(out, expected)
        with pytest.raises(ShapeError, match="out is"):
            sgemm(0.5, a, b, out=torch.empty(3, 7, 5))


def test_a_negated_view_keeps_its_sign(device: str) -> None:
    z = torch.randn(6, 8, device=device, dtype=torch.complex64)
    a, b = z.conj().imag, torch.randn(8, 3, device=device)
    assert a.is_neg()
    assert torch.allclose(product("matmul", a, b), -z.imag @ b, atol=1e-5)
    assert torch.allclose(product("matmul", b.mT, a.mT), -(b.mT @ z.imag.mT), atol=1e-5)
    out = torch.zeros(6, 3, device=device, dtype=torch.complex64).conj().imag
    assert out.is_neg() and product("matmul", a, b, out=out) is out
    assert torch.allclose(out.resolve_neg(), -z.imag @ b, atol=1e-5)


def folded(a: Tensor, b: Tensor) -> Problem:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = torch.empty(*batch, a.shape[-2], b.shape[-1])
    return problem(a.expand(*batch, -1, -1), b.expand(*batch, -1, -1), None, out, 1.0, 0.0)


def test_batches_fold() -> None:
    p = folded(f32(2, 3, 4, 5), f32(5, 6))  # a linear layer: all rows are one matrix
    assert (p.batch, p.M) == ((), 24)
    p = folded(f32(2, 3, 4, 5), f32(2, 3, 5, 6))  # two dimensions, one stride
    assert (p.batch, p.a_strides, p.b_strides) == ((6,), (20, 5, 1), (30, 6, 1))
    p = folded(f32(3, 1, 4, 5), f32(2, 5, 6))  # two that no one stride walks
    assert (p.batch, p.a_strides, p.b_strides) == ((3, 2), (20, 0, 5, 1), (0, 30, 6, 1))
    p = folded(f32(7, 1, 5), f32(5, 6))  # one row each
    assert (p.batch, p.M, p.a_strides) == ((), 7, (5, 1))
    p = folded(f32(7, 5, 4).mT, f32(5, 6))  # columns first: the rows are not one matrix's
    assert (p.batch, p.M) == ((7,), 4)


def test_only_what_every_tensor_walks_in_one_stride_folds() -> None:
    a, b = f32(2, 3, 4, 5), f32(2, 3, 5, 6)
    swapped = torch.empty(3, 2, 4, 6).transpose(0, 1)
    assert problem(a, b, None, swapped, 1.0, 0.0).batch == (2, 3)
    assert problem(a, b, swapped, torch.empty(2, 3, 4, 6), 1.0, 1.0).batch == (2, 3)
    rows, wide = f32(5, 6).expand(3, 5, 6), torch.empty(3, 4, 9)[..., :6]
    assert problem(f32(3, 4, 5), rows, None, wide, 1.0, 0.0).M == 12  # padded rows still have one stride
    assert problem(f32(3, 4, 5), rows, None, torch.empty(3, 5, 6)[:, :4], 1.0, 0.0).batch == (3,)
    assert problem(f32(3, 4, 5), rows, torch.empty(3, 5, 6)[:, :4], wide, 1.0, 1.0).batch == (3,)


def test_alpha_0_and_no_depth_are_one_problem() -> None:
    a, out = f32(4, 4), f32(4, 4)
    assert problem(a, a, None, out, 0.0, 0.0).K == 0
    p = problem(a[:, :0], a[:0], out, out, float("nan"), 2.0)
    assert (p.K, p.alpha, p.beta) == (0, 0.0, 2.0)
    assert problem(a, a, out, out, 1.0, 0.0).c_strides is None


def planned(M: int, N: int, K: int, layout: str = "NN", batch: int = 1) -> Plan:
    a = torch.empty(batch, *((M, K) if layout[0] == "N" else (K, M)), device="meta")
    b = torch.empty(batch, *((K, N) if layout[1] == "N" else (N, K)), device="meta")
    a, b = a if layout[0] == "N" else a.mT, b if layout[1] == "N" else b.mT
    out = torch.empty(batch, M, N, device="meta")
    return plan(problem(a, b, None, out, 1.0, 0.0), H200)


def test_plan_picks_what_was_fastest() -> None:  # docs/worklog/007
    square = {n: planned(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)}
    assert {n: p.name for n, p in square.items()} == {
        256: "dot_16x32x64",
        512: "dot_32x64x32",
        1024: "dot_64x128x32",
        2048: "fma_128x256x8",
        4096: "fma_128x256x8",
        8192: "fma_128x256x8",
    }
    assert all(p.in_order(n) for n, p in square.items())
    assert planned(16, 65536, 4096).name == "dot_16x128x32"
    assert planned(4096, 1, 4096).name == "rows_4x1x512" and not planned(4096, 1, 4096).in_order(4096)


def test_plan_cuts_a_deep_k() -> None:
    deep = planned(64, 64, 500_000)
    assert not deep.in_order(500_000) and "K cut into" in deep.why
    assert planned(512, 512, 131_072).depth * 33 >= 131_072


def test_plan_moves_the_smaller_operand() -> None:
    tokens = planned(64, 4096, 4096, "NT")  # the weights of a linear layer stay where they are
    assert tokens.transposed and tokens.name.startswith("fma")
    assert planned(8, 4096, 4096, "NT").name == "rows_4x8x512"
    small = planned(512, 512, 512, "NT")
    assert small.name.startswith("dot") and small.relay and not small.transposed


def test_plan_serves_what_it_does_not_know() -> None:
    old = replace(H200, name="unknown", capability=75)
    x = torch.empty(4096, 4096, device="meta")
    assert plan(problem(x, x, None, x, 1.0, 0.0), old).name.startswith("dot")
    for M, N, K in ((0, 5, 5), (5, 0, 5), (5, 5, 0), (1, 1, 1), (2**30, 1, 1)):
        assert planned(M, N, K).in_order(K)
    assert planned(64, 1, 5_000_000).name.startswith("dot")  # too few rows to keep the memory busy


def test_more_programs_than_a_grid_holds_raise() -> None:
    with pytest.raises(ValueError, match="needs 2147483648 tiles but one launch holds 2147483647"):
        Launch(None, 2**31, ()).run(torch.device("cpu"))


def test_public_names() -> None:
    assert set(triton_sgemm.__all__) >= {"matmul", "sgemm"}
    for name in triton_sgemm.__all__:
        assert getattr(triton_sgemm, name).__doc__
