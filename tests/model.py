"""The arithmetic of fp16x3 and fp16x1 in numpy, step by step as an H200 does it; docs/accuracy.md derives its bounds.

The tensor core's sums are the card's to the last bit (tests/data/wgmma_h200.npz holds sums that it made). One thing
is not exact: a float32 FMA is done in float64 and then rounded, which differs from one rounding about once in 2^29.

The fields of `Algorithm` are its constants and, set otherwise, its mutants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

U = 2.0**-24
LOW = 2.0**-11  # what a unit of the low plane is worth
SMALL = 2.0**-13  # from here up, the planes hold an entry to 2u and tensor cores align it by its true exponent
NOTHING = -10_000  # the exponent of a zero: it never decides where a sum is aligned
NOT_FINITE = 1 << 14
ZERO_ROW = -150


@dataclass(frozen=True)
class Algorithm:
    """What is computed.

    `lost` says what counts as lost: "entries", each below SMALL that is not zero, the same for all; "planes", what the
    planes miss of them and no more.
    """

    planes: int = 2
    promote: int | None = 32  # K between two promotions of the high sums
    fold: int = 8192
    extra_bits: int = 2  # that a tensor core keeps below the 24 of float32
    budget: float = 4  # lost mass may cost this many u (of one plane: 2^-11)
    half_tile: tuple[int, int] = (64, 128)
    scaled: bool = True
    checked: bool = True
    lost: str = "entries"
    swapped: bool = False  # A's low plane where its high plane should be
    shallow: int = 64  # K below this is done in float32 at once


FP16X3 = Algorithm()
FP16X1 = Algorithm(planes=1, promote=None, half_tile=(64, 256))


@dataclass(frozen=True)
class Planes:
    """Rows of an operand, scaled by 2^(14 - exponent), in fp16; `lost` in units of the scaled product."""

    high: Floats
    low: Floats
    exponent: Ints
    lost: Floats


def split(x: Floats, algorithm: Algorithm = FP16X3) -> Planes:
    """The planes of float32 rows x (R, K); B is given transposed."""
    finite = np.isfinite(x).all(1)
    x = np.where(finite[:, None], x, np.float32(0))
    largest = np.abs(x).max(1)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1, ZERO_ROW)
    shift = 14 - exponent if algorithm.scaled else np.zeros_like(exponent)
    y = np.ldexp(x.astype(np.float64), shift[:, None]).astype(np.float32)
    high = y.astype(np.float16).astype(np.float32)
    rest = (y - high) * np.float32(2**11)
    low = rest.astype(np.float16).astype(np.float32)

    y64 = np.abs(y).astype(np.float64)
    if algorithm.lost == "entries":
        excess = np.where(y64 < SMALL, 2.0**-34 if algorithm.planes == 2 else 2.0**-25, 0)
    elif algorithm.planes == 2:
        excess = np.maximum(0, np.abs(rest - low) * LOW - 2 * U * y64)
    else:
        excess = np.maximum(0, np.abs(y - high) - LOW * y64)
    excess = np.where(y64 < 2.0**-60, np.maximum(excess, 2.0**-60), excess)
    unit = U if algorithm.planes == 2 else LOW
    lost = np.where(x != 0, excess, 0).sum(1) * 2.0**15 / (algorithm.budget * unit)
    return Planes(high, low, np.where(finite, exponent, NOT_FINITE), lost)


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
    for k in range(0, K, 16):
        at = slice(k, k + 16)
        high = accumulate(high, ah[:, at], bh[at], algorithm.extra_bits)
        if algorithm.planes == 2:
            low = accumulate(low, al[:, at], bh[at], algorithm.extra_bits)
            low = accumulate(low, ah[:, at], bl[at], algorithm.extra_bits)
        done = k + 16
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
    height, width = algorithm.half_tile
    fallback = np.ones((M, N), bool)
    product = np.zeros((M, N), np.float32)
    with np.errstate(all="ignore"):
        if algorithm.shallow <= K:
            rows, columns = split(a, algorithm), split(b.T, algorithm)
            fallback = by_tile(overflows(rows, columns, K), 2 * height, width)
            acc = scaled_product(rows, columns, algorithm)
            if algorithm.checked:
                failed = ~(rows.lost[:, None] + columns.lost <= np.abs(acc))
                fallback |= by_tile(failed, height, width)
            # 2^e as two powers, so that none overflows or underflows before the product does; below 2^-252 all is 0
            e = np.clip(rows.exponent[:, None] + columns.exponent - 28, -252, 252) * algorithm.scaled
            product = np.ldexp(np.ldexp(acc, e // 2), e - e // 2)
        if fallback.any():
            i, j = np.flatnonzero(fallback.any(1)), np.flatnonzero(fallback.any(0))
            exact = np.zeros_like(product)
            exact[np.ix_(i, j)] = in_order(a[i], b[:, j])
            product = np.where(fallback, exact, product)
        value = np.float32(alpha) * product
        if c is not None and beta != 0:
            value = (np.float64(np.float32(beta)) * c + value.astype(np.float64)).astype(np.float32)
    return Result(value, fallback)


def overflows(rows: Planes, columns: Planes, K: int) -> NDArray[np.bool_]:
    """Where a float32 partial sum might overflow, or an operand is not finite."""
    bits = 2 + int(np.ceil(np.log2(K)))
    return rows.exponent[:, None] + columns.exponent + bits >= 128


def by_tile(failed: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Every element of a tile with a failed one."""
    out = np.zeros_like(failed)
    for i in range(0, failed.shape[0], height):
        for j in range(0, failed.shape[1], width):
            out[i : i + height, j : j + width] = failed[i : i + height, j : j + width].any()
    return out
