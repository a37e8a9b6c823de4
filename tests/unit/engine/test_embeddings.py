"""`LLM.embed`: the numbers are the model's, and depend on nothing but the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures import forward
from tests.unit.engine.test_odd_models import load, save

from sixfold import LLM, SamplingParams
from sixfold.engine.embedding import vector_of
from sixfold.errors import ContextLengthExceeded, InvalidRequest, RequestFailed
from sixfold.model_file import open_model

TEXTS = [np.random.default_rng(n).integers(0, 40, n).tolist() for n in (1, 2, 15, 16, 17, 40, 63, 100)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def alone(path: Path) -> np.ndarray:
    """Each text by itself, in one piece."""
    with load(path, max_num_batched_tokens=128, enable_prefix_caching=False) as llm:
        return np.concatenate([llm.embed(text) for text in TEXTS])


@pytest.fixture
def scripted() -> Iterator[LLM]:
    with LLM("scripted") as llm:
        yield llm
        llm.core.check()
        stats = llm.core.stats()
        assert not llm.core.has_work and stats.blocks_free + stats.blocks_cached == stats.blocks_total


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_vector_is_the_pooled_float_reference(path: Path, pooling: Any) -> None:
    file = open_model(str(path))
    with load(path, activations="float32", kv_cache_dtype="float32", max_num_batched_tokens=32) as llm:
        got = llm.embed(TEXTS, pooling=pooling, normalize=False)
        unit = llm.embed(TEXTS, pooling=pooling)
    assert got.shape == (len(TEXTS), file.config.hidden) and got.dtype == np.float32
    for text, vector in zip(TEXTS, got, strict=True):
        states = forward.hidden_states(file, text)
        want = states.mean(axis=0) if pooling == "mean" else states[-1]
        assert np.abs(vector - want).max() < 1e-5 * np.abs(states).max()
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(unit, got / np.linalg.norm(got, axis=1, keepdims=True), atol=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    budget=st.integers(1, 64),
    order=st.permutations(range(len(TEXTS))),
    n_blocks=st.integers(8, 32),
    caches=st.booleans(),
    others=st.integers(0, 3),
)
def test_P2_what_shares_its_steps_and_how_it_is_cut_change_no_bit(
    path: Path, alone: np.ndarray, budget: int, order: list[int], n_blocks: int, caches: bool, others: int
) -> None:
    options = {"max_num_batched_tokens": budget, "enable_prefix_caching": caches, "num_kv_blocks": n_blocks}
    with LLM(str(path), threads=2, max_num_seqs=4, **options) as llm:  # type: ignore[arg-type]
        streams = [llm.stream([5, 6, i], SamplingParams(seed=i, max_tokens=40, ignore_eos=True)) for i in range(others)]
        for stream in streams:
            next(stream)
        for _ in range(2):  # the second time, the cache could give what a mean must read
            found = llm.embed([TEXTS[i] for i in order])
            np.testing.assert_array_equal(found, alone[order])
        for stream in streams:
            stream.close()
        llm.core.check()


def test_a_mean_reads_nothing_from_the_cache_and_the_last_state_does(path: Path) -> None:
    text = TEXTS[-1]
    with load(path) as llm:
        first = llm.embed(text, pooling="last")
        assert llm.core.stats().cached_tokens == 0
        llm.embed(text)
        assert llm.core.stats().cached_tokens == 0
        np.testing.assert_array_equal(llm.embed(text, pooling="last"), first)
        assert llm.core.stats().cached_tokens == len(text) // 16 * 16
        generated = llm.generate(text, SamplingParams(temperature=0.0, max_tokens=2))[0]
        assert generated.cached_tokens > 0, "what an embedding computed, others may use"


def test_states_that_are_no_numbers_fail_the_text_and_nothing_else(tmp_path: Path) -> None:
    large = {"blk.0.attn_v.weight": 3e38, "blk.0.attn_output.weight": 3e38}
    with load(save(tmp_path / "large.gguf", odd=large)) as llm:
        for pooling in ("mean", "last"):
            with pytest.raises(RequestFailed, match="no usable hidden states"):
                llm.embed("hello", pooling=pooling)  # type: ignore[arg-type]
        llm.core.check()


def test_forms_of_texts(scripted: LLM) -> None:
    one = scripted.embed("abc")
    assert one.shape == (1, 64)
    for texts in (["abc"], [97, 98, 99], [[97, 98, 99]]):
        np.testing.assert_array_equal(scripted.embed(texts), one)  # type: ignore[arg-type]
    assert scripted.embed([]).shape == (0, 64)
    many = [str(i) for i in range(700)]  # more than the queue holds
    np.testing.assert_array_equal(scripted.embed(many)[[5, 699]], scripted.embed(["5", "699"]))


def test_refusals(scripted: LLM) -> None:
    longest = scripted.text.max_model_len
    assert scripted.embed([7] * longest).shape == (1, 64)
    with pytest.raises(ContextLengthExceeded):
        scripted.embed([7] * (longest + 1))
    for texts, pooling in (("", "mean"), ([10**6], "mean"), ("a", "cls"), ([None], "mean")):
        with pytest.raises(InvalidRequest):
            scripted.embed(texts, pooling=pooling)  # type: ignore[arg-type]


def test_zeros_stay_zeros() -> None:
    assert not vector_of(np.zeros(4, "<f4").tobytes(), normalize=True).any()
