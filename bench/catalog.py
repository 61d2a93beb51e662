"""Every variant there is, in one explicit list: cuBLAS, the raw CUDA rungs, the ladder, the algorithms, their peers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor

import triton_sgemm
from reference_cuda import loader, on_cpu
from reference_cuda.rungs import RUNGS, Rung
from triton_sgemm.algorithms import dot, fma, planes_dot, tensor_core
from triton_sgemm.device import gpu
from triton_sgemm.execute import launch
from triton_sgemm.ladder import rungs
from triton_sgemm.plan import plan
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.problem import Problem
from triton_sgemm.product import product
from triton_sgemm.variants import Precision, Variant, unique

from . import peers


def run_cublas(precision: str, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """cuBLAS through torch, its switch at `precision`."""
    # the bench sets it around many calls: reading takes 2 microseconds of a call, setting it 16
    is_set = torch.backends.cuda.matmul.fp32_precision == precision
    with nullcontext() if is_set else torch_matmul_precision(precision):
        if c is None and p.alpha == 1:
            (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out=out)
        else:
            added = torch.addmm if a.ndim == 2 else torch.baddbmm
            added(out if c is None else c, a, b, beta=p.beta, alpha=p.alpha, out=out)


def run_matmul(precision: str, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """The public call of one precision, as a user makes it: checks, plan and launch included."""
    if out.is_cuda:
        triton_sgemm.sgemm(p.alpha, a, b, p.beta, c, out=out, precision=precision)
    else:  # there the public call is torch's; what it does on a GPU runs in the interpreter
        product("matmul", a, b, alpha=p.alpha, beta=p.beta, c=c, out=out, precision=precision)


def fallback_of_matmul(precision: str, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> float | None:
    """The share of elements that the public call leaves to strict float32; None where it does all so."""
    chosen = plan(p, gpu(out.device.index) if out.is_cuda else None, precision)
    if not isinstance(chosen.tile, tensor_core.Tile):
        return None
    launched = launch(chosen, p, a, b, c, out)
    launched.run(out.device)
    batch = (p.K // chosen.depth, *p.batch)
    return tensor_core.share_left(launched, replace(p, batch=batch), chosen.tile)


def run_cuda(rung: Rung, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """A raw CUDA rung: on the GPU as compiled by nvcc, on the CPU as executed by fibers."""
    if c is not None and c is not out:
        out.copy_(c)
    (loader if out.is_cuda else on_cpu).run(rung, a, b, out, p.alpha, p.beta)


CUBLAS = Variant(
    "cublas",
    "torch",
    "ieee",
    run_with=partial(run_cublas, "ieee"),
    doc="cuBLAS through torch, TF32 off: the baseline of every ieee and fp32 row.",
    batched=True,
)
CUBLAS_TF32 = Variant(
    "cublas_tf32",
    "torch",
    "tf32",
    run_with=partial(run_cublas, "tf32"),
    doc="cuBLAS through torch, TF32 on: the baseline of every tf32 row.",
    batched=True,
)
# of a row, by its precision
BASELINES: dict[Precision, Variant] = {"ieee": CUBLAS, "fp32": CUBLAS, "tf32": CUBLAS_TF32}

MATMULS = tuple(
    Variant(
        f"matmul_{precision}",
        "triton",
        precision,
        run_with=partial(run_matmul, precision),
        fallback=partial(fallback_of_matmul, precision),
        doc=run_matmul.__doc__,
        batched=True,
    )
    for precision in BASELINES
)

VARIANTS = unique(
    [
        CUBLAS,
        CUBLAS_TF32,
        *(
            Variant(
                f"{rung.name}_cuda",
                "cuda",
                "ieee",
                rung=rung.number,
                multiple_of=rung.multiple_of,
                row_major=True,
                run_with=partial(run_cuda, rung),
                doc=rung.doc,
            )
            for rung in RUNGS
        ),
        *rungs(),
        *fma.VARIANTS,
        *dot.VARIANTS,
        *tensor_core.VARIANTS,
        *planes_dot.VARIANTS,
        *peers.VARIANTS,
        *MATMULS,
    ]
)


def select(patterns: list[str]) -> list[Variant]:
    """The variants whose name matches any of the globs; raises ValueError for a glob that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in VARIANTS):
            raise ValueError(f"no variant is called {pattern!r}; there are {', '.join(VARIANTS)}")
    return [v for name, v in VARIANTS.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def rung_of(variant: Variant) -> Rung | None:
    """The raw CUDA kernel that a variant runs, if it runs one."""
    return next((rung for rung in RUNGS if variant.backend == "cuda" and variant.name == f"{rung.name}_cuda"), None)


def with_baselines(variants: list[Variant]) -> list[Variant]:
    """`variants` and what they are compared with: cuBLAS always, cuBLAS with TF32 where one of them is tf32."""
    wanted = {CUBLAS.name} | {name for v in variants for name in (v.name, BASELINES[v.precision].name)}
    return [v for name, v in VARIANTS.items() if name in wanted]


def twins() -> list[tuple[Variant, Variant]]:
    """Each raw CUDA rung with its Triton or Gluon twin, from the lowest rung up."""
    pairs = [
        (cuda, twin)
        for cuda in VARIANTS.values()
        for twin in VARIANTS.values()
        if cuda.backend == "cuda" and twin.backend != "cuda" and cuda.rung == twin.rung
    ]
    return sorted(pairs, key=lambda pair: pair[0].rung or 0)
