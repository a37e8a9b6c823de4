"""P2, same request, same tokens: 24 requests give the same token ids whatever shares their steps.

The reference is each request alone on a cold cache. The test also shows that it was not vacuous: there were
preemptions, cache hits, and steps that held prefill and decode rows together.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sixfold import LLM, SamplingParams
from sixfold.messages import EngineStats

pytestmark = pytest.mark.model

MAX_TOKENS = 48
WORDS = "the old river runs north past seven mills and a bridge of stone where children count red boats".split()


def requests() -> list[tuple[str, SamplingParams]]:
    """12 greedy and 12 seeded requests of 3 to about 200 tokens; ten share a beginning of about 100."""
    rng = random.Random(6)
    shared = " ".join(rng.choice(WORDS) for _ in range(100))
    made = []
    for i in range(24):
        own = " ".join(rng.choice(WORDS) for _ in range(rng.choice((3, 9, 30, 80))))
        prompt = f"{shared} {own}" if i % 5 in (1, 3) else own
        if i % 2:
            params = SamplingParams(
                seed=i,
                temperature=1.0,
                max_tokens=MAX_TOKENS,
                ignore_eos=True,
                top_p=0.9 if i % 3 == 0 else 1.0,
                top_k=40 if i % 7 == 0 else 0,
                frequency_penalty=0.5 if i % 11 == 0 else 0.0,
                n=2 if i in (5, 9) else 1,
            )
        else:
            penalty = 1.2 if i % 8 == 0 else 1.0
            params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, repetition_penalty=penalty)
        made.append((prompt, params))
    return made


def tokens_of(llm: LLM, *, alone: bool = False) -> list[list[list[int]]]:
    """Per request, per choice, its token ids."""
    prompts, params = zip(*requests(), strict=True)
    if alone:
        outputs = [llm.generate(p, s)[0] for p, s in zip(prompts, params, strict=True)]
    else:
        outputs = llm.generate(list(prompts), list(params))
    llm.core.check()
    return [[c.token_ids for c in o.outputs] for o in outputs]


@pytest.fixture(scope="module")
def reference(model_path: Path) -> list[list[list[int]]]:
    with LLM(str(model_path), enable_prefix_caching=False, max_num_seqs=2) as llm:
        return tokens_of(llm, alone=True)


# Every value of every setting once; what a machine with two cores chooses by itself is the first.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "together, two threads, depth 2": {"threads": 2, "pipeline_depth": 2},
    "budget of 16": {"max_num_batched_tokens": 16},
    "budget of 256, one thread": {"max_num_batched_tokens": 256, "threads": 1},
    "no prefix cache, depth 1": {"enable_prefix_caching": False, "pipeline_depth": 1},
    "pool of 80 blocks": {"num_kv_blocks": 80},
    "pool of 80 blocks, budget of 16, depth 1": {
        "num_kv_blocks": 80,
        "max_num_batched_tokens": 16,
        "pipeline_depth": 1,
    },
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_P2_O59_same_request_same_tokens(name: str, model_path: Path, reference: list[list[list[int]]]) -> None:
    with LLM(str(model_path), **CONFIGURATIONS[name]) as llm:
        assert tokens_of(llm) == reference
        cold = llm.core.stats()
        if llm.config.cache.enable_prefix_caching:
            assert tokens_of(llm) == reference, "with a warm cache"
        _not_vacuous(name, cold, llm.core.stats())


def _not_vacuous(name: str, cold: EngineStats, warm: EngineStats) -> None:
    assert warm.mixed_steps > 0
    if name.startswith("no prefix cache"):
        assert warm.cached_tokens == 0
    else:
        assert warm.cached_tokens > cold.cached_tokens
    if name == "pool of 80 blocks":
        assert warm.preemptions >= 5
