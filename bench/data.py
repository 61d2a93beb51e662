"""What the operands hold: each entry draws A (M, K) and B (K, N) of one named distribution.

N(0,1) is the bench's own. The others are what reaches a matmul in use, and what is hard on one that splits its
operands: rows whose entries span many powers of two, and values that no split can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

Draw = Callable[[int, int, int, Generator, str], tuple[Tensor, Tensor]]


def normal(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """N(0,1)."""
    a = torch.randn(M, K, generator=generator, device=device)
    return a, torch.randn(K, N, generator=generator, device=device)


def uniform(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """U(0,1): all positive, so that nothing cancels and a rounding that falls one way adds up."""
    a = torch.rand(M, K, generator=generator, device=device)
    return a, torch.rand(K, N, generator=generator, device=device)


def softmax(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """Attention: A's rows are softmax of 4 N(0,1), B is N(0,1)."""
    a, b = normal(M, N, K, generator, device)
    return torch.softmax(4 * a, dim=1), b


def relu(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """Activations: half of A is zero."""
    a, b = normal(M, N, K, generator, device)
    return a.relu_(), b


def relu2(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """Activations squared: half of A is zero, the rest crowds towards it."""
    a, b = relu(M, N, K, generator, device)
    return a.square_(), b


def unscaled(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """A table nobody normalised: A's columns differ by powers of ten, 10^-4 to 10^4."""
    a, b = normal(M, N, K, generator, device)
    return a * 10 ** (8 * torch.rand(K, generator=generator, device=device) - 4), b


def gradients(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """A gradient: small, each row with a scale of its own over six powers of ten, one entry in ten not zero."""
    a, b = normal(M, N, K, generator, device)
    scale = 10 ** (6 * torch.rand(M, 1, generator=generator, device=device) - 9)
    return a * scale * (torch.rand(M, K, generator=generator, device=device) < 0.1), b


def lognormal(sigma: float, M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """Sign at random, magnitude exp(sigma N(0,1)): the larger sigma, the more powers of two a row spans."""
    a, b, of_a, of_b = (*normal(M, N, K, generator, device), *normal(M, N, K, generator, device))
    return torch.exp(sigma * a) * of_a.sign(), torch.exp(sigma * b) * of_b.sign()


def infinite(M: int, N: int, K: int, generator: Generator, device: str) -> tuple[Tensor, Tensor]:
    """One Inf in every row of A: nothing that splits its operands can serve any element."""
    a, b = normal(M, N, K, generator, device)
    at = torch.randint(K, (M, 1), generator=generator, device=device)
    return a.scatter_(1, at, float("inf")), b


DATA: dict[str, Draw] = {
    "normal": normal,
    "uniform": uniform,
    "softmax": softmax,
    "relu": relu,
    "relu2": relu2,
    "unscaled": unscaled,
    "gradients": gradients,
    "lognormal1": partial(lognormal, 1.0),
    "lognormal4": partial(lognormal, 4.0),
    "infinite": infinite,
}
