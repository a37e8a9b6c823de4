"""Logits -> integer weights: the arithmetic that the reference and the native kernels share bit for bit.

    x = (logit - highest) * (1 / temperature)      float32, at most 0
    weight = floor(2**40 * e**x)                   uint64; the likeliest token weighs 2**40

Sums of integers do not depend on their order, so chunks, vector lanes and threads cannot change a draw. A token that is
less likely than the likeliest by a factor of 2**40 (10**12) weighs 0 and is never drawn. With up to 2**22 tokens no sum
exceeds 62 bits.

e**x is computed from float32 additions and multiplications alone, each rounded once (no fused multiply-add), so that
NumPy and every instruction set give the same bits:

    n = round(x / ln 2)      f = x - n ln 2, in two steps      e**x = 2**n * (1 + f + f*f*p(f))
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["UNIT", "exp_nonpositive", "weights"]

UNIT_BITS = 40
UNIT = 1 << UNIT_BITS

Floats = npt.NDArray[np.float32]

# Below this every weight is 0: 2**40 * e**-29 = 0.28. It also keeps 2**n a normal number.
X_MIN = np.float32(-29.0)
LOG2_E = np.float32(1.44269504)
LN2_HIGH = np.float32(0.693359375)  # nine significant bits: n * LN2_HIGH is exact
LN2_LOW = np.float32(-2.12194440e-4)
ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to a whole number
# p(f) of degree 4: least maximum relative error (3e-9) of e**f over |f| <= ln(2) / 2, by reweighted least squares.
P0 = np.float32(0.49999994)
P1 = np.float32(0.1666652)
P2 = np.float32(0.04166839)
P3 = np.float32(0.008368781)
P4 = np.float32(0.0013814467)


def exp_nonpositive(x: Floats) -> Floats:
    """e**x for x <= 0, float32; exactly 1 at 0. Values below `X_MIN` count as `X_MIN`."""
    x = np.maximum(x, X_MIN)
    n = (x * LOG2_E + ROUND) - ROUND
    f = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (((P4 * f + P3) * f + P2) * f + P1) * f + P0
    e = ((f * f) * p + f) + np.float32(1.0)
    power: Floats = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    value: Floats = e * power
    return value


def weights(logits: Floats, highest: np.float32, inverse_temperature: np.float32) -> npt.NDArray[np.uint64]:
    """[n] weight of each logit.

    Args:
        logits: [n] at most `highest` each; -inf weighs 0.
        highest: a finite number.
        inverse_temperature: positive.
    """
    with np.errstate(over="ignore"):
        x = (logits - highest) * inverse_temperature
    scaled: Floats = exp_nonpositive(x) * np.float32(UNIT)
    return scaled.astype(np.uint64)
