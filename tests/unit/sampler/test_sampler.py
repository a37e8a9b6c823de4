"""`Sampler`: slots, the order of the steps before the draw, counts, logprobs, and rows that fail alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sixfold.messages import RowStatus, Sampling, SlotAdmit
from sixfold.sampler import Draws, Sampler
from sixfold.sampler.adjustments import Adjustments, PenaltyCounts
from sixfold.sampler.kernels import RowKernels

N_VOCAB = 64
PROMPT = [1, 2, 3]

Logits = npt.NDArray[np.float32]


def admit(slot: int = 0, output: tuple[int, ...] = (), choice: int = 0, **sampling: Any) -> SlotAdmit:
    sampling.setdefault("seed", 9)
    return SlotAdmit(
        slot=slot,
        generation=0,
        incarnation=0,
        token_ids=[*PROMPT, *output],
        n_prompt_original=len(PROMPT),
        choice=choice,
        sampling=Sampling(**sampling),
    )


def sampler_of(kernels: RowKernels, *admits: SlotAdmit) -> Sampler:
    sampler = Sampler(8, N_VOCAB, kernels=kernels)
    for a in admits:
        sampler.admit(a.slot, a)
    sampler.check()
    return sampler


def falling() -> Logits:
    """[1, N_VOCAB] Logits 0, -0.1, -0.2 ...: the lower the id, the likelier."""
    return (np.arange(N_VOCAB, dtype=np.float32) * np.float32(-0.1))[np.newaxis]


def draw(sampler: Sampler, logits: Logits, n_generated: int = 0) -> Draws:
    return sampler.sample([0], logits.copy(), [len(PROMPT) + n_generated])


def best(kernels: RowKernels, logits: Logits, output: tuple[int, ...] = (), **sampling: Any) -> int:
    """The token at temperature 0."""
    sampler = sampler_of(kernels, admit(output=output, temperature=0.0, **sampling))
    return int(draw(sampler, logits, len(output)).token_ids[0])


# --- which rows need logits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "needed"),
    [
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "stop_token_ids": (3,)}, False),
        ({"temperature": 0.0, "min_tokens": 2}, False),
        ({"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (3,)}, True),
        ({"temperature": 0.0, "logprobs": 0}, True),
        ({"temperature": 0.0, "logit_bias": {3: 1.0}}, True),
        ({"temperature": 0.0, "allowed_token_ids": (3,)}, True),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, True),
        ({"temperature": 0.0, "presence_penalty": 0.1}, True),
        ({"temperature": 0.0, "frequency_penalty": -0.1}, True),
        ({"temperature": 0.5}, True),
    ],
)
def test_logits_needed(kernels: RowKernels, sampling: dict[str, Any], needed: bool) -> None:
    sampler = sampler_of(kernels, admit(**sampling))
    assert bool(sampler.logits_needed[0]) is sampler.any_logits_needed is needed
    sampler.free(0)
    sampler.check()
    assert not sampler.any_logits_needed


def test_logits_needed_ends_with_min_tokens(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(temperature=0.0, min_tokens=2, stop_token_ids=(0,)))
    needed = []
    for _ in range(3):
        needed.append(bool(sampler.logits_needed[0]))
        sampler.observe([0], [5])
        sampler.check()
    assert needed == [True, True, False]


# --- bias, masks, penalties -------------------------------------------------------------------------------------------


def test_logit_bias(kernels: RowKernels) -> None:
    assert best(kernels, falling(), logit_bias={7: 0.65}) == 0
    assert best(kernels, falling(), logit_bias={7: 0.75}) == 7
    assert best(kernels, falling(), logit_bias={63: 100.0}) == 63


def test_bias_of_minus_100_forbids_whatever_the_logit(kernels: RowKernels) -> None:
    logits = falling()
    logits[0, 0] = 5000
    assert best(kernels, logits, logit_bias={0: -99.0}) == 0
    assert best(kernels, logits, logit_bias={0: -100.0}) == 1


def test_allowed_tokens_and_bias_among_them(kernels: RowKernels) -> None:
    assert best(kernels, falling(), allowed_token_ids=(9, 4, 20)) == 4
    assert best(kernels, falling(), allowed_token_ids=(9, 4, 20), logit_bias={4: -100.0, 0: 100.0}) == 9
    sampler = sampler_of(kernels, admit(temperature=2.0, allowed_token_ids=(9, 4)))
    assert {int(draw(sampler, falling(), i).token_ids[0]) for i in range(50)} == {4, 9}


def test_min_tokens_masks_stop_tokens(kernels: RowKernels) -> None:
    logits = falling()
    for n_generated, expected in ((0, 2), (1, 2), (2, 0)):
        output = (50,) * n_generated
        assert best(kernels, logits, output, min_tokens=2, stop_token_ids=(0, 1)) == expected


def test_O56_repetition_penalty_sees_prompt_and_output(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -5, np.float32)
    logits[0, [1, 10, 20]] = [2.0, 1.9, 1.8]  # 1 is in the prompt
    assert best(kernels, logits, repetition_penalty=1.5) == 10
    assert best(kernels, logits, (10,), repetition_penalty=1.5) == 20
    assert best(kernels, logits, (10,), repetition_penalty=0.5) == 1


def test_repetition_penalty_pushes_negative_logits_down(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -5, np.float32)
    logits[0, [1, 10]] = [-1.0, -1.2]
    assert best(kernels, logits) == 1
    assert best(kernels, logits, repetition_penalty=1.5) == 10


def test_O56_presence_and_frequency_see_the_output_alone(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -9, np.float32)
    logits[0, [1, 10, 20]] = [2.0, 1.5, 1.0]
    assert best(kernels, logits, presence_penalty=2.0, frequency_penalty=2.0) == 1
    assert best(kernels, logits, presence_penalty=2.0, repetition_penalty=1.1) == 1  # which looks at the prompt, too
    assert best(kernels, logits, frequency_penalty=2.0, repetition_penalty=1.1) == 1
    assert best(kernels, logits, (1,), presence_penalty=0.6) == 10
    assert best(kernels, logits, (1, 1), presence_penalty=0.4) == 1  # once, however often
    assert best(kernels, logits, (1, 1), frequency_penalty=0.4) == 10


def test_counts_advance_with_observe(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -9, np.float32)
    logits[0, [5, 6, 7]] = [1.0, 0.9, 0.8]
    sampler = sampler_of(kernels, admit(temperature=0.0, frequency_penalty=0.15))
    drawn = []
    for i in range(5):
        token = int(draw(sampler, logits, i).token_ids[0])
        sampler.observe([0], [token])
        drawn.append(token)
    assert drawn == [5, 6, 5, 7, 6]


def test_a_resumed_slot_draws_what_the_first_would_have(kernels: RowKernels) -> None:
    sampling: dict[str, Any] = {
        "temperature": 1.3, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "min_tokens": 6, "stop_token_ids": (0,)
    }  # fmt: skip
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((12, 1, N_VOCAB)).astype(np.float32)
    sampler = sampler_of(kernels, admit(**sampling))
    output: list[int] = []
    for i, row in enumerate(rows):
        if i == 7:  # preempted, or the engine was restarted
            sampler = sampler_of(kernels, admit(output=tuple(output), **sampling))
        output.append(int(draw(sampler, row, i).token_ids[0]))
        sampler.observe([0], output[-1:])
    undisturbed = sampler_of(kernels, admit(**sampling))
    expected: list[int] = []
    for i, row in enumerate(rows):
        expected.append(int(draw(undisturbed, row, i).token_ids[0]))
        undisturbed.observe([0], expected[-1:])
    assert output == expected
    assert 0 not in output[:6]


def test_penalty_counts_grow() -> None:
    counts = PenaltyCounts([5, 5, 7], [7, 9])
    for token_id in range(100, 300):
        counts.add(token_id)
        counts.add(7)
    assert counts.ids.tolist() == [5, 7, 9, *range(100, 300)]
    assert counts.counts.tolist() == [0, 201, 1, *[1] * 200]


def test_penalties_on_impossible_tokens_stay_impossible() -> None:
    row = np.full(N_VOCAB, -np.inf, np.float32)
    Adjustments(Sampling(seed=0, repetition_penalty=1.5, frequency_penalty=-2.0), PROMPT, [4]).apply(row, 1)
    assert np.isneginf(row).all()


# --- logprobs ---------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_logits(kernels: RowKernels) -> None:
    logits = falling()
    sampler = sampler_of(kernels, admit(temperature=0.0, logprobs=2, logit_bias={30: 100.0, 0: -100.0}))
    entry = draw(sampler, logits).logprobs[0]
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    assert entry.rank == 30
    assert entry.logprob == pytest.approx(exact[30], abs=1e-6)
    assert entry.top_ids == [0, 1]
    assert entry.top_logprobs == pytest.approx(exact[:2], abs=1e-6)


def test_O29_masked_row_has_finite_logprobs(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -np.inf, np.float32)
    logits[0, 4] = 0
    sampler = sampler_of(kernels, admit(temperature=0.0, logprobs=5))
    entry = draw(sampler, logits).logprobs[0]
    assert (entry.logprob, entry.rank, entry.top_ids[0]) == (0.0, 0, 4)
    assert all(value == -9999.0 for value in entry.top_logprobs[1:])


def test_only_slots_that_ask_get_logprobs(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(0, temperature=0.0, logprobs=0), admit(1), admit(2, logprobs=3))
    draws = sampler.sample([0, 1, 2], np.repeat(falling(), 3, axis=0), [3, 3, 3])
    assert {row: len(entry.top_ids) for row, entry in draws.logprobs.items()} == {0: 0, 2: 3}


def test_score_of_given_tokens(kernels: RowKernels) -> None:
    sampler = Sampler(1, N_VOCAB, kernels=kernels)
    logits = np.repeat(falling(), 3, axis=0)
    logits[1, 5] = np.nan
    assert sampler.usable(logits).tolist() == [True, False, True]
    first, broken, last = sampler.score(logits, [0, 1, 9], 1000)
    assert (first.rank, last.rank, last.top_ids) == (0, 9, list(range(N_VOCAB)))
    assert (broken.logprob, broken.rank, broken.top_ids) == (-9999.0, 0, [])
    assert np.exp(first.top_logprobs).sum() == pytest.approx(1, abs=1e-6)


# --- rows fail alone --------------------------------------------------------------------------------------------------


def test_unusable_rows_fail_alone(kernels: RowKernels) -> None:
    sampler = sampler_of(
        kernels, admit(0), admit(1, logprobs=1), admit(2, allowed_token_ids=(4,)), admit(3, temperature=0.0)
    )
    logits = np.repeat(falling(), 4, axis=0)
    alone = sampler.sample([0, 3], logits[[0, 3]], [3, 3]).token_ids.tolist()
    logits[1, 60] = np.nan
    logits[2, 9] = np.nan  # outside the allowed tokens, and still a fault of the model
    draws = sampler.sample([0, 1, 2, 3], logits, [3] * 4)
    assert draws.status.tolist() == [RowStatus.OK, RowStatus.NAN_LOGITS, RowStatus.NAN_LOGITS, RowStatus.OK]
    assert draws.token_ids.tolist() == [alone[0], -1, -1, alone[1]]
    assert draws.logprobs == {}


def test_nothing_left_to_draw_fails_the_row(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(allowed_token_ids=(4,), min_tokens=1, stop_token_ids=(4,)))
    assert draw(sampler, falling()).status.tolist() == [RowStatus.NAN_LOGITS]
    assert draw(sampler, falling(), 1).token_ids.tolist() == [4]


def test_observe_skips_failed_rows_and_free_slots(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(temperature=0.0, min_tokens=1, stop_token_ids=(0,)))
    sampler.observe([0, 5], np.array([-1, 7], np.int32))
    assert sampler.logits_needed[0]
    sampler.check()


def test_sampling_a_free_slot_is_an_error(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(logprobs=1))
    sampler.free(0)
    sampler.admit(1, admit(1))
    assert not sampler.logits_needed[0]
    sampler.admit(0, admit(temperature=0.0))
    assert draw(sampler, falling()).token_ids.tolist() == [0]


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_depend_on_seed_choice_and_position_alone(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(0), admit(1, choice=1), admit(2, seed=10), admit(3))
    flat = np.zeros((4, N_VOCAB), np.float32)
    columns = np.array([sampler.sample([0, 1, 2, 3], flat.copy(), [p] * 4).token_ids for p in range(3, 40)])
    assert (columns[:, 0] == columns[:, 3]).all()
    assert (columns[:, 0] != columns[:, 1]).sum() > 30
    assert (columns[:, 0] != columns[:, 2]).sum() > 30
    reverse = sampler.sample([3, 2, 1, 0], flat.copy(), [39] * 4).token_ids.tolist()
    assert reverse == columns[-1, ::-1].tolist()


def test_tiny_temperature_is_nearly_greedy(kernels: RowKernels) -> None:
    sampler = sampler_of(kernels, admit(temperature=1e-300))
    assert {int(draw(sampler, falling(), i).token_ids[0]) for i in range(20)} == {0}


def test_read_only_logits_are_left_alone(kernels: RowKernels) -> None:
    logits = falling()
    logits.flags.writeable = False
    sampler = sampler_of(kernels, admit(temperature=0.0, logit_bias={9: 50.0}))
    assert sampler.sample([0], logits, [3]).token_ids.tolist() == [9]
    assert logits[0, 9] == np.float32(-0.1) * 9


# --- bad words --------------------------------------------------------------------------------------------------------


def test_a_bad_word_of_one_token_is_never_drawn(kernels: RowKernels) -> None:
    assert best(kernels, falling(), bad_words=((0,), (1,))) == 2
    assert best(kernels, falling(), output=(5,), bad_words=((0,),)) == 1


def test_a_bad_word_of_several_tokens_is_never_completed(kernels: RowKernels) -> None:
    word = (7, 8, 0)
    for output, expected in (
        ((), 0),
        ((7,), 0),
        ((8,), 0),
        ((7, 8), 1),
        ((9, 7, 8), 1),
        ((7, 8, 9), 0),
        ((7, 9, 8), 0),
        ((7, 7, 8), 1),
    ):
        assert best(kernels, falling(), output=output, bad_words=(word,)) == expected, output
    both = best(kernels, falling(), output=(7, 8), bad_words=(word, (8, 1), (9, 8, 2), (2,)))
    assert both == 3


def test_the_prompt_begins_no_bad_word(kernels: RowKernels) -> None:
    assert best(kernels, falling(), bad_words=((PROMPT[-1], 0),)) == 0


def test_P2_bad_words_after_a_replay_are_those_of_the_first_run(kernels: RowKernels) -> None:
    words = ((0, 1), (1, 0, 2), (2, 2), (0, 0, 0), (3,))
    sampling: dict[str, Any] = {"temperature": 1.0, "bad_words": words, "seed": 4}
    sampler = sampler_of(kernels, admit(**sampling))
    logits = np.zeros((1, N_VOCAB), np.float32)
    logits[0, 4:] = -30  # nearly always one of the first four
    drawn: list[int] = []
    for n in range(60):
        token = int(draw(sampler, logits, n).token_ids[0])
        sampler.observe([0], [token])
        sampler.check()
        drawn.append(token)
    for word in words:
        assert not any(tuple(drawn[i : i + len(word)]) == word for i in range(len(drawn)))
    for n in range(0, 60, 7):
        again = sampler_of(kernels, admit(output=tuple(drawn[:n]), **sampling))
        assert int(draw(again, logits, n).token_ids[0]) == drawn[n]


def test_O29_no_infinity_leaves_the_sampler(kernels: RowKernels) -> None:
    logits = np.full((1, N_VOCAB), -np.inf, np.float32)
    logits[0, 5] = 0.0
    [entry] = sampler_of(kernels).score(logits, [6], 3)
    assert (entry.logprob, entry.top_ids[0], entry.top_logprobs[0]) == (-9999.0, 5, 0.0)
    assert entry.top_logprobs[1:] == [-9999.0, -9999.0]
