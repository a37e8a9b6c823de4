"""Wire requests -> execution requests."""

from __future__ import annotations

import msgspec
import pytest

from sixfold.api.admission.admission import SCORED_BUDGET
from sixfold.api.fields.params import Limits, sampling_params
from sixfold.api.http.decoding import decode
from sixfold.api.http.type_fault import field_name
from sixfold.api.openai.completions import split_prompts
from sixfold.api.openai.schemas import CompletionRequest
from sixfold.errors import InvalidRequest
from sixfold.messages import TokenLogprobs
from sixfold.transport.frames import MAX_FRAME_BYTES

LIMITS = Limits(
    max_tokens=5, max_tokens_field="max_tokens", prompt_field="prompt", logprobs=None, logprobs_field="logprobs"
)


def test_fields_reach_the_sampling_parameters() -> None:
    body = (
        b'{"prompt":"a","temperature":0,"top_k":-1,"stop":"x","seed":7,"logit_bias":{"5":1},"stop_token_ids":[3],"n":2}'
    )
    request, ignored = decode(CompletionRequest, body)
    params = sampling_params(request, LIMITS, {})
    assert ignored == []
    assert (params.n, params.temperature, params.top_k, params.stop, params.seed) == (2, 0.0, -1, ("x",), 7)
    assert (params.logit_bias, params.stop_token_ids, params.max_tokens) == ({5: 1.0}, (3,), 5)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("", None),
        (".stop[1]", "stop"),
        (".prompt[0][3]", "prompt"),
        (".messages[0]", "messages"),
        (".messages[0].role", "messages[0].role"),
        (".messages[3].content[0].text", "messages[3].content"),
        (".messages[3].content[0]", "messages[3].content"),
        (".logit_bias[...]", "logit_bias"),
        ("logit_bias.5", "logit_bias"),
        (".stream_options.foo", "stream_options.foo"),
    ],
)
def test_field_names(path: str, name: str | None) -> None:
    assert field_name(path) == name


def test_the_four_forms_of_a_prompt() -> None:
    assert split_prompts("a") == (["a"], [])
    assert split_prompts(["a", "b"]) == (["a", "b"], [])
    assert split_prompts([1, 2]) == ([], [[1, 2]])
    assert split_prompts([[1], [2]]) == ([], [[1], [2]])
    for wrong in ([], ["a", 1], [1, [1]]):
        with pytest.raises(InvalidRequest) as caught:
            split_prompts(wrong)
        assert caught.value.param == "prompt"


def test_a_limit_is_named_as_the_caller_named_it() -> None:
    request, _ = decode(CompletionRequest, b'{"prompt":"a"}')
    limits = Limits(
        max_tokens=-1,
        max_tokens_field="max_completion_tokens",
        prompt_field="messages",
        logprobs=None,
        logprobs_field="top_logprobs",
    )
    with pytest.raises(InvalidRequest) as caught:
        sampling_params(request, limits, {})
    assert caught.value.param == "max_completion_tokens"
    assert caught.value.message.startswith("max_completion_tokens must")


def test_all_log_probabilities_of_prompts_in_flight_fit_into_one_frame() -> None:
    entry = TokenLogprobs(-1.25, 2**31 - 1, [], [])
    assert SCORED_BUDGET * len(msgspec.msgpack.encode(entry)) + (1 << 20) < MAX_FRAME_BYTES
    wide = TokenLogprobs(-1.25, 2**31 - 1, [2**31 - 1] * 20, [-1.25] * 20)
    assert len(msgspec.msgpack.encode(wide)) < 21 * len(msgspec.msgpack.encode(entry))
