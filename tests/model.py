"""The arithmetic of fp16x3 and fp16x1 in numpy, step by step as an H200 does it; docs/accuracy.md derives its bounds.

The tensor core's sums are the card's to the last bit (tests/data/wgmma_h200.npz holds sums that it made). One thing
is not exact: a float32 FMA is done in float64 and then rounded, which differs from one rounding about once in 2^29.

The fields of `Algorithm` are its constants and, set otherwise, its mutants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

U = 2.0**-24
LOW = 2.0**-11  # what a unit of the low plane is worth
SMALL = 2.0**-13  # from here up, the planes hold an entry to 2u and tensor cores align it by its true exponent
TOO_LARGE = 2.0**15
LOWEST = -112  # exponent of a row: 2^(14 - e) is a float32
PARTS = 16  # of TOO_LARGE, in which norms are counted
SAMPLE, HEADROOM = 64, 3  # entries of a row that are looked at, exponents that are left above them
PANEL = 32  # rows that are split again together, where they lie along X
LONGEST, WIDEST = 32768, 128  # K that one program splits: along K, along X
ELEMENTS, TALLEST = 4096, 64  # of a tile along K that is no wider, and its rows at most
DEEPEST = 2**20
NOTHING = -10_000  # the exponent of a zero: it never decides where a sum is aligned


@dataclass(frozen=True)
class Algorithm:
    """What is computed."""

    planes: int = 2
    promote: int | None = 32  # K between two promotions of the high sums
    fold: int = 8192
    extra_bits: int = 2  # that a tensor core keeps below the 24 of float32
    weight: float = 2.0  # what |acc| must reach for each small entry of its row and column ...
    norm: float = 1.0  # ... or for each unit of what they can meet
    half_tile: tuple[int, int] = (64, 128)
    few: int = 32  # elements that a half tile may leave to float32 one by one
    along_k: bool = True  # rows of A and columns of B are contiguous; else exponents are guessed from a sample
    scaled: bool = True
    checked: bool = True
    swapped: bool = False  # A's low plane where its high plane should be
    shallow: int = 64  # K below this is done in float32 at once


FP16X3 = Algorithm()
FP16X1 = Algorithm(planes=1, promote=None, weight=0.125, half_tile=(64, 256))


@dataclass(frozen=True)
class Planes:
    """Rows of an operand, scaled by 2^(14 - exponent), in fp16; exponent 128 for those with Inf or NaN."""

    high: Floats
    low: Floats
    exponent: Ints
    smalls: Ints  # how many entries of each row are small
    norm: Floats  # an upper bound of the sum of |y|, in units of TOO_LARGE


def split(x: Floats, algorithm: Algorithm = FP16X3) -> Planes:
    """The planes of float32 rows x (R, K); B is given transposed."""
    exponent, again = row_exponents(x, algorithm)
    x = np.where(exponent[:, None] == 128, np.float32(0), x)
    y = scale(x, exponent)
    high = y.astype(np.float16).astype(np.float32)
    low = ((y - high) * np.float32(2**11)).astype(np.float16).astype(np.float32)
    small = (x != 0) & (np.abs(y) < SMALL)
    return Planes(high, low, exponent, small.sum(1), norms(y, small, again, algorithm))


def norms(y: Floats, small: NDArray[np.bool_], again: NDArray[np.bool_], algorithm: Algorithm) -> Floats:
    """Rounded up tile by tile, and K for tiles where nothing is small: nobody sums those."""
    K = y.shape[1]
    height, width = tile(K, algorithm)
    first = np.arange(0, K, width)
    seen = by_tile(np.logical_or.reduceat(small, first, 1), height, 1)
    sums = np.add.reduceat(np.abs(y.astype(np.float64)), first, 1)
    parts = np.where(seen, rounded_up(sums), PARTS * np.diff(first, append=K)).sum(1)
    whole = again | ((len(first) == 1) & ~y.any(1))
    return np.where(whole, rounded_up(sums.sum(1)), parts) / PARTS


def rounded_up(sums: Floats) -> Floats:
    """In PARTS of TOO_LARGE."""
    return np.ceil(sums * (PARTS / TOO_LARGE))


def tile(K: int, algorithm: Algorithm) -> tuple[int, int]:
    """Rows and K of what one program splits."""
    if not algorithm.along_k:
        return PANEL, WIDEST
    depth = 1 << max(4, (K - 1).bit_length())
    return max(1, min(ELEMENTS // depth, TALLEST)), LONGEST


def scale(x: Floats, exponent: Ints) -> Floats:
    """y = x 2^(14 - e), as float32."""
    return np.ldexp(x, 14 - exponent[:, None])


def row_exponents(x: Floats, algorithm: Algorithm) -> tuple[Ints, NDArray[np.bool_]]:
    """e of each row, and whether it was split again.

    e is that of the largest entry where one program splits the row; else it is a sample's until an entry exceeds that.
    """
    if not algorithm.scaled:
        return np.full(len(x), 14), np.zeros(len(x), bool)
    exact = np.maximum(floor_log2(x), LOWEST)
    R, K = x.shape
    if tile(K, algorithm)[1] >= K:
        return exact, np.zeros(R, bool)
    sampled = floor_log2(x[:, np.arange(SAMPLE) * (K // SAMPLE)])
    guess = np.clip(sampled + HEADROOM, LOWEST, 127)
    broken = ~(np.abs(scale(x, guess)) < TOO_LARGE).all(1)
    panel = np.arange(R) // tile(K, algorithm)[0]
    again = np.isin(panel, panel[broken])
    return np.where(again, exact, guess), again


def floor_log2(x: Floats) -> Ints:
    """Of the largest entry of each row; 128 where one is not finite, -127 for subnormal numbers and 0."""
    return (np.abs(x).view(np.int32).max(1) >> 23) - 127


def exponents(x: Floats) -> Ints:
    """Of fp16 numbers as tensor cores read them: a subnormal has the exponent of the smallest normal number."""
    return np.where(x == 0, NOTHING, np.maximum(np.frexp(x)[1] - 1, -14))


def accumulate(sums: Floats, a: Floats, b: Floats, extra_bits: int = 2) -> Floats:
    """sums (..., M, N) + a (..., M, 16) @ b (..., 16, N) as one wgmma step.

    The 16 exact products and the sum are aligned to the largest exponent among them (a product's is the sum of its
    factors', not normalised), cut off `extra_bits` below float32's last bit, added, and cut off at 24 bits.
    """
    products = a[..., :, None, :].astype(np.float64) * np.swapaxes(b, -1, -2)[..., None, :, :]
    top = (exponents(a)[..., :, None, :] + np.swapaxes(exponents(b), -1, -2)[..., None, :, :]).max(-1)
    top = np.maximum(top, np.where(sums == 0, NOTHING, np.frexp(sums)[1] - 1))
    top = np.maximum(top, -200)  # all zero: anything
    shift = 23 + extra_bits - top
    scale = np.ldexp(1.0, shift)
    products *= scale[..., None]
    total = np.trunc(products, out=products).sum(-1) + np.trunc(sums * scale)
    fraction, exponent = np.frexp(total)
    return np.ldexp(np.trunc(np.ldexp(fraction, 24)), exponent - 24 - shift)


def steps(x: Floats, axis: int) -> Floats:
    """Zeros appended to a multiple of 32 of K."""
    pad = [(0, 0), (0, 0)]
    pad[axis] = (0, -x.shape[axis] % 32)
    return np.pad(x, pad)


def scaled_product(a: Planes, b: Planes, algorithm: Algorithm) -> Floats:
    """The sum over K of the scaled planes, in float32: `acc`."""
    ah, al = steps(a.high, 1), steps(a.low, 1)
    bh, bl = steps(b.high, 1).T, steps(b.low, 1).T
    if algorithm.swapped:
        ah, al = al, ah
    K = ah.shape[1]
    main = np.zeros((len(ah), bh.shape[1]), np.float32)
    high, low = np.zeros_like(main, np.float64), np.zeros_like(main, np.float64)
    for k in range(0, K, 32):
        at = [slice(k, k + 16), slice(k + 16, k + 32)]
        for i in at:
            high = accumulate(high, ah[:, i], bh[i], algorithm.extra_bits)
        for x, y in ((al, bh), (ah, bl)) if algorithm.planes == 2 else ():
            for i in at:
                low = accumulate(low, x[:, i], y[i], algorithm.extra_bits)
        done = k + 32
        if done == K or (algorithm.promote and done % algorithm.promote == 0):
            main += high.astype(np.float32)
            high[:] = 0
        if done == K or done % algorithm.fold == 0:
            main += (low * LOW).astype(np.float32)
            low[:] = 0
    return main


def in_order(a: Floats, b: Floats) -> Floats:
    """Every step a float32 FMA, K in order."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):
        total = (total + a64[:, k, None] * b64[k]).astype(np.float32)
    return total


@dataclass(frozen=True)
class Result:
    """`value` is C, `fallback` tells which elements were done in float32."""

    value: Floats
    fallback: NDArray[np.bool_]


def sgemm(
    a: Floats,
    b: Floats,
    algorithm: Algorithm = FP16X3,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Floats | None = None,
) -> Result:
    """alpha * a @ b + beta * c of float32 arrays a (M, K), b (K, N)."""
    (M, K), N = a.shape, b.shape[1]
    fallback = np.ones((M, N), bool)
    product = np.zeros((M, N), np.float32)
    with np.errstate(all="ignore"):
        if algorithm.shallow <= K <= DEEPEST:
            rows, columns = split(a, algorithm), split(b.T, algorithm)
            acc = scaled_product(rows, columns, algorithm)
            reads_c = c is not None and beta != 0
            fallback = left(rows, columns, acc, replace(algorithm, few=0) if reads_c else algorithm, K)
            product = unscaled(acc, rows.exponent[:, None] - 14, columns.exponent - 14)
        if fallback.any():
            i, j = np.flatnonzero(fallback.any(1)), np.flatnonzero(fallback.any(0))
            exact = np.zeros_like(product)
            exact[np.ix_(i, j)] = in_order(a[i], b[:, j])
            product = np.where(fallback, exact, product)
        value = np.float32(alpha) * product
        if c is not None and beta != 0:
            value = (np.float64(np.float32(beta)) * c + value.astype(np.float64)).astype(np.float32)
    return Result(value, fallback)


def left(rows: Planes, columns: Planes, acc: Floats, algorithm: Algorithm, K: int) -> NDArray[np.bool_]:
    """Which elements are left to float32: for what their tile holds, for others of its half, or by themselves."""
    height, width = algorithm.half_tile
    ea, eb = rows.exponent[:, None], columns.exponent
    limit = 126 - (K - 1).bit_length()
    ea, eb = by_tile(ea, 2 * height, 1), by_tile(eb[None], 1, width)
    fallback = (ea + eb >= limit) | (np.maximum(ea, eb) == 128)
    if algorithm.checked:
        norm_a, norm_b = algorithm.norm * rows.norm[:, None], algorithm.norm * columns.norm
        lost = np.minimum(rows.smalls[:, None], norm_b) + np.minimum(columns.smalls, norm_a)
        failed = algorithm.weight * lost > np.abs(acc)
        fallback |= failed | by_tile(count(failed, height, width) > algorithm.few, height, width)
    return fallback


def unscaled(acc: Floats, up_a: Ints, up_b: Ints) -> Floats:
    """acc 2^(up_a + up_b) in three factors: in this order none overflows, or rounds, before the product does."""
    first = np.clip(up_a, -64, 64)
    return np.ldexp(np.ldexp(np.ldexp(acc, first), up_b), up_a - first)


def count(x: NDArray[np.bool_], height: int, width: int) -> Ints:
    """How many are True in each tile, for all of its elements."""
    out = np.zeros(x.shape, np.int64)
    for i in range(0, x.shape[0], height):
        for j in range(0, x.shape[1], width):
            out[i : i + height, j : j + width] = x[i : i + height, j : j + width].sum()
    return out


def by_tile(x: NDArray, height: int, width: int) -> NDArray:
    """The maximum over each tile, for all of its elements."""
    out = np.zeros_like(x)
    for i in range(0, x.shape[0], height):
        for j in range(0, x.shape[1], width):
            out[i : i + height, j : j + width] = x[i : i + height, j : j + width].max()
    return out
