"""docs/api.md and docs/policies.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sixfold import sampling_params
from sixfold.api import abort, call, context, decoding, embeddings, guard, schemas, stream
from sixfold.api.errors import STATUS_OF_CODE, TABLE
from sixfold.config import ApiConfig
from sixfold.sampling_params import SamplingParams

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "api.md").read_text()
POLICIES = (DOCS / "policies.md").read_text()
REQUESTS = (
    schemas.CompletionRequest,
    schemas.ChatRequest,
    schemas.ChatMessage,
    schemas.TokenizeRequest,
    schemas.DetokenizeRequest,
    schemas.EmbeddingRequest,
    schemas.ApplyTemplateRequest,
    schemas.AbortRequest,
    schemas.StreamOptions,
)
FIELDS = sorted({name for request in REQUESTS for name in request.__struct_fields__})


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_documented(name: str) -> None:
    assert f"`{name}`" in API


def test_every_documented_field_exists() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", API, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - set(FIELDS) - {row.type for row in TABLE.values()} == set()


def test_documented_defaults_are_those_of_the_sampling_parameters() -> None:
    defaults = dict(
        re.findall(r"^\| `(\w+)` \| (?:number|integer|boolean) \| ([\d.]+|true|false) \|", API, re.MULTILINE)
    )
    params = SamplingParams()
    checked = [name for name in defaults if hasattr(params, name) and name != "logprobs"]
    assert len(checked) >= 12
    for name in checked:
        assert defaults[name] == str(getattr(params, name)).lower().removesuffix(".0"), name


def test_every_error_is_documented() -> None:
    for row in TABLE.values():
        if row.code == "invalid_api_key":  # there are no keys yet
            continue
        assert f"| {row.status} |" in API or f"{row.status}," in API
        assert f"`{row.type}`" in API
        assert row.code is None or row.code == "not_allowed" or f"`{row.code}`" in API
    for code in STATUS_OF_CODE:
        assert f"`{code}`" in API


def test_inert_and_unsupported_fields_are_listed() -> None:
    inert = API.split("## Accepted and inert")[1].split("##")[0]
    unsupported = API.split("## Known and not supported")[1].split("##")[0]
    assert all(f"`{name}`" in inert for name in schemas.INERT)
    assert all(f"`{name}`" in unsupported for name in schemas.UNSUPPORTED if name not in ("best_of", "suffix"))


def test_limits_in_the_policies_are_those_of_the_code() -> None:
    config = ApiConfig()
    head_s, body_s, idle_s = f"{config.header_timeout_s:g} s", f"{config.body_timeout_s:g} s", f"{guard.KEEP_ALIVE_S} s"
    for text in (
        f"{sampling_params.MAX_N}; prompts times n: {schemas.MAX_PROMPTS}",
        f"| messages | {schemas.MAX_MESSAGES} |",
        f"{schemas.MAX_INPUTS}, {embeddings.MAX_INPUT_TOKENS} tokens together; {embeddings.WAVE} of them",
        f"| numbers in an embeddings answer | {embeddings.MAX_NUMBERS}:",
        f"| `id` of an abort | {abort.MAX_ID_CHARS} characters |",
        f"{sampling_params.MAX_STOP} strings of 1 to {sampling_params.MAX_STOP_CHARS} characters",
        f"| `stop_token_ids` | {sampling_params.MAX_STOP_TOKEN_IDS} |",
        f"{sampling_params.MAX_LOGIT_BIAS} ids",
        f"| `logprobs`, `top_logprobs` | {sampling_params.MAX_LOGPROBS} |",
        f"| `cache_salt` | {schemas.MAX_CACHE_SALT_CHARS} characters |",
        f"| {context.MAX_PREPARING} per API process, then 429 |",
        f"{decoding.MAX_JSON_DEPTH} levels; {decoding.MAX_JSON_CONTAINERS} arrays and objects",
        f"{config.max_body_bytes >> 20} MiB (`--max-body-bytes`), complete within {body_s}",
        f"{guard.MAX_HEADER_BYTES >> 10} KiB, {guard.MAX_HEADER_FIELDS} fields, complete within {head_s}",
        f"{config.max_connections} per API process (`--max-connections`), idle ones closed after {idle_s}",
        f"at most {context.BODY_BUDGET_FACTOR} of the largest size",
        f"for at most {call.LINGER_S:g} s",
        f"comment every {stream.KEEP_ALIVE_S:g} s",
        f"does not read for {guard.WRITE_STALL_S:g} s",
    ):
        assert text in POLICIES, text
