"""docs/api.md and docs/policies.md against the code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sixfold import sampling_params
from sixfold.api import abort, call, context
from sixfold.api.admission import admission
from sixfold.api.field_docs import FieldDoc, field_docs, structs_of
from sixfold.api.fields import params
from sixfold.api.http import decoding, guard
from sixfold.api.http.errors import STATUS_OF_CODE, TABLE
from sixfold.api.openai import embeddings, schemas
from sixfold.api.openapi import OPERATIONS
from sixfold.api.responses.schemas import GENERATION_FIELDS, ResponsesRequest
from sixfold.config import ApiConfig
from sixfold.sampling_params import SamplingParams

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "api.md").read_text()
POLICIES = (DOCS / "policies.md").read_text()
REQUESTS = structs_of([op.request for op in OPERATIONS if op.request is not None])
FIELDS = [(struct, doc) for struct in REQUESTS for doc in field_docs(struct)]


@pytest.mark.parametrize(("struct", "doc"), FIELDS, ids=[f"{struct.__name__}.{doc.name}" for struct, doc in FIELDS])
def test_every_field_is_described(struct: type[msgspec.Struct], doc: FieldDoc) -> None:
    assert doc.description, "annotate it with `says` or a `Meta` with a description"
    assert not doc.description.endswith(".")
    assert f"| `{doc.name}` | " in API


def test_described_defaults_are_those_of_the_sampling_parameters() -> None:
    defaults = SamplingParams()
    names = set(SamplingParams.__struct_fields__)
    checked = [doc for doc in field_docs(schemas.GenerationRequest) if doc.name in names and doc.default is not None]
    assert len(checked) >= 14
    for doc in checked:
        value = getattr(defaults, doc.name)
        assert doc.default == value if value is not None else isinstance(doc.default, str), doc.name


def test_what_has_one_name_has_one_default() -> None:
    """Of the endpoints that generate; Anthropic's shapes have only some of the fields, with words of their own."""
    shared = {doc.name: doc for doc in field_docs(schemas.GenerationRequest)}
    said = {doc.name: doc for doc in field_docs(ResponsesRequest)}
    for name in GENERATION_FIELDS:
        assert said[name].default == shared[name].default, name
        assert said[name].description.endswith(" *") == shared[name].description.endswith(" *"), name


def test_all_sampling_parameters_can_be_asked_for() -> None:
    assert set(SamplingParams.__struct_fields__) - set(schemas.CompletionRequest.__struct_fields__) == set()


def test_kinds_of_fields() -> None:
    kinds = {doc.name: doc.kind for doc in field_docs(schemas.CompletionRequest)}
    assert kinds["user"] == "inert" and kinds["suffix"] == "unsupported"
    assert kinds["echo"] == kinds["prompt"] == "understood"
    assert {doc.name: doc.kind for doc in field_docs(schemas.ChatRequest)}["echo"] == "unsupported"


def test_every_error_is_documented() -> None:
    for row in TABLE.values():
        if row.code == "invalid_api_key":  # there are no keys yet
            continue
        assert f"| {row.status} |" in API or f"{row.status}," in API
        assert f"`{row.type}`" in API
        assert row.code is None or row.code == "not_allowed" or f"`{row.code}`" in API
    for code in STATUS_OF_CODE:
        assert f"`{code}`" in API


def test_limits_in_the_policies_are_those_of_the_code() -> None:
    config = ApiConfig()
    head_s, body_s, idle_s = f"{config.header_timeout_s:g} s", f"{config.body_timeout_s:g} s", f"{guard.KEEP_ALIVE_S} s"
    for text in (
        f"{sampling_params.MAX_N}; prompts times n: {schemas.MAX_PROMPTS}",
        f"| messages | {schemas.MAX_MESSAGES}",
        f"{schemas.MAX_INPUTS}, {embeddings.MAX_INPUT_TOKENS} tokens together; {embeddings.WAVE} of them",
        f"| numbers in an embeddings answer | {embeddings.MAX_NUMBERS}:",
        f"| `id` of an abort | {abort.MAX_ID_CHARS} characters |",
        f"{sampling_params.MAX_STOP} strings of 1 to {sampling_params.MAX_STOP_CHARS} characters",
        f"| `stop_token_ids` | {sampling_params.MAX_STOP_TOKEN_IDS} |",
        f"{sampling_params.MAX_LOGIT_BIAS} ids",
        f"| `logprobs`, `top_logprobs`, `prompt_logprobs` | {sampling_params.MAX_LOGPROBS} |",
        f"| `allowed_token_ids` | {sampling_params.MAX_ALLOWED_TOKEN_IDS} |",
        f"| {sampling_params.MAX_BAD_WORDS} strings of 1 to {sampling_params.MAX_BAD_WORD_CHARS} characters |",
        f"{admission.MAX_SCORED} in a call, {admission.SCORED_BUDGET} in what",
        f"| `timeout` | {params.MAX_TIMEOUT_S} s |",
        f"| `cache_salt` | {schemas.MAX_CACHE_SALT_CHARS} characters |",
        f"| {admission.MAX_PREPARING} per API process, then 429 |",
        f"{decoding.MAX_JSON_DEPTH} levels; {decoding.MAX_JSON_CONTAINERS} arrays and objects",
        f"{config.max_body_bytes >> 20} MiB (`--max-body-bytes`), complete within {body_s}",
        f"{guard.MAX_HEADER_BYTES >> 10} KiB, {guard.MAX_HEADER_FIELDS} fields, complete within {head_s}",
        f"{config.max_connections} per API process (`--max-connections`), idle ones closed after {idle_s}",
        f"at most {context.BODY_BUDGET_FACTOR} of the largest size",
        f"for at most {call.LINGER_S:g} s",
        f"comment every {config.stream_keep_alive_s:g} s",
        f"does not read for {guard.WRITE_STALL_S:g} s",
    ):
        assert text in POLICIES, text
