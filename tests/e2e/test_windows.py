"""P2 on models whose layers see a window: which keys lie behind it must not show in any token.

Tiny models have windows below, at and beyond a block (16) and an attention segment (256), and multiples of neither;
Gemma has its own of 512 in five layers of six. Prompts end around all these borders, and share beginnings that lie
within a window, across its border and wholly behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny

from sixfold import LLM, SamplingParams
from sixfold.config import Config
from sixfold.engine.resolve import resolve
from sixfold.executor.model_runner import NativeBackend
from sixfold.model_file import open_model

Request = tuple[list[int], SamplingParams]
Tokens = list[list[list[int]]]
"""Per request, per choice, its token ids."""

LENGTH = 600
WINDOWS = [5, 16, 40, 256, 300]
FAMILIES = ["gemma3", "mistral", "olmo3", "phi3"]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def seeded(max_tokens: int, seed: int, n: int = 1) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, n=n, max_tokens=max_tokens, ignore_eos=True)


def tokens_of(llm: LLM, requests: list[Request], *, alone: bool = False) -> Tokens:
    if alone:
        outputs = [llm.generate(ids, params)[0] for ids, params in requests]
    else:
        outputs = llm.generate([ids for ids, _ in requests], [params for _, params in requests])
    llm.core.check()
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


def check_same_tokens(path: Path, requests: list[Request], pool: int) -> None:
    """Each request alone and on a cold cache gives what it gives among the others, cut in any way, in any order of
    the cache's filling, and with so few blocks that some are preempted."""
    settings: dict[str, Any] = {"num_kv_blocks": 400, "max_num_seqs": 16}
    with LLM(str(path), **settings, enable_prefix_caching=False, threads=2) as llm:
        want = tokens_of(llm, requests, alone=True)
    assert len({str(tokens) for tokens in want}) == len(want), "requests that all answer alike would show nothing"
    for changes in (
        {"max_num_batched_tokens": 16, "threads": 1, "pipeline_depth": 1},
        {"max_num_batched_tokens": 256, "threads": 2, "pipeline_depth": 2},
        {"max_num_batched_tokens": 64, "threads": 2, "pipeline_depth": 2, "num_kv_blocks": pool},
    ):
        with LLM(str(path), **settings | changes) as llm:
            assert tokens_of(llm, requests) == want, changes
            cold = llm.core.stats()
            assert tokens_of(llm, requests[::-1])[::-1] == want, f"{changes}, with a warm cache"
            warm = llm.core.stats()
            assert warm.mixed_steps > 0 and warm.cached_tokens > cold.cached_tokens
            assert warm.preemptions > 0 or changes.get("num_kv_blocks") != pool


def tiny_path(directory: Path, family: str, window: int) -> Path:
    changes = {"original_max_position_embeddings": 1024} if family == "phi3" else {}
    return tiny.gguf(directory, family, sliding_window=window, max_position_embeddings=1024, **changes)


def ids_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 250, n).tolist()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_numpy_forward_pass(tmp_path: Path, family: str, window: int) -> None:
    path = tiny_path(tmp_path, family, window)
    file, ids = open_model(path), ids_of(LENGTH)
    assert window in file.config.windows
    want = forward.logits(file, ids, context=1024)
    settings = {"model": str(path), "activations": "float32", "kv_cache_dtype": "float32", "num_kv_blocks": 64}
    got = NativeBackend.load(resolve(Config.from_flat(settings))).logits(ids)
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-4


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_of_tiny_models(tmp_path: Path, family: str, window: int) -> None:
    shared = ids_of(LENGTH)
    borders = {16, 32, window, window + 16, 256, 512}
    lengths = sorted({n + d for n in borders for d in (-1, 0, 1) if n + d > 0})
    requests = [(shared[:n], greedy(20) if n % 2 else seeded(20, n)) for n in lengths]
    requests += [(shared[:300] + ids_of(40, 1), seeded(20, 7, n=2)), (shared[:20] + ids_of(250, 2), greedy(20))]
    check_same_tokens(tiny_path(tmp_path, family, window), requests, pool=36)


@pytest.mark.model
def test_same_tokens_of_gemma(gemma_path: Path, gemma_golden: dict[str, Any]) -> None:
    first, second = (case["ids"] for case in gemma_golden["cases"] if len(case["ids"]) == 1500)
    requests = [
        (first[:1400], greedy(12)),
        (second[:900], seeded(24, 3, n=2)),
        (first[:600] + second[300:330], greedy(40)),
        (second[:530] + first[900:910], seeded(40, 4)),
        (first[:100] + second[100:140], greedy(60)),
        (second[:20], greedy(60)),
    ]
    check_same_tokens(gemma_path, requests, pool=108)
