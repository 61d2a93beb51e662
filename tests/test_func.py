"""torch.func's transforms of the operator, as they are and compiled: of derivatives, of batches, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._pytree import tree_leaves

from triton_sgemm import matmul, sgemm

# of a product, and of a loss(w, x) that it has a part in
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda _, loss, w, x: grad(loss)(w, x),
    "vmap of grad": lambda _, loss, w, x: vmap(grad(loss), (None, 0))(w, x),
    "grad of vmap": lambda _, loss, w, x: grad(lambda w: vmap(loss, (None, 0))(w, x).sum())(w),
    "grad of grad": lambda _, loss, w, x: grad(lambda w: grad(loss)(w, x).pow(2).sum())(w),
    "hessian": lambda _, loss, w, x: hessian(loss)(w[:2], x[0]),
    "jvp": lambda _, loss, w, x: jvp(loss, (w, x), (w, x)),
    "jvp of grad": lambda _, loss, w, x: jvp(grad(loss), (w, x), (w, x)),
    "jacrev": lambda product, _, w, x: jacrev(product)(x[0], w.mT),
    "jacfwd": lambda product, _, w, x: jacfwd(product)(x[0], w.mT),
}


def transformed(transform: str, product: Callable[[Tensor, Tensor], Tensor], w: Tensor, x: Tensor) -> list[Tensor]:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (product(x, w.mT) ** 3).sum()

    return tree_leaves(TRANSFORMS[transform](product, loss, w, x))


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func(transform: str, backend: str | None, device: str) -> None:
    w, x = torch.randn(5, 4, device=device), torch.randn(6, 3, 4, device=device)
    call = partial(transformed, transform, lambda x, w: matmul(x, w, precision="ieee"))
    if backend:
        torch._dynamo.reset()
        call = torch.compile(call, fullgraph=True, backend=backend)
    expected = transformed(transform, torch.matmul, w.double(), x.double())
    torch.testing.assert_close([t.double() for t in call(w, x)], expected, rtol=1e-3, atol=1e-3)


def addition(product: Any) -> Callable[[Tensor], Tensor]:
    """A product and a C, of a C that curves."""
    x = torch.ones(3, 3, dtype=torch.float64)
    if product is matmul:
        return lambda c: sgemm(0.5, x, x, 2.0, c**3)
    return lambda c: 0.5 * x @ x + 2.0 * c**3


@pytest.mark.parametrize("outer", [jacfwd, jacrev])
@pytest.mark.parametrize("inner", [jacfwd, jacrev])
def test_derivatives_of_derivatives_by_c(inner, outer) -> None:
    c = torch.randn(3, 3, dtype=torch.float64)
    mine, theirs = (outer(inner(addition(product)))(c) for product in (matmul, torch.matmul))
    torch.testing.assert_close(mine, theirs)


def test_without_gradients_inside_of_nested_transforms() -> None:
    x = torch.randn(3, 3, dtype=torch.float64)

    def of(product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        def inner(z: Tensor) -> Tensor:
            with torch.no_grad():
                k = product(z, x)
            return (k * z * z).sum()

        return grad(lambda z: grad(inner)(z).sum())(x)

    torch.testing.assert_close(of(matmul), of(torch.matmul))


def test_operands_that_a_transform_does_not_see(device: str) -> None:
    w, v = (torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2))
    x = torch.randn(3, 4, device=device)
    for transform in (
        lambda product: vmap(lambda z: z @ product(w, v))(x),
        lambda product: vmap(grad(lambda z: (z @ product(w, v)).sum()))(x),
        lambda product: functionalize(lambda z: z @ product(w, v))(x),
    ):
        mine, theirs = transform(partial(matmul, precision="ieee")), transform(torch.matmul)
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        mine, theirs = (torch.autograd.grad(result.sum(), (w, v)) for result in (mine, theirs))
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
