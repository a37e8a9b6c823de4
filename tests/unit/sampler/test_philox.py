"""Philox4x32-10 against the known answers published with it (Random123, kat_vectors)."""

from __future__ import annotations

import pytest

from sixfold.sampler.philox import philox4x32, random64

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_every_input_matters() -> None:
    base = (12, 3, 456)
    changed = [(13, 3, 456), (12, 4, 456), (12, 3, 457), (12 + 2**32, 3, 456), (12, 3, 456 + 2**32)]
    assert len({random64(*args) for args in [base, *changed]}) == 6
    assert random64(*base) == random64(*base)
    assert random64(-1, 0, 0) == random64(2**64 - 1, 0, 0)
