"""Philox4x32-10: a random number as a function of a key and a counter.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. There is no state, so
replays, preemption and reordering cannot change what a token draws.
"""

from __future__ import annotations

__all__ = ["philox4x32", "random64"]

ROUNDS = 10
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9  # golden ratio
WEYL_1 = 0xBB67AE85  # sqrt(3) - 1
WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a 128-bit counter and a 64-bit key, lowest word first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & WORD,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & WORD,
        )
        k0 = (k0 + WEYL_0) & WORD
        k1 = (k1 + WEYL_1) & WORD
    return c0, c1, c2, c3


def random64(seed: int, choice: int, position: int) -> int:
    """The 64 random bits of one token.

    Args:
        seed: 64 bits; negative ones are taken modulo 2**64.
        choice: index of the choice within its request.
        position: absolute index of the token that is drawn, prompt included.
    """
    words = philox4x32((position & WORD, position >> 32 & WORD, choice & WORD, 0), (seed & WORD, seed >> 32 & WORD))
    return words[0] | words[1] << 32
