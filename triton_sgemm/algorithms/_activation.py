"""What is done last to an element of the result. For Triton's and Gluon's kernels.

Each activation is the function that torch.nn.functional has under its name, step by step, so that NaN and Inf come out
as there: relu keeps NaN, gelu and silu make -Inf NaN. Add one here, in both places, and it is there.
"""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATIONS = ("relu", "gelu", "silu")


@triton.jit
def activated(x, NAME: tl.constexpr):
    """One of ACTIVATIONS of x; None leaves it as it is."""
    if NAME == "relu":
        x = tl.where(x <= 0.0, 0.0, x)
    elif NAME == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "silu":
        x = x / (1.0 + exp(-x))
    return x


@triton.jit
def exp(x):
    """e^x to a few ulps, for x beside 1: `tl.exp` rounds x log2(e), which costs |x| ulps. Of NaN a number."""
    x = tl.minimum(tl.maximum(x, -87.0), 89.0)  # beyond: nothing beside 1, and Inf
    n = tl.floor(x * 1.4426950408889634)
    rest = x - n * 0.693359375 + n * 2.12194440054690583e-4  # n ln 2 in two parts, of which the first is exact
    return tl.exp2(n) * tl.exp(rest)
