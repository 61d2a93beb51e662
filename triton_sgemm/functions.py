"""PyTorch's functions around a product, with its names, signatures and broadcasting, and `precision=`."""

from __future__ import annotations

from torch import Tensor

from .call import call
from .checks import check_numbers, check_tensors
from .errors import ShapeError
from .prepare import Prepared


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """beta * input + alpha * mat1 @ mat2 in float32.

    Shapes    mat1 (M, K), mat2 (K, N), input broadcastable to (M, N). Any strides.
    Computes  as `sgemm`: beta == 0: input is not read.
    Returns   float32 (M, N), contiguous; or `out`, which may be `input` itself.
    Raises    ShapeError for what are no matrices, else as `sgemm`.
    Source    torch.addmm.
    """
    _check("addmm", 2, mat1=mat1, mat2=mat2)
    check_numbers("addmm", alpha=alpha, beta=beta)
    labels = ("mat1", "mat2", "input")
    return call("addmm", mat1, mat2, alpha=alpha, beta=beta, c=input, out=out, precision=precision, labels=labels)


def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None, precision: str | None = None) -> Tensor:
    """A product for each of a batch, in float32.

    Shapes    input (Z, M, K), mat2 (Z, K, N). Any strides.
    Computes  as `matmul`.
    Returns   float32 (Z, M, N), contiguous; or `out`.
    Raises    ShapeError for what are no batches of one size, else as `matmul`.
    Source    torch.bmm.
    """
    _check("bmm", 3, input=input, mat2=mat2)
    return call("bmm", input, mat2, out=out, precision=precision, labels=("input", "mat2", "c"))


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """beta * input + alpha * batch1 @ batch2 for each of a batch, in float32.

    Shapes    batch1 (Z, M, K), batch2 (Z, K, N), input broadcastable to (Z, M, N). Any strides.
    Computes  as `sgemm`: beta == 0: input is not read.
    Returns   float32 (Z, M, N), contiguous; or `out`, which may be `input` itself.
    Raises    ShapeError for what are no batches of one size, else as `sgemm`.
    Source    torch.baddbmm.
    """
    _check("baddbmm", 3, batch1=batch1, batch2=batch2)
    check_numbers("baddbmm", alpha=alpha, beta=beta)
    labels = ("batch1", "batch2", "input")
    return call("baddbmm", batch1, batch2, alpha=alpha, beta=beta, c=input, out=out, precision=precision, labels=labels)


def linear(
    input: Tensor,
    weight: Tensor | Prepared,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    precision: str | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias) in float32: a layer of `torch.nn.Linear`, and what follows it.

    Shapes    input (..., K), weight (N, K) or (K,), bias broadcastable to the result. Any strides.
              weight may be `prepare(weight.T)`: what is prepared is always the right operand of a product, (K, N).
              (`prepare(weight)` would be multiplied untransposed; of a weight that is not square it is refused.)
    Computes  one product to whose result the bias is added before it is rounded; as `matmul` otherwise. activation is
              None, "relu", "gelu" (the exact one, by erf) or "silu", torch.nn.functional's to a few float32 ulps. It is
              part of the product's kernel. Where autograd records the call, under torch.compile, vmap and torch.func,
              on the CPU and in other dtypes torch's own is called on the product instead: a pass more over memory,
              with torch's derivative.
    Returns   float32 (..., N), or (...) for a weight (K,); contiguous.
    Raises    as `matmul`, ValueError for an unknown activation, DtypeError for integers with a bias or activation.
    Source    torch.nn.functional.linear, relu, gelu, silu.
    """
    b: Tensor | Prepared
    if isinstance(weight, Prepared):
        b, K = weight, weight.b.shape[0]
        came, need = f"what was prepared is {tuple(weight.b.shape)}", "prepare(weight.T), (K, N), for a weight (N, K)"
    else:
        check_tensors("linear", weight=weight)
        if weight.ndim not in (1, 2):
            raise ShapeError(f"linear: weight is {tuple(weight.shape)}; need (N, K) or (K,)")
        b, K = weight.mT if weight.ndim == 2 else weight, weight.shape[-1]
        came, need = f"weight is {tuple(weight.shape)}", "a weight (N, K)"
    check_tensors("linear", input=input)
    if input.ndim == 0 or input.shape[-1] != K:
        sizes = f": inner sizes {input.shape[-1]} and {K} differ" if input.ndim else ""
        raise ShapeError(f"linear: input is {tuple(input.shape)} but {came}{sizes}; need an input (..., K) and {need}")
    labels = ("input", "weight", "bias")
    beta = 0.0 if bias is None else 1.0
    return call("linear", input, b, beta=beta, c=bias, activation=activation, precision=precision, labels=labels)


def _check(name: str, ndim: int, **tensors: Tensor) -> None:
    """Raises unless both are tensors of `ndim` dimensions that can be multiplied, and batches of one size."""
    check_tensors(name, **tensors)
    shapes = " but ".join(f"{label} is {tuple(t.shape)}" for label, t in tensors.items())
    x, y = tensors.values()
    if x.ndim != ndim or y.ndim != ndim:
        need = "matrices (M, K) and (K, N)" if ndim == 2 else "batches (Z, M, K) and (Z, K, N)"
        raise ShapeError(f"{name}: {shapes}; need {need}, or matmul and sgemm, which take any")
    if x.shape[-1] != y.shape[-2]:
        need = "(M, K) and (K, N)" if ndim == 2 else "(Z, M, K) and (Z, K, N)"
        raise ShapeError(f"{name}: {shapes}: inner sizes {x.shape[-1]} and {y.shape[-2]} differ; need {need}")
    if ndim == 3 and x.shape[0] != y.shape[0]:
        raise ShapeError(
            f"{name}: {shapes}: batch sizes {x.shape[0]} and {y.shape[0]} differ; matmul and sgemm broadcast them"
        )
