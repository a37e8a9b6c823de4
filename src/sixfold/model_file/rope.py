"""Numbers of scaled rotary positions that the files leave to their readers.

Sources: YaRN (arXiv 2309.00071), equation 22; LongRoPE (arXiv 2402.13753); Llama 3.1's model description.
"""

from __future__ import annotations

import math
import struct

from sixfold.errors import ModelFileError

__all__ = ["llama3_factors", "longrope_attention_factor", "single", "yarn_attention_factor"]

_SINGLE = struct.Struct("<f")


def yarn_attention_factor(factor: float) -> float:
    return single(0.1 * math.log(factor) + 1.0) if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original: int) -> float:
    """Of a model made for `original` positions and stretched to `factor` times as many."""
    if original <= 1 or factor <= 1:
        return 1.0
    return single(math.sqrt(1 + math.log(factor) / math.log(original)))


def llama3_factors(
    dims: int, base: float, factor: float, low: float, high: float, original: float
) -> tuple[float, ...]:
    """Divisors of the frequencies, [dims / 2]: 1 for short wavelengths, `factor` for long ones, smooth between.

    Args:
        low, high: how often a wave fits into `original` positions at the ends of the smooth part.

    Raises:
        ModelFileError: the numbers cannot be computed with.
    """
    if not (base > 1 and factor > 0 and original > 0 and 0 < low < high):
        raise ModelFileError("the numbers of llama3 rope scaling do not fit together")
    factors = []
    for i in range(min(dims, 1 << 16) // 2):
        turns = original / (2 * math.pi * base ** (2 * i / dims))
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(map(single, factors))


def single(value: float) -> float:
    """In single precision, as GGUF keeps such numbers: both kinds of file then give the same results."""
    return float(_SINGLE.unpack(_SINGLE.pack(value))[0])
