"""What only a GPU shows: streams, devices, graphs, very large tensors, torch's switches, the CUDA build."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from dataclasses import replace
from functools import partial

import pytest
import torch

from bench.catalog import VARIANTS
from reference_cuda import loader, rungs
from reference_cuda.rungs import RUNGS
from triton_sgemm import DeviceError, linear, matmul, sgemm
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.problem import problem
from triton_sgemm.testing import errors, random_bound, reference

pytestmark = pytest.mark.gpu


def right(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    return errors(result, reference(a, b)).within(random_bound(a.shape[-1]))


def test_no_switch_of_torchs_changes_the_bits() -> None:
    a, b = torch.randn(300, 500, device="cuda"), torch.randn(500, 200, device="cuda")
    expected = matmul(a, b)
    assert right(expected, a, b)
    for switch in ("tf32", "ieee"):
        with torch_matmul_precision(switch):
            assert not (switch == "tf32" and right(a @ b, a, b)), "the checker should refuse torch's TF32 product"
            assert torch.equal(matmul(a, b, precision="fp32"), expected)
            assert right(matmul(a, b, precision="ieee"), a, b)
            assert torch.equal(matmul(a, b), matmul(a, b, precision=switch))
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(matmul(a, b), expected)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(matmul(a, b), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_precision_switch_comes_back_and_reading_it_never_throws() -> None:
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.allow_tf32 = True  # the older of torch's two switches; mixed use makes its reading throw
    a = torch.randn(64, 64, device="cuda")
    try:
        with torch_matmul_precision("ieee"):
            assert right(a @ a, a, a)
        assert switch.fp32_precision == "tf32"
        assert right(matmul(a, a), a, a)
    finally:
        switch.fp32_precision = before


def gradients(call, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = call(*inputs)
    return torch.autograd.grad(y, inputs, torch.ones_like(y).mT.contiguous().mT)


def test_gradients_keep_the_precision_whatever_torchs_switch_says() -> None:
    x = torch.randn(4, 96, 256, device="cuda", requires_grad=True)
    weight = torch.randn(320, 256, device="cuda", requires_grad=True)
    bias = torch.randn(320, device="cuda", requires_grad=True)
    ones = torch.ones(4 * 96, 320, device="cuda")
    for switch in ("ieee", "tf32"):
        with torch_matmul_precision(switch):
            for precision in ("ieee", "fp32"):
                of_x, of_weight, of_bias = gradients(partial(linear, precision=precision), x, weight, bias)
                assert right(of_x.view(-1, 256), ones, weight.detach())
                assert right(of_weight, ones.mT, x.detach().view(-1, 256))
                assert torch.equal(of_bias, torch.full_like(bias, 4 * 96)) and of_weight.is_contiguous()
    with torch.no_grad():
        assert not matmul(x, weight.mT).requires_grad


def test_gradients_of_many_at_once() -> None:
    a, b = (torch.randn(5, 5, device="cuda", requires_grad=True) for _ in range(2))
    many = torch.randn(3, 5, 5, device="cuda")
    mine, theirs = (torch.autograd.grad(f(a, b), (a, b), many, is_grads_batched=True) for f in (matmul, torch.matmul))
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(mine, theirs, strict=True))


def test_second_derivatives_in_float32() -> None:
    a, b = (torch.randn(5, 5, device="cuda", requires_grad=True) for _ in range(2))
    penalty = lambda product: torch.autograd.grad(product(a, b).pow(3).sum(), (a, b), create_graph=True)  # noqa: E731
    mine, theirs = (
        torch.autograd.grad(sum(g.pow(2).sum() for g in penalty(p)), (a, b)) for p in (matmul, torch.matmul)
    )
    for x, y in zip(mine, theirs, strict=True):
        assert ((x - y).abs() <= 1e-4 * y.abs().max()).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_runs_the_same_kernels(backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    layer = lambda x, w, b: linear(x, w, b, precision="ieee")  # noqa: E731
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    w = torch.randn(64, 96, device="cuda", requires_grad=True)
    b = torch.randn(64, device="cuda", requires_grad=True)
    for rows in (33, 40):
        x = torch.randn(3, rows, 96, device="cuda", requires_grad=True)
        assert torch.equal(compiled(x, w, b), layer(x, w, b))
        for mine, eager in zip(gradients(compiled, x, w, b), gradients(layer, x, w, b), strict=True):
            assert torch.equal(mine, eager) or torch.allclose(mine, eager, atol=1e-5)  # the bias is summed by inductor


def test_compiled_with_cuda_graphs() -> None:
    torch._dynamo.reset()
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    compiled = torch.compile(lambda a, b: matmul(matmul(a, b), b), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        assert torch.equal(compiled(a, b), matmul(matmul(a, b), b))


def test_a_training_step_is_captured() -> None:
    x = torch.randn(256, 512, device="cuda")
    w = torch.randn(384, 512, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):  # warm
            (expected,) = torch.autograd.grad(linear(x, w).square().sum(), w)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        (gradient,) = torch.autograd.grad(linear(x, w).square().sum(), w)
    gradient.fill_(float("nan"))
    graph.replay()
    assert torch.equal(gradient, expected)


def test_gradients_on_a_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a = torch.randn(64, 96, device="cuda:1", requires_grad=True)
    b = torch.randn(96, 32, device="cuda:1", requires_grad=True)
    of_a, _ = gradients(matmul, a, b)
    assert right(of_a, torch.ones(64, 32, device="cuda:1"), b.detach().mT) and torch.cuda.current_device() == 0


def test_vmap_runs_one_batch() -> None:
    a, b = torch.randn(5, 8, 90, device="cuda"), torch.randn(90, 4, device="cuda")
    with torch_matmul_precision("tf32"):
        y = torch.vmap(partial(matmul, precision="ieee"), (0, None))(a, b)
    assert right(y, a, b.expand(5, -1, -1))


def test_side_stream_and_graph() -> None:
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    for name in ("matmul_ieee", *(v.name for v in VARIANTS.values() if v.rung)):
        out = torch.full_like(a, float("nan"))
        x = torch.zeros_like(a)
        run = VARIANTS[name].run
        p = problem(x, b, None, out, 1.0, 0.0)
        run(p, x, b, None, out)  # warm
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.copy_(a)
            run(p, x, b, None, out)
        stream.synchronize()
        assert right(out, a, b), name

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(p, x, b, None, out)
        out.fill_(float("nan"))
        x.copy_(a.mT)
        graph.replay()
        assert right(out, a.mT, b), name


def test_a_view_whose_strides_pass_2_to_the_31_elements() -> None:
    big = torch.empty(2**31 + 4096, device="cuda")  # 8.6 GB
    a = big.as_strided((3, 70), (2**30, 1))
    a.copy_(torch.randn(3, 70))
    b = torch.randn(70, 2, device="cuda")
    out = big.as_strided((3, 2), (2**30, 1), storage_offset=1000).fill_(float("nan"))
    assert right(matmul(a, b, out=out).contiguous(), a.contiguous(), b)
    wide = big.as_strided((70, 3), (1, 2**30))
    assert right(matmul(b.mT, wide), b.mT, wide.contiguous())


def test_steps_of_k_pass_2_to_the_31_elements() -> None:
    stride = 2**26  # times 32 rows a step; the last rows lie past 2^31
    big = torch.empty(39 * stride + 8, device="cuda")  # 10.5 GB
    b = big.as_strided((40, 2), (stride, 1))
    b.copy_(torch.randn(40, 2))
    a = torch.randn(5, 40, device="cuda")
    any_stride = (v for v in VARIANTS.values() if v.launch and not v.row_major and v.precision != "tf32")
    for name in ("matmul_ieee", *(v.name for v in any_stride)):
        out = torch.full((5, 2), float("nan"), device="cuda")
        VARIANTS[name].run(problem(a, b, None, out, 1.0, 0.0), a, b, None, out)
        assert right(out, a, b.contiguous()), name


def test_an_output_overwritten_is_noticed_by_autograd() -> None:
    a, b, w = (torch.randn(4, 4, device="cuda") for _ in range(3))
    w.requires_grad_()
    saved = torch.ones(4, 4, device="cuda")
    loss = (w * saved).sum()
    matmul(a, b, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        assert right(matmul(a, b, out=torch.empty(4, 4, device="cuda")), a, b)


def test_a_default_device_changes_nothing() -> None:
    a = torch.randn(64, 64, device="cuda")
    with torch.device("cuda"), torch_matmul_precision("tf32"):
        assert right(matmul(a, a, precision="ieee"), a, a)


def test_forward_mode_keeps_its_tangent() -> None:
    from torch.autograd import forward_ad

    a, b = torch.randn(4, 5, device="cuda"), torch.randn(5, 6, device="cuda")
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(matmul(forward_ad.make_dual(a, torch.ones_like(a)), b)).tangent
        assert torch.allclose(tangent, b.sum(0).expand(4, 6), atol=1e-5)


def test_more_tiles_than_65535_on_each_axis() -> None:
    for M, N in ((70_000 * 16, 1), (1, 70_000 * 32)):
        a, b = torch.randn(M, 3, device="cuda"), torch.randn(3, N, device="cuda")
        assert right(matmul(a, b), a, b)
    a, b = torch.randn(70_000, 2, 3, device="cuda"), torch.randn(70_000, 3, 2, device="cuda")
    assert right(matmul(a, b), a, b)


@pytest.mark.slow
def test_46341_squared() -> None:
    n = 46341  # the first square with more than 2^31 elements
    a, b = torch.randn(n, 8, device="cuda"), torch.randn(8, n, device="cuda")
    out = torch.full((n, n), float("nan"), device="cuda")
    matmul(a, b, out=out)
    for rows in (slice(0, 64), slice(n - 64, n)):
        assert right(out[rows], a[rows], b)
    assert right(matmul(out[:, :64].mT, out[:, -64:]), out[:, :64].mT, out[:, -64:])
    assert not out.isnan().any()


def test_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = torch.randn(128, 96, device="cuda:1"), torch.randn(96, 64, device="cuda:1")
    assert torch.cuda.current_device() == 0
    assert right(matmul(a, b), a, b)
    a, b = torch.randn(256, 256, device="cuda:1"), torch.randn(256, 512, device="cuda:1")  # every rung takes them
    for rung in RUNGS:
        out = torch.full((256, 512), float("nan"), device="cuda:1")
        loader.run(rung, a, b, out)
        assert right(out, a, b)
    assert torch.cuda.current_device() == 0
    with pytest.raises(DeviceError, match="a is on cuda:1 but b is on cuda:0"):
        matmul(a, b.to("cuda:0"))


def test_a_tensor_on_the_gpu_and_one_on_the_cpu() -> None:
    with pytest.raises(DeviceError, match="a is on cuda:0 but b is on cpu; move one"):
        matmul(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_other_dtypes_are_torchs() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        a = torch.randn(32, 32, device="cuda").to(dtype)
        assert torch.equal(matmul(a, a), torch.matmul(a, a))
    a = torch.randn(32, 32, device="cuda", dtype=torch.float64)
    assert torch.allclose(sgemm(2.0, a, a, -1.0, a), 2 * (a @ a) - a)


# ---- the raw CUDA rungs


@pytest.mark.parametrize("rung", RUNGS, ids=lambda r: r.name)
def test_wrong_calls_of_a_cuda_rung(rung) -> None:
    a = torch.randn(256, 256, device="cuda")
    with pytest.raises(ValueError, match=r"need a CUDA device, or reference_cuda.on_cpu"):
        loader.run(rung, a.cpu(), a.cpu(), a.cpu().clone())
    if rung.multiple_of > 1:
        with pytest.raises(ValueError, match=f"multiples of {rung.multiple_of}; got M=33"):
            loader.run(rung, a[:33], a, torch.empty(33, 256, device="cuda"))


def test_a_broken_rung_leaves_the_others_alone(monkeypatch, tmp_path) -> None:
    broken = replace(RUNGS[1], kernel="sgemm_misspelt<32>")
    monkeypatch.setattr(loader, "CACHE", tmp_path)
    monkeypatch.setattr(loader, "RUNGS", (RUNGS[0], broken))
    monkeypatch.setattr(loader, "_launchers", {})
    x = torch.eye(32, device="cuda")
    for _ in range(2):
        with pytest.raises(
            loader.BuildError, match=r"(?s)coalesced: the build in .* failed: .*sgemm_misspelt"
        ) as caught:
            loader.run(broken, x, x, torch.empty_like(x))
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 3  # raised afresh: here, run, load
    out = torch.empty_like(x)
    loader.run(RUNGS[0], x, x, out)
    assert torch.equal(out, x)


def test_a_killed_builds_lock_does_not_block(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(loader, "CACHE", tmp_path)
    monkeypatch.setattr(loader, "FLAGS", (*loader.FLAGS, "-DOTHER_NAME"))
    names = []
    real = loader._sole_builder

    def spy(name):
        names.append(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()  # torch would wait for its owner
        return real(name)

    monkeypatch.setattr(loader, "_sole_builder", spy)
    loader._build((RUNGS[0],), torch.cuda.get_device_capability())
    assert names


def test_the_build_restores_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0")
    path = os.environ["PATH"]
    with loader._build_environment("9.0"):
        assert os.environ["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "7.0" and os.environ["PATH"] == path


def test_no_nvcc_and_no_ninja_are_named(monkeypatch, tmp_path) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setattr(loader.shutil, "which", lambda tool: None)
    assert loader.why_not() == "ninja was not found; pip install ninja"
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert "nvcc was not found; install the CUDA" in loader.why_not()
    monkeypatch.setattr(loader, "_launchers", {})
    x = torch.ones(32, 32, device="cuda")
    with pytest.raises(loader.BuildError, match="cannot be built: nvcc was not found"):
        loader.run(RUNGS[0], x, x, torch.empty_like(x))
    assert right(matmul(x, x), x, x)  # Triton's side is unharmed


def _cold(cache: str) -> bool:
    os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
    rungs.CACHE = loader.CACHE = rungs.Path(cache)
    x = torch.ones(32, 32, device="cuda")
    out = torch.empty_like(x)
    loader.run(RUNGS[2], x, x, out)
    return bool((matmul(x, x) == 32).all() and (out == 32).all())


@pytest.mark.slow
def test_eight_processes_at_a_cold_start(tmp_path) -> None:
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        assert all(pool.map(_cold, [str(tmp_path)] * 8))
