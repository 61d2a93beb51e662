"""What `python -m triton_sgemm` asks of this machine: each precision against float64, and what every call promises.

A check runs the public functions on operands of its own and raises `Wrong` where something else came than was promised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from .device import CARDS
from .errors import first_line
from .execute import launch
from .matmul import matmul, sgemm
from .plan import plan
from .precision import PRECISIONS, torch_matmul_precision
from .problem import problem
from .product import product
from .testing import Reference, classes, errors, guarded, random_bound, reference, tf32_bound

BOUNDS = {"ieee": random_bound, "fp32": random_bound, "tf32": tf32_bound, None: random_bound}
PROMISES = {
    "ieee": "4 + 1.5 sqrt(K) roundings",
    "fp32": "4 + 1.5 sqrt(K) roundings",
    "tf32": "the bound of TF32",
    None: "4 + 1.5 sqrt(K) roundings",
}

# (batch, M, N, K): what is common, then what is odd, deep, narrow, a batch, tiny, and no product at all
ON_GPU = (
    (2048, 2048, 2048),
    (1000, 1001, 999),
    (300, 200, 257),
    (64, 64, 20_000),
    (20_000, 3, 512),
    (1, 4096, 4096),
    (7, 65, 33, 129),
    (1, 1, 1),
    (5, 7, 0),
    (5, 1, 0),
)
ON_CPU = ((256, 256, 256), (100, 101, 99), (3, 65, 33, 129), (1, 1, 1), (5, 7, 0))
IN_EVERY_LAYOUT = 2  # the first of them


@dataclass
class Wrong(Exception):
    """What was `expected`, and what `came` in its place."""

    expected: str
    came: str


@dataclass(frozen=True)
class Check:
    """One question: `run` returns where the answer is as promised, and raises where it is not."""

    group: str
    name: str
    run: Callable[[], None]

    def failure(self) -> Wrong | None:
        """What went wrong, exceptions of any kind among it."""
        try:
            self.run()
        except Wrong as e:
            return e
        except Exception as e:  # a kernel that does not compile or launch is an answer too
            return Wrong("a result", f"{type(e).__name__}: {first_line(e)}")
        return None


def checks(device: torch.device) -> Iterator[Check]:
    """All checks of a device, the most telling first."""
    on_gpu = device.type == "cuda"
    shapes, precisions = (ON_GPU, PRECISIONS) if on_gpu else (ON_CPU, (None,))
    for layout in ("NN", "TN", "NT", "TT"):
        for shape in shapes if layout == "NN" else shapes[:IN_EVERY_LAYOUT]:
            for precision in precisions:
                group = f"{precision or 'torch.matmul'}: products within {PROMISES[precision]} of float64"
                if on_gpu:
                    group += ", twice the same bits, nothing written beside them"
                name = f"{precision or 'matmul'}, {' x '.join(map(str, shape))}, {layout}"
                yield Check(group, name, partial(check_product, shape, layout, precision, device))
    for check, group, own in (
        (check_special, "Inf and NaN where torch's float32 has them", shapes[:IN_EVERY_LAYOUT]),
        (check_in_place, "alpha * A @ B + beta * C, into C itself", shapes[1:2]),
        (check_gradients, "gradients", shapes[1:2]),
    ):
        for shape in own:
            for precision in precisions:
                name = f"{group}: {precision or 'matmul'}, {' x '.join(map(str, shape))}"
                yield Check(group, name, partial(check, shape, precision, device))
    if not on_gpu:
        if triton.knobs.runtime.interpret:
            for shape in ON_CPU[1:]:
                name = f"interpreted, {' x '.join(map(str, shape))}"
                yield Check("kernels in Triton's interpreter", name, partial(check_interpreted, shape))
        else:
            yield Check("kernels compile for a GPU that is not here", "compiled for sm_90", check_compiled)


def run(checks: Iterable[Check], seconds: float) -> tuple[list[tuple[Check, Wrong | None]], list[Check]]:
    """Each check with its failure, and those that were left out since the time was up."""
    end = time.perf_counter() + seconds
    done: list[tuple[Check, Wrong | None]] = []
    left: list[Check] = []
    for check in checks:
        if time.perf_counter() < end:
            done.append((check, check.failure()))
        else:
            left.append(check)
    return done, left


# ---- the checks


def check_product(shape: tuple[int, ...], layout: str, precision: str | None, device: torch.device) -> None:
    """`matmul` into NaN, beside bytes that must stay as they are; on a GPU, once more."""
    a, b = _operands(shape, device, layout)
    expected = reference(a, b)
    out, untouched = guarded(tuple(expected.value.shape), device)
    matmul(a, b, out=out, precision=precision)
    _compare(out, expected, precision)
    if not untouched():
        raise Wrong("memory beside the output as it was", "another value in it")
    if device.type == "cuda":
        first = out.clone()
        out.fill_(float("nan"))
        matmul(a, b, out=out, precision=precision)
        if not torch.equal(out.view(torch.int32), first.view(torch.int32)):
            raise Wrong("the same bits from the same call", f"{int((out != first).sum()):,} elements that differ")


def check_special(shape: tuple[int, ...], precision: str | None, device: torch.device) -> None:
    """Operands that are not finite: the class of every element as torch's float32 has it, the finite ones right."""
    inf, nan = float("inf"), float("nan")
    a, b = _operands(shape, device)
    a[0, 0], a[1, 1], a[2, 2] = inf, -inf, nan
    a[4, 0], a[4, 1] = inf, -inf
    b[7, 5], b[0, 3] = inf, 0.0
    with torch_matmul_precision("ieee"):
        theirs = torch.matmul(a, b)
    result = matmul(a, b, precision=precision)
    differs = classes(result) != classes(theirs)
    if differs.any():
        at = tuple(differs.nonzero()[0].tolist())
        raise Wrong(
            f"{theirs[at].item()} at {list(at)}, as torch.matmul has it",
            f"{result[at].item()}, and {int(differs.sum()):,} elements of another class in all",
        )
    finite, expected = theirs.isfinite(), reference(a, b)
    value, scale = expected.value.where(finite, 0.0), expected.scale.where(finite, 1.0)
    _compare(result.where(finite, 0.0), Reference(value, scale, expected.depth), precision)


def check_in_place(shape: tuple[int, ...], precision: str | None, device: torch.device) -> None:
    """`sgemm` into C itself; C is not read where beta is 0, A and B are not where alpha is."""
    a, b = _operands(shape, device)
    c = _draw(device, 3)(a.shape[0], b.shape[1])
    expected = reference(a, b, -0.75, 1.5, c)
    twice, was = reference(a, b, 2.0), c.clone()
    if sgemm(-0.75, a, b, 1.5, c, out=c, precision=precision) is not c:
        raise Wrong("C itself as the result", "another tensor")
    _compare(c, expected, precision)
    c.fill_(float("nan"))
    sgemm(2.0, a, b, 0.0, c, out=c, precision=precision)
    _compare(c, twice, precision)
    a.fill_(float("nan"))
    kept = sgemm(0.0, a, b, 1.0, was, precision=precision)
    if not torch.equal(kept, was):
        raise Wrong("C as it was, for alpha 0 and beta 1", f"{int((kept != was).sum()):,} elements that differ")


def check_gradients(shape: tuple[int, ...], precision: str | None, device: torch.device) -> None:
    """Of A and B: products themselves."""
    a, b = (t.requires_grad_() for t in _operands(shape, device))
    gradient = _draw(device, 4)(a.shape[0], b.shape[1])
    of_a, of_b = torch.autograd.grad(matmul(a, b, precision=precision), (a, b), gradient)
    a, b = a.detach(), b.detach()
    _compare(of_a, reference(gradient, b.mT), precision)
    _compare(of_b, reference(a.mT, gradient), precision)


def check_interpreted(shape: tuple[int, ...]) -> None:
    """A kernel as numpy executes it."""
    a, b = _operands(shape, torch.device("cpu"))
    _compare(product("selfcheck", a, b, precision="ieee"), reference(a, b), "ieee")


def check_compiled() -> None:
    """What an H200 would run for a product of two small squares."""
    card = CARDS["h200"]
    x = torch.empty(512, 512)
    p = problem(x, x, None, x, 1.0, 0.0)
    for each in launch(plan(p, card), p, x, x, None, x).all():
        each.compile(card.capability)


# ---- operands and verdicts


def _draw(device: torch.device, seed: int) -> Callable[..., Tensor]:
    """N(0, 1), the same numbers in every run."""
    return partial(torch.randn, device=device, generator=torch.Generator(device).manual_seed(seed))


def _operands(shape: tuple[int, ...], device: torch.device, layout: str = "NN") -> tuple[Tensor, Tensor]:
    """A and B of (batch, M, N, K), each stored as its letter says: T is transposed."""
    *batch, M, N, K = shape
    a = _draw(device, 1)(*batch, *((M, K) if layout[0] == "N" else (K, M)))
    b = _draw(device, 2)(*batch, *((K, N) if layout[1] == "N" else (N, K)))
    return a if layout[0] == "N" else a.mT, b if layout[1] == "N" else b.mT


def _compare(result: Tensor, expected: Reference, precision: str | None) -> None:
    bound = BOUNDS[precision](expected.depth)
    found = errors(result, expected)
    if not found.within(bound):
        ratio = ((result.double() - expected.value).abs() / expected.scale).nan_to_num(nan=float("inf"))
        at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
        raise Wrong(
            f"every error at most {bound:.2e} |A||B| ({PROMISES[precision]})",
            f"{found.largest:.2e} |A||B|: {result[at].item()} at {list(at)}, in float64 {expected.value[at].item()}",
        )
