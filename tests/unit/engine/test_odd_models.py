"""Model files that load, or must not: padded or short vocabularies, absurd contexts, weights that are not numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import gguf_writer
from tests.fixtures import tiny_models as tiny
from tests.safetensors_writer import stored, write_folder
from tests.tokenizer_json_writer import added, byte_level

from sixfold import LLM, SamplingParams
from sixfold.errors import InvalidRequest, ModelFileError, RequestFailed

HIDDEN, FFN, HEADS = 64, 96, 2
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def save(path: Path, *, n_rows: int = 0, odd: Mapping[str, float] = {}, **metadata: Any) -> Path:
    """One random layer with the tokens of `tiny_vocabulary`.

    Args:
        n_rows: of the embedding, where not as many.
        odd: tensor -> the value in its first column.
    """
    vocabulary = gguf_writer.tiny_vocabulary()
    shapes = {
        "token_embd.weight": (n_rows or len(vocabulary["tokenizer.ggml.tokens"]), HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_v.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (n_rows or len(vocabulary["tokenizer.ggml.tokens"]), HIDDEN),
    }
    tensors = {}
    for number, (name, shape) in enumerate(shapes.items()):
        values = np.random.default_rng(number).standard_normal(shape).astype("<f4") * 0.2
        if name in ("token_embd.weight", "output.weight"):
            # Rows behind the vocabulary win every argmax that can see them.
            values[len(vocabulary["tokenizer.ggml.tokens"]) :] = 100.0
        if name in odd:
            values[..., 0] = odd[name]
        tensors[name] = (0, shape, values.tobytes())
    facts = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary,
        **metadata,
    }
    path.write_bytes(gguf_writer.gguf(facts, tensors))
    return path


def load(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), threads=1, max_num_seqs=4, num_kv_blocks=32, **settings)


def test_o54_padding_rows_are_never_drawn_nor_accepted(tmp_path: Path) -> None:
    exact, padded = load(save(tmp_path / "exact.gguf")), load(save(tmp_path / "padded.gguf", n_rows=300))
    with exact, padded:
        n_vocab = exact.tokenizer.n_vocab
        for params in (GREEDY, SamplingParams(seed=1, max_tokens=16, ignore_eos=True, logprobs=5)):
            ours, theirs = (llm.generate("hello", params)[0].outputs[0] for llm in (padded, exact))
            assert ours.token_ids == theirs.token_ids and max(ours.token_ids) < n_vocab
            for entry in ours.logprobs or []:
                assert max(entry.top_ids) < n_vocab
        with pytest.raises(InvalidRequest):
            padded.generate([[n_vocab]], GREEDY)


@pytest.mark.parametrize("absent", [range(300, 400), range(398, 402)])
def test_o54_ids_without_a_token_are_never_drawn(absent: range, tmp_path: Path) -> None:
    """A folder whose tokenizer leaves ids out, and knows more than the model; their rows win where they are seen."""
    weights, n_rows = tiny.weights("qwen2"), absent.stop + 2
    table = weights["model.embed_tokens.weight"]
    wide = np.zeros((n_rows, table.shape[1]), np.float32)
    wide[: len(table)] = table
    wide[len(table) :] = -table[: n_rows - len(table)]  # one of the two has a positive logit
    wide[absent.start : absent.stop] = 16 * table[: len(absent)]
    weights["model.embed_tokens.weight"] = wide
    config = {**tiny.config("qwen2"), "vocab_size": n_rows}
    folder = write_folder(tmp_path / "m", config, {name: stored(values) for name, values in weights.items()})
    file = byte_level(added_tokens=[added(n_rows - 1, "<e>"), added(n_rows, "<picture>")])
    vocab = file["model"]["vocab"]
    vocab |= {f"filler{i}": i for i in range(len(vocab), n_rows - 1) if i not in absent}
    vocab |= {"<e>": n_rows - 1, "<picture>": n_rows}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>"}))
    with load(folder, kv_cache_dtype="float32") as llm:
        assert llm.tokenizer.n_vocab == n_rows
        assert llm.tokenizer.absent_ids == set(absent)
        for params in (
            GREEDY,
            SamplingParams(seed=1, max_tokens=8, ignore_eos=True, temperature=2.0),
            SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=20, prompt_logprobs=20),
        ):
            [output] = llm.generate("hello", params)
            drawn = output.outputs[0]
            assert len(drawn.token_ids) == 8 and llm.tokenizer.first_unknown(drawn.token_ids) is None
            for entry in (drawn.logprobs or []) + (output.prompt_logprobs or []):
                assert len(entry.top_ids) == 20 and llm.tokenizer.first_unknown(entry.top_ids) is None
        for wrong in (absent.start, n_rows, "<picture>"):
            with pytest.raises(InvalidRequest, match=r"^prompt: token id"):
                llm.generate([wrong] if isinstance(wrong, int) else wrong, GREEDY)
            if isinstance(wrong, int):
                with pytest.raises(InvalidRequest, match=r"^logit_bias: token id"):
                    llm.generate("hello", SamplingParams(logit_bias={wrong: 100.0}))
                with pytest.raises(InvalidRequest, match=r"^stop_token_ids: token id"):
                    llm.generate("hello", SamplingParams(stop_token_ids=(wrong,)))


def test_what_the_model_recommends_is_the_default(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", **{"general.sampling.temp": 0.0, "general.sampling.top_k": 5})
    with load(path) as llm:
        assert llm.default_params == SamplingParams(temperature=0.0, top_k=5)
        [answer] = llm.generate("hello")
        [greedy] = llm.generate("hello", SamplingParams(temperature=0.0))
        assert answer.outputs[0].token_ids == greedy.outputs[0].token_ids
        assert "".join(d.text for d in llm.stream("hello")) == greedy.outputs[0].text
    with load(path, generation_config="none") as llm:
        assert llm.default_params == SamplingParams()


def test_a_recommendation_out_of_range_is_refused_unless_it_is_not_wanted(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", **{"general.sampling.temp": 7.0})
    with pytest.raises(
        ModelFileError, match=r"^m\.gguf: general\.sampling\.temp must be .* \(--generation-config none"
    ):
        load(path)
    load(path, generation_config="none").close()


@pytest.mark.parametrize(("name", "fault"), [("nope", "'nope' is not supported"), ("", "is missing")])
def test_o53_a_model_of_an_unknown_pre_tokenizer_does_not_load(name: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"pre-tokenizer \(tokenizer\.ggml\.pre\) {fault}; known: "):
        load(save(tmp_path / "m.gguf", **{"tokenizer.ggml.pre": name}))


def test_a_vocabulary_without_rows_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokens.* rows"):
        load(save(tmp_path / "short.gguf", n_rows=200))


@pytest.mark.parametrize("context", [100_000_000, 2**32 - 1])
def test_a_claimed_context_costs_no_memory(context: int, tmp_path: Path) -> None:
    with load(save(tmp_path / "long.gguf", **{"llama.context_length": context})) as llm:
        assert llm.config.model.max_model_len == 131072
        assert len(llm.generate("hello", GREEDY)[0].outputs[0].token_ids) == 8


@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "blk.0.attn_v.weight", "output.weight", "token_embd.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(name: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"^odd\.gguf: tensor '{name}': a number is not finite \(row 0, "):
        load(save(tmp_path / "odd.gguf", odd={name: value}))


def test_logits_that_are_no_numbers_fail_the_request_and_nothing_else(tmp_path: Path) -> None:
    """Finite weights whose products are not."""
    with load(
        save(tmp_path / "large.gguf", odd={"blk.0.attn_v.weight": 3e38, "blk.0.attn_output.weight": 3e38})
    ) as llm:
        for params in (GREEDY, SamplingParams(seed=1, max_tokens=4)):
            with pytest.raises(RequestFailed, match="no usable logits"):
                llm.generate("hello", params)
        llm.core.check()


def test_a_norm_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'output_norm.weight' holds a value that is not finite"):
        load(save(tmp_path / "nan.gguf", odd={"output_norm.weight": np.nan}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 3),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 7),
        ("llama.attention.head_count_kv", 0),
        ("llama.embedding_length", 2**31),
        ("llama.feed_forward_length", 2**32 - 1),
        ("llama.context_length", 0),
        ("llama.attention.sliding_window", 2**32 - 1),
        ("llama.attention.head_count", 64),
        ("llama.attention.key_length", 0),
        ("llama.attention.key_length", 48),
        ("llama.rope.dimension_count", 0),
        ("llama.rope.dimension_count", 31),
        ("llama.rope.dimension_count", 64),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.attention.layer_norm_rms_epsilon", float("inf")),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("general.architecture", "mamba"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"^odd\.gguf: "):
        load(save(tmp_path / "odd.gguf", **{key: value}))


def test_O30_log_probabilities_of_a_prompt_depend_on_no_chunk_and_no_cache(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf")
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=3)
    prompt = [3 + i % 20 for i in range(3 * 16 + 2)]
    seen = []
    for budget in (128, 7):
        with load(path, max_num_batched_tokens=budget) as llm:
            llm.generate(prompt, GREEDY)  # what it has read is in the cache now
            for _ in range(2):
                [output] = llm.generate(prompt, params)
                assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt) - 1
                assert output.cached_tokens == 0
                seen.append(output.prompt_logprobs)
    assert all(entries == seen[0] for entries in seen)
