"""The raw CUDA rungs: every thread of them, executed on the CPU."""

from __future__ import annotations

import math
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_cuda import on_cpu
from reference_cuda.rungs import RUNGS, Rung

COMPILER = shlex.split(os.environ.get("CXX") or "g++")[0]
pytestmark = pytest.mark.skipif(not shutil.which(COMPILER), reason=f"no {COMPILER} to compile kernels")

SHAPES = (
    (32, 32, 32),  # one tile, one step
    (64, 96, 160),  # several tiles along every axis, no two counts alike
    (32, 64, 0),  # nothing to add up: beta * C
    (0, 64, 32),  # nothing to compute
    (1, 1, 1),  # one thread of 1024
    (33, 65, 17),  # one past a tile
    (35, 79, 19),  # primes and other odd sizes
    (31, 1, 70),  # a column
)
Shape = tuple[int, int, int]
NAIVE, COALESCED, SMEM_TILING, VECTOR_LOADS = (
    next(r for r in RUNGS if r.name == name) for name in ("naive", "coalesced", "smem_tiling", "vector_loads")
)


def shapes(multiple_of: int) -> tuple[Shape, ...]:
    """SHAPES, or one tile and several of them for a rung that takes multiples only."""
    m = multiple_of
    return SHAPES if m == 1 else ((m, m, m), (2 * m, m, 3 * m), (m, 3 * m, 2 * m), (m, m, 0))


CASES = [
    pytest.param(rung, shape, id=f"{rung.name}-{'x'.join(map(str, shape))}")
    for rung in RUNGS
    for shape in shapes(rung.multiple_of)
]
RUNG_NAMES = [rung.name for rung in RUNGS]

BAND = 4096  # elements on each side; more than a tile that sticks out would reach
GUARD = 0x7FC0BEEF  # a NaN like no other


def guarded(values: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of `values` between two bands of NaN, and the bits of the whole buffer."""
    buffer = torch.full((BAND + values.numel() + BAND,), GUARD, dtype=torch.int32)
    inside = buffer[BAND : BAND + values.numel()].view(torch.float32).view(values.shape)
    return inside.copy_(values), buffer


def product(
    rung: Rung,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    source: str | None = None,
    seed: int = 0,
) -> Tensor:
    """What the rung leaves in C, after asserting that it wrote nowhere else. C starts as NaN unless given."""
    (a, a_bits), (b, b_bits) = guarded(a), guarded(b)
    out, out_bits = guarded(torch.full((a.shape[0], b.shape[1]), math.nan) if c is None else c)
    a_before, b_before = a_bits.clone(), b_bits.clone()
    on_cpu.run(rung, a, b, out, alpha, beta, source=source, seed=seed)
    assert torch.equal(a_bits, a_before)
    assert torch.equal(b_bits, b_before)
    assert (out_bits[:BAND] == GUARD).all()
    assert (out_bits[-BAND:] == GUARD).all()
    return out


def error_and_bound(
    out: Tensor, a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
) -> tuple[Tensor, Tensor]:
    """|out - exact| in float64, and what honest float32 keeps to on random data."""
    a, b = a.double(), b.double()
    exact, size = alpha * (a @ b), abs(alpha) * (a.abs() @ b.abs())
    if c is not None:
        exact, size = exact + beta * c.double(), size + abs(beta) * c.double().abs()
    return (out.double() - exact).abs(), (4 + 1.5 * math.sqrt(a.shape[1])) * 2**-24 * size


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def zeros(*shape: int, device: str = "cpu") -> Tensor:
    """float32 zeros."""
    return torch.zeros(shape, device=device)


# the rungs are right


@pytest.mark.parametrize(("rung", "shape"), CASES)
def test_small_integers_are_exact(rung: Rung, shape: Shape) -> None:
    M, N, K = shape
    a, b = (torch.randn(M, K) * 4).round(), (torch.randn(K, N) * 4).round()
    assert torch.equal(product(rung, a, b).double(), a.double() @ b.double())


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.5, -0.5), (-2.0, 1.0), (0.0, 3.0)])
@pytest.mark.parametrize(("rung", "shape"), CASES)
def test_random_data_keeps_the_bound(rung: Rung, shape: Shape, alpha: float, beta: float) -> None:
    M, N, K = shape
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.randn(M, N) if beta else None
    err, tol = error_and_bound(product(rung, a, b, c, alpha, beta), a, b, c, alpha, beta)
    assert (err <= tol).all()


@pytest.mark.parametrize("rung", RUNGS, ids=RUNG_NAMES)
def test_the_order_of_threads_and_blocks_does_not_matter(rung: Rung) -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    first = product(rung, a, b, seed=0)
    for seed in (1, 2, 2**64 - 1):
        assert torch.equal(product(rung, a, b, seed=seed), first)


def test_rungs_that_add_in_the_same_order_agree_to_the_bit() -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    results = [product(rung, a, b) for rung in RUNGS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("rung", RUNGS, ids=RUNG_NAMES)
def test_a_rung_reads_c_always_or_only_when_beta_is_not_zero(rung: Rung) -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    assert product(rung, a, b).isfinite().all()  # C starts as NaN, and is cleared where the kernel reads it
    left = product(replace(rung, reads_c_always=False), a, b)  # never cleared
    assert left.isnan().all() if rung.reads_c_always else left.isfinite().all()


@pytest.mark.parametrize("rung", RUNGS, ids=RUNG_NAMES)
def test_with_nothing_to_add_up_no_operand_is_read(rung: Rung) -> None:
    a, b, c = zeros(256, 0), zeros(0, 256), torch.randn(256, 256)
    assert a.data_ptr() == b.data_ptr() == 0  # reading there would be the end of the process
    out = c.clone()
    on_cpu.run(rung, a, b, out, 1.0, -0.5)
    assert torch.equal(out, -0.5 * c)


# and its barriers are needed


BARRIER = "__syncthreads();"
TILED = [rung for rung in RUNGS if BARRIER in rung.source and "wait_group" not in rung.source]  # the ring: see below
EACH_TILED = pytest.mark.parametrize("rung", TILED, ids=[rung.name for rung in TILED])
SEVERAL_STEPS = pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 1, 3)], ids=["one-tile", "two-tiles"])


def without_barrier(rung: Rung, which: int) -> str:
    """The rung's text without its first (0) or second (1) barrier."""
    before, between, after = rung.source.split(BARRIER)
    return before + between + BARRIER + after if which == 0 else before + BARRIER + between + after


@SEVERAL_STEPS
@EACH_TILED
def test_without_the_first_barrier_threads_multiply_a_tile_that_is_not_filled(rung: Rung, sizes: Shape) -> None:
    M, N, K = (n * rung.multiple_of for n in sizes)
    a, b = torch.randn(M, K), torch.randn(K, N)
    out = product(rung, a, b, source=without_barrier(rung, 0))
    err, tol = error_and_bound(out, a, b)
    assert not (err <= tol).all()
    assert out.isnan().any()  # the first thread to run finds what was there before: NaN


@SEVERAL_STEPS
@EACH_TILED
def test_without_the_second_barrier_the_next_tile_overwrites_the_one_being_read(rung: Rung, sizes: Shape) -> None:
    M, N, K = (n * rung.multiple_of for n in sizes)
    a, b = torch.randn(M, K), torch.randn(K, N)
    out = product(rung, a, b, source=without_barrier(rung, 1))
    err, tol = error_and_bound(out, a, b)
    assert not (err <= tol).all()
    assert out.isfinite().all()  # wrong, yet nothing looks wrong: real elements, of the wrong tile


def test_the_second_barrier_matters_only_when_there_is_a_next_tile() -> None:
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    err, tol = error_and_bound(product(SMEM_TILING, a, b, source=without_barrier(SMEM_TILING, 1)), a, b)
    assert (err <= tol).all()


ASYNC_RING = next(r for r in RUNGS if r.name == "async_ring")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a wait", "          wait_group<STAGES - 2>();\n"),
        ("a barrier", "          __syncthreads();\n"),
        ("the first wait", "\n  wait_group<STAGES - 2>();"),
        ("the first barrier", "\n  __syncthreads();"),
    ],
)
def test_without_a_wait_or_a_barrier_the_ring_is_read_before_it_is_filled(what: str, text: str) -> None:
    assert ASYNC_RING.source.count(text) == 1
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    out = product(ASYNC_RING, a, b, source=ASYNC_RING.source.replace(text, "\n"))
    err, tol = error_and_bound(out, a, b)
    assert not (err <= tol).all()
    assert out.isnan().any()


# the executor: small kernels of 32 threads, a block for every 32 columns of C

PROBE = Rung("probe", 0, "probe<32>", tile=(1, 32), threads=32)
SIGNATURE = (
    "template <int SIZE> __global__ void __launch_bounds__(SIZE)\n"
    "probe(int M, int N, int K, float alpha, const float *__restrict__ A, const float *, float, float *C)\n"
)


def probe(body: str, N: int = 32, K: int = 0, alpha: float = 1.0, seed: int = 0) -> list[float]:
    """What the kernel writes to the N elements of C. The first line of `body` is the text's third."""
    source = f"{SIGNATURE}{{{body}}}"
    return product(PROBE, zeros(1, K), zeros(K, N), alpha=alpha, source=source, seed=seed)[0].tolist()


@pytest.mark.parametrize("library", ["first", "second with the same names"])
def test_shared_memory_starts_every_block_as_nan(library: str) -> None:
    written = probe(
        f"""
        __shared__ float tile[SIZE];  // {library}
        C[blockIdx.y * SIZE + threadIdx.x] = tile[threadIdx.x];
        tile[threadIdx.x] = 1.0f;
        """,
        N=96,
    )
    assert all(math.isnan(x) for x in written)


def test_threads_take_turns_in_a_fresh_order_that_the_seed_decides() -> None:
    def turns(seed: int) -> tuple[list[float], list[float]]:
        both = probe(
            """
            __shared__ int turn;  // -1: poisoned
            if (blockIdx.y) return;
            C[threadIdx.x] = ++turn;
            __syncthreads();
            C[SIZE + threadIdx.x] = ++turn - SIZE;
            """,
            N=64,
            seed=seed,
        )
        return both[:32], both[32:]

    before, after = turns(0)
    everyone = list(range(32))
    assert sorted(before) == sorted(after) == everyone
    assert len({tuple(order) for order in (everyone, before, after, *turns(1))}) == 5
    assert turns(0) == (before, after)


@pytest.mark.parametrize(
    ("K", "alpha", "waiting"),
    [
        pytest.param(8, 0.0, 8, id="one branch has a barrier"),
        pytest.param(32, 8.0, 24, id="both branches have one"),
    ],
)
def test_a_barrier_in_a_divergent_branch_is_an_error(K: int, alpha: float, waiting: int) -> None:
    body = """
    if (blockIdx.y == 1 && threadIdx.x < alpha) __syncthreads();
    else if (blockIdx.y != 1 || threadIdx.x < K) __syncthreads();
    C[blockIdx.y * SIZE + threadIdx.x] = 1;
    """
    with pytest.raises(RuntimeError) as raised:
        probe(body, N=96, K=K, alpha=alpha)
    missed = f"not reached by every thread of block (0, 1): {waiting} of 32 wait at line 5"
    assert str(raised.value) == f"probe: __syncthreads() was {missed}"
    assert probe(body, N=96, K=32, alpha=0.0) == [1.0] * 96  # an error leaves nothing behind


def test_vectors_and_device_functions() -> None:
    source = f"""
    __device__ __forceinline__ float dot(float4 v, float2 w) {{
      return fmaf(v.w, w.x, __fmaf_rn(v.x, w.y, v.z));
    }}
    {SIGNATURE} {{
      __shared__ __align__(16) float tile[SIZE][4];
      reinterpret_cast<float4 *>(tile)[threadIdx.x] = reinterpret_cast<const float4 *>(A)[threadIdx.x];
      __syncthreads();
      C[threadIdx.x] = dot(*reinterpret_cast<float4 *>(tile[SIZE - 1 - threadIdx.x]), make_float2(100, 1000));
    }}"""
    a = torch.arange(128.0)[None]
    v = a.view(32, 4).flip(0)
    out = product(PROBE, a, zeros(128, 32), source=source)
    assert torch.equal(out[0], v[:, 3] * 100 + v[:, 0] * 1000 + v[:, 2])


@pytest.mark.skipif(
    platform.machine() == "x86_64" and not on_cpu._fma_flag(), reason="this CPU has no fused multiply-add"
)
@pytest.mark.parametrize("rung", [NAIVE, COALESCED], ids=["naive", "coalesced"])
def test_multiply_add_rounds_once(rung: Rung) -> None:
    x = 1 + 2**-12  # x * x = 1 + 2**-11 + 2**-24 needs 25 bits
    assert product(rung, torch.tensor([[1.0, x]]), torch.tensor([[-1.0], [x]])).item() == 2**-11 + 2**-24


def test_a_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []
    real = subprocess.run

    def counting(command: list[str], **options: object) -> object:
        commands.append(command)
        return real(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(on_cpu, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(subprocess, "run", counting)
    for _ in range(2):
        assert product(NAIVE, torch.ones(1, 1), torch.ones(1, 1)).item() == 1
    assert len(commands) == 1
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".so"]  # and no scraps


# wrong calls

WRONG = {
    "dtype": (
        (NAIVE, zeros(4, 4), zeros(4, 4).double(), zeros(4, 4)),
        TypeError,
        "naive: b is torch.float64; need torch.float32",
    ),
    "ndim": (
        (NAIVE, zeros(2, 4, 4), zeros(4, 4), zeros(4, 4)),
        ValueError,
        "naive: a is (2, 4, 4); need a matrix",
    ),
    "strides": (
        (NAIVE, zeros(4, 8).T, zeros(4, 4), zeros(8, 4)),
        ValueError,
        "naive: a is (8, 4) with strides (1, 8); call .contiguous()",
    ),
    "inner": (
        (SMEM_TILING, zeros(128, 64), zeros(48, 32), zeros(128, 32)),
        ValueError,
        "smem_tiling: a is (128, 64) but b is (48, 32): inner sizes 64 and 48 differ; need a (M, K) and b",
    ),
    "out": (
        (COALESCED, zeros(3, 4), zeros(4, 5), zeros(5, 3)),
        ValueError,
        "coalesced: out is (5, 3); need (3, 5), the shape of a @ b",
    ),
    "multiples": (
        (SMEM_TILING, zeros(33, 64), zeros(64, 48), zeros(33, 48)),
        ValueError,
        "smem_tiling: M, N and K must be multiples of 32; got M=33, N=48: pad",
    ),
    "devices": (
        (NAIVE, zeros(4, 4), zeros(4, 4, device="meta"), zeros(4, 4)),
        ValueError,
        "naive: b is on meta but a is on cpu; need one device",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_say_what_was_expected(
    call: tuple[Rung, Tensor, Tensor, Tensor], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as raised:
        on_cpu.run(*call)
    assert text in str(raised.value)


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="naive: out is on meta; need a, b and out on the CPU"):
        on_cpu.run(NAIVE, zeros(4, 4), zeros(4, 4), zeros(4, 4, device="meta"))


def test_sizes_past_an_int_or_a_grid_are_refused() -> None:
    def check(M: int, N: int) -> None:
        NAIVE.check(zeros(M, 0, device="meta"), zeros(0, N, device="meta"), zeros(M, N, device="meta"))

    with pytest.raises(ValueError, match=r"out is \(65536, 32768\), 2147483648 elements; .* 2\*\*31 - 1"):
        check(65536, 32768)
    with pytest.raises(ValueError, match=r"N=2097121 is 65536 tiles of 32 columns; .* reaches 65535"):
        check(1, 65535 * 32 + 1)


@pytest.mark.parametrize("label", ["a", "b", "out"])
def test_float4_loads_need_aligned_matrices(label: str) -> None:
    operands = {name: zeros(128, 128) for name in ("a", "b", "out")}
    operands[label] = torch.zeros(1 + 128 * 128)[1:].view(128, 128)
    with pytest.raises(ValueError, match=f"vector_loads: {label} starts 4 bytes past a multiple of 16; .*clone"):
        on_cpu.run(VECTOR_LOADS, **operands)


@pytest.mark.parametrize("label", ["a", "b"])
def test_out_must_not_share_memory_with_an_operand(label: str) -> None:
    memory = torch.zeros(20)
    operands = {"a": zeros(4, 4), "b": zeros(4, 4), label: memory[:16].view(4, 4)}
    with pytest.raises(ValueError, match=f"naive: out shares memory with {label}"):
        on_cpu.run(NAIVE, operands["a"], operands["b"], memory[4:].view(4, 4))
    on_cpu.run(NAIVE, operands["a"], operands["a"], zeros(4, 4))  # operands may be one


def test_a_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/g++ -g")
    with pytest.raises(RuntimeError, match=r"naive: .*'/no/such/g\+\+'.*apt install g\+\+, or set CXX"):
        product(NAIVE, zeros(1, 1), zeros(1, 1))


def test_a_compile_error_shows_the_compiler_and_the_line() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)smem_tiling: .*smem_tiling\.cu:2:.*nonsense"):
        product(SMEM_TILING, zeros(32, 32), zeros(32, 32), source="// a kernel\nnonsense;\n")
