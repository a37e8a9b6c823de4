"""P2 with grammars: the same tokens alone, together, chunked, and preempted over and over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sixfold import LLM, SamplingParams, StructuredOutputs

pytestmark = pytest.mark.model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
PROMPTS = [f"Write down animal number {i} of the farm {'by the river ' * (i % 4)}as JSON:" for i in range(12)]


def params() -> list[SamplingParams]:
    kinds = (
        StructuredOutputs(json=SCHEMA),
        StructuredOutputs(regex=r"[A-Z][a-z]{2,12}( [a-z]{1,9}){3,6}\."),
        None,
        StructuredOutputs(grammar='start: item+\nitem: "- " /[a-z ]{1,20}/ "\\n"'),
    )
    return [
        SamplingParams(
            max_tokens=64,
            seed=i,
            temperature=0.0 if i % 3 == 0 else 1.0,
            top_p=0.9 if i % 5 == 0 else 1.0,
            repetition_penalty=1.2 if i % 2 else 1.0,
            n=2 if i == 4 else 1,
            ignore_eos=kinds[i % 4] is None,
            structured_outputs=kinds[i % 4],
        )
        for i in range(len(PROMPTS))
    ]


def tokens_of(llm: LLM, *, alone: bool = False) -> list[list[list[int]]]:
    each = params()
    if alone:
        outputs = [llm.generate(prompt, own)[0] for prompt, own in zip(PROMPTS, each, strict=True)]
    else:
        outputs = llm.generate(PROMPTS, each)
    llm.core.check()
    for output in outputs[::4]:
        for choice in output.outputs:
            if choice.finish_reason == "stop":
                jsonschema.validate(json.loads(choice.text), SCHEMA)
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def reference(model_path: Path) -> list[list[list[int]]]:
    with LLM(str(model_path), max_model_len=256, enable_prefix_caching=False, threads=1) as llm:
        return tokens_of(llm, alone=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"num_kv_blocks": 20, "max_num_seqs": 6},
        {"pipeline_depth": 1, "threads": 2, "max_num_seqs": 3},
    ],
    ids=["together", "chunked", "preempted", "depth 1"],
)
def test_tokens_are_those_of_the_request_alone(
    model_path: Path, reference: list[list[list[int]]], settings: dict[str, Any]
) -> None:
    with LLM(str(model_path), max_model_len=256, **settings) as llm:
        assert tokens_of(llm) == reference
        if "num_kv_blocks" in settings:
            assert llm.core.stats().preemptions > 0


def test_a_limit_ends_this_request_alone(model_path: Path) -> None:
    """The automaton of `(.|\\n)*a(.|\\n){20}` grows with every token until its limit: an error, and no end."""
    hostile = SamplingParams(
        max_tokens=900, seed=1, temperature=2.0, structured_outputs=StructuredOutputs(regex=r"(.|\n)*a(.|\n){20}")
    )
    plain = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    with LLM(str(model_path), max_model_len=1024) as llm:
        [alone] = llm.generate("The sea", plain)
        stream = llm.stream("x", hostile)
        next(stream)
        [beside] = llm.generate("The sea", plain)
        assert beside.outputs[0].token_ids == alone.outputs[0].token_ids
        stream.close()
        llm.core.check()
