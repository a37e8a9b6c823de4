"""Row kernels: the reference against a plain float64 sampler, the compiled ones against the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sixfold.sampler.kernels import NOTHING_ALLOWED, ROW_PARAMS, UNUSABLE, Masks, NumpyKernels, RowKernels, find_native
from sixfold.sampler.philox import random64
from sixfold.sampler.reference import LOGPROB_FLOOR
from sixfold.sampler.weights import LOG2_E

Logits = npt.NDArray[np.float32]
Params = npt.NDArray[np.void]

WIDTHS = (1, 2, 15, 16, 17, 31, 33, 255, 256, 1023, 1025, 3001, 9000)


def gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    return (rng.standard_normal(shape) * rng.choice([0.1, 1, 3, 10])).astype(np.float32)


def all_equal(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    return np.full(shape, rng.choice([0.0, -0.0, 3.5, -1e30]), np.float32)


def few_values(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    return np.round(gaussian(rng, shape))


def mostly_impossible(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    x = gaussian(rng, shape)
    x[rng.random(shape) < 0.7] = -np.inf
    x[:, rng.integers(shape[1])] = 1
    return x


def huge(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    return (rng.uniform(-3.4, 3.4, shape) * 1e38).astype(np.float32)


def unusable(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    x = gaussian(rng, shape)
    x[0, rng.integers(shape[1])] = np.nan
    x[1, rng.integers(shape[1])] = np.inf
    x[2] = -np.inf
    return x


def signed_zeros(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    return np.where(rng.random(shape) < 0.5, np.float32(0.0), np.float32(-0.0)).astype(np.float32)


def peaked(rng: np.random.Generator, shape: tuple[int, int]) -> Logits:
    x = gaussian(rng, shape)
    x[:, ::7] += 30
    return x


KINDS = (gaussian, all_equal, few_values, mostly_impossible, huge, unusable, signed_zeros, peaked)


def params_of(n: int, **columns: object) -> Params:
    params = np.zeros(n, ROW_PARAMS)
    params["top_p"], params["scale"], params["min_x"] = 1.0, LOG2_E, -np.inf
    for name, value in columns.items():
        params[name] = value
    return params


def random_params(rng: np.random.Generator, n: int) -> Params:
    with np.errstate(divide="ignore"):
        min_x = np.log2(rng.choice([0, 0, 0.05, 0.5, 1], n))
    return params_of(
        n,
        seed=rng.integers(0, 2**63, n),
        choice=rng.integers(0, 64, n),
        scale=rng.choice([0, LOG2_E, LOG2_E / 0.7, 0.7, 2, 10, 1e6], n),
        top_k=rng.choice([0, 0, 1, 2, 5, 50, 1000, 2**31 - 1], n),
        top_p=rng.choice([1, 1, 0.9, 0.5, 0.01, 0.999, 1e-12], n),
        min_x=min_x,
    )


def random_masks(rng: np.random.Generator, n: int, width: int) -> Masks:
    """Of all densities, the bits beyond the width set; some rows have none."""
    bits = rng.random((4, -(-width // 32) * 32)) < rng.choice([0, 0.001, 0.1, 0.5, 1], (4, 1))
    bits[:, width:] = True
    words = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return Masks(words, rng.integers(-1, 4, n).astype(np.int32))


def one_row(kernels: RowKernels, row: Logits, position: int = 0, **columns: object) -> int:
    positions = np.array([position], np.int64)
    return int(kernels.draw_rows(row[np.newaxis], params_of(1, **columns), positions)[0])


# --- the reference against the textbook -------------------------------------------------------------------------------


def textbook(row: Logits, p: np.void, position: int) -> tuple[int, float]:
    """Softmax, sort and cumulative sums in float64; with the distance of the closest decision from its border."""
    x = (row.astype(np.float64) - row.max()) * float(p["scale"])
    probability = np.exp2(x) / np.exp2(x).sum()
    order = np.lexsort((np.arange(len(row)), -row))
    n_kept = min(int(p["top_k"]) or len(row), len(row))
    share = np.cumsum(probability[order[:n_kept]]) / probability[order[:n_kept]].sum()
    margin = 1.0
    if p["top_p"] < 1:
        n_kept = int(np.searchsorted(share, p["top_p"])) + 1
        margin = float(np.abs(share - p["top_p"]).min())
    kept = np.zeros(len(row), np.bool_)
    kept[order[:n_kept]] = True
    kept &= x >= float(p["min_x"])
    margin = min(margin, float(np.abs(x - float(p["min_x"])).min()))
    cumulated = np.cumsum(np.where(kept, probability, 0))
    u = random64(int(p["seed"]), int(p["choice"]), position) / 2**64
    margin = min(margin, float(np.abs(cumulated / cumulated[-1] - u).min()))
    return int(np.searchsorted(cumulated, u * cumulated[-1], side="right")), margin


def test_reference_is_the_textbook_away_from_borders() -> None:
    rng = np.random.default_rng(1)
    checked = 0
    for _ in range(60):
        logits = gaussian(rng, (16, int(rng.choice([2, 17, 300, 1000]))))
        params = random_params(rng, 16)
        params["scale"] = rng.choice([LOG2_E, LOG2_E / 0.7, 0.7], 16)
        params["min_x"] -= np.float32(0.01)  # off the equal values
        positions = rng.integers(0, 10_000, 16)
        drawn = NumpyKernels().draw_rows(logits, params, positions)
        for i in range(16):
            expected, margin = textbook(logits[i], params[i], int(positions[i]))
            if margin > 1e-5:
                checked += 1
                assert drawn[i] == expected, (params[i], logits.shape)
    assert checked > 700


def test_what_a_mask_forbids_is_as_if_it_were_at_minus_infinity() -> None:
    kernels = NumpyKernels()
    logits = np.zeros((4, 40), np.float32)
    logits[1, 3] = np.nan
    logits[2, 5] = -np.inf
    words = np.zeros((2, 2), np.int32)
    words[0, 1] = 1 << 4  # token 36
    words[1, 0] = 1 << 5
    masks = Masks(words, np.array([0, 0, 1, -1], np.int32))
    drawn = kernels.draw_allowed_rows(logits, params_of(4, scale=0), np.zeros(4, np.int64), masks)
    assert drawn.tolist() == [36, UNUSABLE, NOTHING_ALLOWED, 0]


# --- the compiled kernels against the reference -----------------------------------------------------------------------


def assert_rows_agree(kernels: RowKernels, rng: np.random.Generator, n_batches: int, widths: tuple[int, ...]) -> None:
    reference = NumpyKernels()
    for batch in range(n_batches):
        kind, width = KINDS[batch % len(KINDS)], int(rng.choice(widths))
        logits = kind(rng, (8, width))
        params, positions = random_params(rng, 8), rng.integers(0, 2**40, 8)
        np.testing.assert_array_equal(reference.usable_rows(logits), kernels.usable_rows(logits))
        np.testing.assert_array_equal(
            reference.draw_rows(logits, params, positions),
            kernels.draw_rows(logits, params, positions),
            err_msg=f"{kind.__name__}, {width} wide, {params}",
        )
        masks = random_masks(rng, 8, width)
        np.testing.assert_array_equal(
            reference.draw_allowed_rows(logits, params, positions, masks),
            kernels.draw_allowed_rows(logits, params, positions, masks),
            err_msg=f"masked, {kind.__name__}, {width} wide, {params}",
        )
        targets = rng.integers(0, width, 8).astype(np.int32)
        n_top = int(min(width, rng.choice([0, 1, 5, 20])))
        expected, got = (k.score_rows(logits, targets, n_top) for k in (reference, kernels))
        np.testing.assert_array_equal(expected[1], got[1])
        usable = expected[1] >= 0
        for want, have in zip(expected, got, strict=True):
            np.testing.assert_allclose(want[usable], have[usable], rtol=0, atol=1e-9)


def test_compiled_rows_equal_the_reference() -> None:
    native = find_native()
    if native is None:
        pytest.skip("sixfold._native was not built")
    assert_rows_agree(native, np.random.default_rng(2), 600, WIDTHS)
    assert_rows_agree(native, np.random.default_rng(3), 16, (49_152,))


def test_rows_may_be_apart(kernels: RowKernels) -> None:
    rng = np.random.default_rng(5)
    wide = gaussian(rng, (6, 400))
    part = wide[::2, :300]
    params, positions = random_params(rng, 3), np.arange(3, dtype=np.int64)
    expected = NumpyKernels().draw_rows(part.copy(), params, positions)
    np.testing.assert_array_equal(kernels.draw_rows(part, params, positions), expected)


def test_a_row_does_not_depend_on_its_batch(kernels: RowKernels) -> None:
    rng = np.random.default_rng(6)
    logits, params = gaussian(rng, (12, 700)), random_params(rng, 12)
    positions = np.arange(12, dtype=np.int64)
    together = kernels.draw_rows(logits, params, positions)
    alone = [int(kernels.draw_rows(logits[i : i + 1], params[i : i + 1], positions[i : i + 1])[0]) for i in range(12)]
    assert together.tolist() == alone


def test_compiled_kernels_refuse_wrong_arrays() -> None:
    native = find_native()
    if native is None:
        pytest.skip("sixfold._native was not built")
    logits, positions = np.zeros((2, 8), np.float32), np.zeros(2, np.int64)
    with pytest.raises((TypeError, ValueError)):
        native.draw_rows(logits.astype(np.float64), params_of(2), positions)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contiguous"):
        native.draw_rows(np.zeros((2, 16), np.float32)[:, ::2], params_of(2), positions)
    with pytest.raises(ValueError, match="positions"):
        native.draw_rows(logits, params_of(2), positions[:1])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        native.score_rows(logits, np.array([0, 8], np.int32), 1)
    with pytest.raises(ValueError, match="width"):
        native.usable_rows(np.zeros((1, 0), np.float32))


# --- single properties ------------------------------------------------------------------------------------------------


def test_greedy_ties_go_to_the_lowest_id(kernels: RowKernels) -> None:
    row = np.array([1, 5, 5, 2, 5], np.float32)
    assert one_row(kernels, row, scale=0) == 1
    assert one_row(kernels, np.zeros(100, np.float32), scale=0) == 0


def test_top_k_ties_go_to_the_lowest_id(kernels: RowKernels) -> None:
    row = np.zeros(200, np.float32)
    row[150] = 1
    drawn = {one_row(kernels, row, position, top_k=3) for position in range(200)}
    assert drawn == {0, 1, 150}


def test_top_p_keeps_the_token_that_reaches_it(kernels: RowKernels) -> None:
    row = np.log(np.array([0.1, 0.5, 0.3, 0.1])).astype(np.float32)
    for top_p, kept in (
        (1e-9, {1}),
        (0.499, {1}),
        (0.51, {1, 2}),
        (0.79, {1, 2}),
        (0.81, {0, 1, 2}),
        (1, {0, 1, 2, 3}),
    ):
        assert {one_row(kernels, row, position, top_p=top_p) for position in range(300)} == kept


def test_top_p_is_a_share_of_what_top_k_left(kernels: RowKernels) -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    # Of 0.7, 0.4 is 57 %: enough for 0.55, although it is 40 % of the whole.
    assert {one_row(kernels, row, i, top_k=2, top_p=0.55) for i in range(100)} == {0}
    assert {one_row(kernels, row, i, top_k=2, top_p=0.6) for i in range(100)} == {0, 1}


def test_min_p_is_relative_to_the_likeliest(kernels: RowKernels) -> None:
    row = np.log(np.array([0.5, 0.26, 0.24])).astype(np.float32)
    assert {one_row(kernels, row, i, min_x=np.log2(0.5)) for i in range(200)} == {0, 1}
    assert {one_row(kernels, row, i, min_x=np.log2(0.5), top_k=3, top_p=0.9) for i in range(200)} == {0, 1}
    assert {one_row(kernels, row, i, min_x=0.0) for i in range(50)} == {0}


def test_impossible_tokens_are_never_drawn(kernels: RowKernels) -> None:
    row = np.full(300, -np.inf, np.float32)
    row[[7, 290]] = 0
    assert {one_row(kernels, row, i, top_k=k) for i in range(100) for k in (0, 5, 299)} == {7, 290}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_rows(kernels: RowKernels, bad: float) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1, 33] = bad
    logits[2] = -np.inf
    drawn = kernels.draw_rows(logits, params_of(3, scale=[0, 0, LOG2_E]), np.zeros(3, np.int64))
    assert drawn.tolist() == [0, -1, -1]
    assert kernels.usable_rows(logits).tolist() == [1, 0, 0]
    assert kernels.score_rows(logits, np.zeros(3, np.int32), 2)[1].tolist() == [0, -1, -1]


def test_O29_logprobs_are_finite_and_sum_to_one(kernels: RowKernels) -> None:
    logits = gaussian(np.random.default_rng(7), (1, 500))
    logits[0, 3] = -np.inf
    logprobs, ranks, ids, top = kernels.score_rows(logits, np.array([3], np.int32), 500)
    assert logprobs[0] == top[0, -1] == LOGPROB_FLOOR
    assert ids[0, -1] == 3
    assert ranks[0] == 499
    assert abs(np.exp(top[0]).sum() - 1) < 1e-6
    x = logits[0].astype(np.float64)
    exact = np.sort(x - x.max() - np.log(np.exp(x - x.max()).sum()))[::-1]
    np.testing.assert_allclose(top[0, :-1], exact[:-1], atol=1e-6)


def test_rank_counts_ties_by_id(kernels: RowKernels) -> None:
    logits = np.array([[1, 3, 3, 2, 3]], np.float32).repeat(5, axis=0)
    _, ranks, ids, _ = kernels.score_rows(logits, np.arange(5, dtype=np.int32), 4)
    assert ranks.tolist() == [4, 0, 1, 3, 2]
    assert ids[0].tolist() == [1, 2, 4, 3]


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "kept"),
    [({}, 40), ({"top_k": 12}, 12), ({"scale": LOG2_E / 2}, 40), ({"top_p": 0.9}, None)],
    ids=["plain", "top_k", "temperature 2", "top_p"],
)
def test_drawn_tokens_follow_the_distribution(kernels: RowKernels, columns: dict[str, float], kept: int | None) -> None:
    """Pearson's chi-square of 20,000 draws; the seed is fixed, so the test cannot fail by chance."""
    n_draws = 20_000
    row = np.random.default_rng(8).standard_normal(40).astype(np.float32)
    positions = np.arange(n_draws, dtype=np.int64)
    logits = np.broadcast_to(row, (n_draws, 40))
    drawn = kernels.draw_rows(logits, params_of(n_draws, seed=1, **columns), positions)
    probability = np.exp2(row.astype(np.float64) * float(columns.get("scale", LOG2_E)))
    probability /= probability.sum()
    order = np.argsort(-probability)
    if kept is None:
        kept = int(np.searchsorted(np.cumsum(probability[order]), 0.9)) + 1
    probability[order[kept:]] = 0
    probability /= probability.sum()
    counts = np.bincount(drawn, minlength=40)
    assert counts[probability == 0].sum() == 0
    expected = probability[probability > 0] * n_draws
    chi_square = float(((counts[probability > 0] - expected) ** 2 / expected).sum())
    degrees = kept - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


def test_streams_of_choices_and_seeds_are_apart(kernels: RowKernels) -> None:
    n = 4000
    row = np.zeros(2, np.float32)
    logits, positions = np.broadcast_to(row, (n, 2)), np.arange(n, dtype=np.int64)
    streams = [
        kernels.draw_rows(logits, params_of(n, seed=seed, choice=choice), positions)
        for seed, choice in ((1, 0), (1, 1), (2, 0))
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        agreeing = int((streams[a] == streams[b]).sum())
        assert abs(agreeing - n / 2) < 4 * np.sqrt(n / 4)
