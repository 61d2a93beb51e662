"""What is multiplied: named pairs of operands, for the measured errors, the suite `data` and the tests.

    a, b = DATA["softmax"](M, N, K, generator, device)

gives float32 A (M, K) and B (K, N) of a torch generator that belongs to the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Draw:
    """Random numbers of one generator, on its device."""

    generator: Generator
    device: str | torch.device

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1)."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Tensor:
        """U(0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high`, both possible, as float32."""
        return torch.randint(low, high + 1, shape, generator=self.generator, device=self.device).float()

    def lognormal(self, sigma: float, *shape: int) -> Tensor:
        """exp(sigma N(0, 1)) with a random sign."""
        return (sigma * self.normal(*shape)).exp() * (2 * self.integers(0, 1, *shape) - 1)

    def permutation(self, n: int) -> Tensor:
        """0 to n - 1 in random order."""
        return torch.randperm(n, generator=self.generator, device=self.device)


Pair = tuple[Tensor, Tensor]
Make = Callable[[Draw, int, int, int], Pair]


@dataclass(frozen=True)
class Data:
    """A pair of operands; `random` ones are held to the bound for random data, all to the one that always holds."""

    name: str
    random: bool
    title: str
    make: Make

    def __call__(
        self, M: int, N: int, K: int, generator: Generator | None = None, device: str | torch.device = "cpu"
    ) -> Pair:
        """A (M, K) and B (K, N); without a generator, of one with seed 0."""
        generator = generator if generator is not None else Generator(device).manual_seed(0)
        return self.make(Draw(generator, device), M, N, K)


DATA: dict[str, Data] = {}


def data(title: str, random: bool = True) -> Callable[[Make], Make]:
    """Enters a function of (draw, M, N, K) into DATA under its own name."""

    def enter(make: Make) -> Make:
        DATA[make.__name__] = Data(make.__name__, random, title, make)
        return make

    return enter


# what the terms of a sum have in common: signs that cancel at random, no signs, ever heavier tails


@data("N(0, 1)")
def normal(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The usual operands of a benchmark."""
    return draw.normal(M, K), draw.normal(K, N)


@data("U(0, 1)")
def uniform(draw: Draw, M: int, N: int, K: int) -> Pair:
    """All positive: where rounding one way shows."""
    return draw.uniform(M, K), draw.uniform(K, N)


@data("U(-1, 1)")
def uniform_signed(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Bounded, both signs."""
    return 2 * draw.uniform(M, K) - 1, 2 * draw.uniform(K, N) - 1


@data("log-normal, sigma 1")
def lognormal_1(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Three orders of magnitude in a row, random signs."""
    return draw.lognormal(1, M, K), draw.lognormal(1, K, N)


@data("log-normal, sigma 2")
def lognormal_2(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Six orders of magnitude in a row."""
    return draw.lognormal(2, M, K), draw.lognormal(2, K, N)


@data("log-normal, sigma 4")
def lognormal_4(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Twelve: a few terms are the sum."""
    return draw.lognormal(4, M, K), draw.lognormal(4, K, N)


# scales: of everything, of rows and columns, along K


@data("N(0, 1) of 1e37 by 1e-37")
def huge_by_tiny(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Both ends of the exponents; the product is of ordinary size."""
    return 1e37 * draw.normal(M, K), 1e-37 * draw.normal(K, N)


@data("N(0, 1) of 1e-20 by 1e-15")
def tiny(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Products of 1e-35: not far above the smallest normal number."""
    return 1e-20 * draw.normal(M, K), 1e-15 * draw.normal(K, N)


@data("N(0, 1) of 1e-30 by 1e-13")
def subnormal(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Subnormal products of normal operands."""
    return 1e-30 * draw.normal(M, K), 1e-13 * draw.normal(K, N)


@data("N(0, 1), rows and columns of 1e-6 to 1e6")
def unscaled(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Each row of A and each column of B has a power of ten of its own."""
    rows, columns = 10.0 ** draw.integers(-6, 6, M, 1), 10.0 ** draw.integers(-6, 6, 1, N)
    return rows * draw.normal(M, K), columns * draw.normal(K, N)


@data("N(0, 1), columns of A of 1e-6 to 1e6")
def features(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Samples whose features have units of their own: every row of A holds them all."""
    return 10.0 ** draw.integers(-6, 6, 1, K) * draw.normal(M, K), draw.normal(K, N)


def _with_an_outlier(draw: Draw, M: int, N: int, K: int, size: float) -> Pair:
    a = draw.normal(M, K)
    a.scatter_(1, draw.integers(0, K - 1, M, 1).long(), size)
    return a, draw.normal(K, N)


@data("N(0, 1), an entry of 1e10 in each row of A", random=False)
def outlier_1e10(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The others lie 2^-33 below their row's maximum."""
    return _with_an_outlier(draw, M, N, K, 1e10)


@data("N(0, 1), an entry of 1e30 in each row of A", random=False)
def outlier_1e30(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The others vanish beside it, in float32 too."""
    return _with_an_outlier(draw, M, N, K, 1e30)


# what networks multiply


@data("softmax of N(0, 1) by N(0, 1)")
def softmax(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Rows of weights that add up to 1."""
    return draw.normal(M, K).softmax(-1), draw.normal(K, N)


@data("softmax of N(0, 4^2) by N(0, 1)")
def softmax_sharp(draw: Draw, M: int, N: int, K: int) -> Pair:
    """One weight in eight lies 2^-27 below its row's maximum (K = 4096)."""
    return (4 * draw.normal(M, K)).softmax(-1), draw.normal(K, N)


@data("relu of N(0, 1) by N(0, 1)")
def relu(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Half of A is zero."""
    return draw.normal(M, K).relu(), draw.normal(K, N)


@data("relu squared of N(0, 1) by N(0, 1)")
def relu_squared(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Half of A is zero, the rest reaches further down."""
    return draw.normal(M, K).relu().square(), draw.normal(K, N)


@data("sparse log-normal, sigma 3, by N(0, 1)")
def gradients(draw: Draw, M: int, N: int, K: int) -> Pair:
    """One entry in ten of A is not zero, of nine orders of magnitude."""
    return 1e-4 * draw.lognormal(3, M, K) * (draw.uniform(M, K) < 0.1), draw.normal(K, N)


# structure


@data("N(0, 1) by the identity", random=False)
def identity(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The product is A: nothing hides an entry that was lost."""
    return draw.normal(M, K), torch.eye(K, N, device=draw.device)


@data("N(0, 1) by a permutation", random=False)
def permutation(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The product is A with its columns in another order."""
    return draw.normal(M, K), torch.eye(K, device=draw.device)[draw.permutation(K), :N].contiguous()


@data("1 / (i + k + 1) by 1 / (k + j + 1)", random=False)
def graded(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Hilbert's matrix: positive, falling along K."""
    i, j, k = (torch.arange(n, device=draw.device, dtype=torch.float64) for n in (M, N, K))
    return (1 / (i[:, None] + k + 1)).float(), (1 / (k[:, None] + j + 1)).float()


@data("powers of two along K", random=False)
def graded_steeply(draw: Draw, M: int, N: int, K: int) -> Pair:
    """A falls by 2^60 along K as B rises, so that every product is of one size."""
    k = torch.linspace(30, -30, K, device=draw.device).round()
    return 2.0**k * draw.normal(M, K), 2.0 ** -k[:, None] * draw.normal(K, N)


@data("whole numbers from -8 to 8", random=False)
def integers(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Exact in float32, and so in every algorithm."""
    return draw.integers(-8, 8, M, K), draw.integers(-8, 8, K, N)


@data("pairs that cancel to 1e-6", random=False)
def cancellation(draw: Draw, M: int, N: int, K: int) -> Pair:
    """The second half of K takes back the first, all but a millionth of each term."""
    half, odd = K // 2, K % 2
    a, b = draw.normal(M, half), draw.normal(half, N)
    a = torch.cat([a, a, 1e-6 * draw.normal(M, odd)], 1)
    return a, torch.cat([b, -b * (1 + 1e-6 * draw.normal(half, N)), draw.normal(odd, N)])


@data("0.1 everywhere", random=False)
def constant(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Every rounding falls the same way: a sum in order drifts."""
    return torch.full((M, K), 0.1, device=draw.device), torch.full((K, N), 0.1, device=draw.device)


@data("N(0, 1), an Inf in each row of A", random=False)
def infinite(draw: Draw, M: int, N: int, K: int) -> Pair:
    """Nothing that splits its operands can serve any element."""
    return _with_an_outlier(draw, M, N, K, float("inf"))
