"""Every variant there is, in one explicit list: cuBLAS, the ladder, the algorithms, the raw CUDA rungs."""

from __future__ import annotations

from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor

import triton_sgemm
from reference_cuda import loader, on_cpu
from reference_cuda.rungs import RUNGS, Rung
from triton_sgemm.algorithms import dot, fma
from triton_sgemm.ladder import rungs
from triton_sgemm.matmul import product
from triton_sgemm.precision import torch_matmul_precision
from triton_sgemm.problem import Problem
from triton_sgemm.variants import Variant, unique


def run_cublas(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """cuBLAS through torch, TF32 off: the baseline of every strict float32 row."""
    # the bench sets it around many calls: reading takes 2 microseconds of a call, setting it 16
    strict = torch.backends.cuda.matmul.fp32_precision == "ieee"
    with nullcontext() if strict else torch_matmul_precision("ieee"):
        if c is None and p.alpha == 1:
            (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out=out)
        else:
            added = torch.addmm if a.ndim == 2 else torch.baddbmm
            added(out if c is None else c, a, b, beta=p.beta, alpha=p.alpha, out=out)


def run_matmul(p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """The public call, as a user makes it: checks, plan and launch included."""
    if out.is_cuda:
        triton_sgemm.sgemm(p.alpha, a, b, p.beta, c, out=out, precision="ieee")
    else:  # there the public call is torch's; what it does on a GPU runs in the interpreter
        product("matmul", a, b, alpha=p.alpha, beta=p.beta, c=c, out=out)


def run_cuda(rung: Rung, p: Problem, a: Tensor, b: Tensor, c: Tensor | None, out: Tensor) -> None:
    """A raw CUDA rung: on the GPU as compiled by nvcc, on the CPU as executed by fibers."""
    if c is not None and c is not out:
        out.copy_(c)
    (loader if out.is_cuda else on_cpu).run(rung, a, b, out, p.alpha, p.beta)


CUBLAS = Variant("cublas", "torch", "ieee", run_with=run_cublas, doc=run_cublas.__doc__, batched=True)
MATMUL = Variant("matmul_ieee", "triton", "ieee", run_with=run_matmul, doc=run_matmul.__doc__, batched=True)

VARIANTS = unique(
    [
        CUBLAS,
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
        MATMUL,
    ]
)


def select(patterns: list[str]) -> list[Variant]:
    """The variants whose name matches any of the globs; raises ValueError for a glob that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in VARIANTS):
            raise ValueError(f"no variant is called {pattern!r}; there are {', '.join(VARIANTS)}")
    return [v for name, v in VARIANTS.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def twins() -> list[tuple[Variant, Variant]]:
    """Each raw CUDA rung with its Triton or Gluon twin, from the lowest rung up."""
    pairs = [
        (cuda, twin)
        for cuda in VARIANTS.values()
        for twin in VARIANTS.values()
        if cuda.backend == "cuda" and twin.backend != "cuda" and cuda.rung == twin.rung
    ]
    return sorted(pairs, key=lambda pair: pair[0].rung or 0)
