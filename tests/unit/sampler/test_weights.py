"""The integer weights mean what they say."""

from __future__ import annotations

import numpy as np

from sixfold.sampler.weights import LOG2_E, UNIT, exp2_nonpositive, weights


def test_exp2_is_accurate_where_weights_are_not_zero() -> None:
    x = np.linspace(-41, 0, 200_001, dtype=np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(exp2_nonpositive(x) / exact - 1).max() < 2.5e-7


def test_likeliest_weighs_one_unit_and_the_impossible_nothing() -> None:
    row = np.array([3.0, -np.inf, 3.0, 3.0 - 100, 2.0], np.float32)
    w = weights(row, np.float32(3.0), LOG2_E)
    assert w.dtype == np.uint64
    assert w[:4].tolist() == [UNIT, 0, UNIT, 0]
    assert abs(int(w[4]) / UNIT - np.exp(-1)) < 1e-6


def test_differences_beyond_float32_weigh_nothing() -> None:
    limits = np.finfo(np.float32)
    row = np.array([limits.max, limits.min], np.float32)
    assert weights(row, row.max(), np.float32(1e6)).tolist() == [UNIT, 0]
