"""Logits -> integer weights: the arithmetic that the reference and the native kernels share bit for bit.

    x = (logit - highest) * (log2(e) / temperature)    float32, at most 0
    weight = round(2**40 * 2**x)                       uint64; the likeliest token weighs 2**40

Sums of integers do not depend on their order, so chunks, vector lanes and threads cannot change a draw. A token that is
less likely than the likeliest by a factor of 2**41 (10**12) weighs 0 and is never drawn. With up to 2**22 tokens no sum
exceeds 62 bits.

2**x is computed from float32 additions and multiplications alone, each rounded once (no fused multiply-add), so that
NumPy and every instruction set give the same bits:

    n = round(x)      f = x - n, exact      2**x = 2**n * (1 + f p(f))
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["LOG2_E", "UNIT", "exp2_nonpositive", "weights"]

UNIT_BITS = 40
UNIT = 1 << UNIT_BITS

Floats = npt.NDArray[np.float32]

# Below this every weight is 0: 2**40 * 2**-42 = 0.25. It also keeps 2**n a normal number.
X_MIN = np.float32(-42.0)
ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to a whole number
# 1 + f p(f): least maximum relative error (1e-7) of 2**f over |f| <= 1/2, by reweighted least squares.
C1 = np.float32(0.693147)
C2 = np.float32(0.24022242)
C3 = np.float32(0.055507336)
C4 = np.float32(0.009671513)
C5 = np.float32(0.0013264727)
LOG2_E = np.float32(1.442695)


def exp2_nonpositive(x: Floats) -> Floats:
    """2**x for x <= 0, float32; exactly 1 at 0. Values below `X_MIN` count as `X_MIN`."""
    x = np.maximum(x, X_MIN)
    n = (x + ROUND) - ROUND
    f = x - n
    e = ((((C5 * f + C4) * f + C3) * f + C2) * f + C1) * f + np.float32(1.0)
    power: Floats = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    value: Floats = e * power
    return value


def weights(logits: Floats, highest: np.float32, scale: np.float32) -> npt.NDArray[np.uint64]:
    """[n] weight of each logit.

    Args:
        logits: [n] at most `highest` each; -inf weighs 0.
        highest: a finite number.
        scale: log2(e) / temperature, positive.
    """
    with np.errstate(over="ignore"):
        x = (logits - highest) * scale
    scaled: Floats = exp2_nonpositive(x) * np.float32(UNIT)
    return np.rint(scaled).astype(np.uint64)
