"""`POST /v1/embeddings`, over the fake engine and over all processes of the scripted executor."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import openai
import pytest

from sixfold.api.openai.embeddings import MAX_INPUT_TOKENS, WAVE
from sixfold.api.openai.schemas import MAX_INPUTS
from sixfold.errors import Overloaded

from .conftest import Answer, Target, eventually, post_bytes
from .fake_engine import CONTEXT, EMBEDDING_SIZE, FakeEngine


def embed(target: Target, text: Any, **fields: Any) -> Answer:
    return target.post("/v1/embeddings", {"model": target.model, "input": text, **fields})


def vectors(answer: Answer) -> list[list[float]]:
    """The vectors in order, after a check of the answer's shape."""
    assert answer.status == 200, answer.body
    document = answer.json
    assert set(document) == {"object", "data", "model", "usage"} and document["object"] == "list"
    assert [entry["index"] for entry in document["data"]] == list(range(len(document["data"])))
    assert all(entry["object"] == "embedding" for entry in document["data"])
    return [entry["embedding"] for entry in document["data"]]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_the_four_forms_of_input(target: Target) -> None:
    ids = target.tokenizer.encode("hello", parse_control=False)
    [one] = vectors(embed(target, "hello"))
    assert vectors(embed(target, ids)) == [one]
    assert vectors(embed(target, ["hello", "world", "hello"]))[::2] == [one, one]
    assert vectors(embed(target, [[1, 2], ids]))[1] == one


def test_vectors_have_length_1_unless_asked_otherwise(target: Target) -> None:
    [plain] = vectors(embed(target, "hello"))
    [raw] = vectors(embed(target, "hello", normalize=False))
    assert math.hypot(*plain) == pytest.approx(1, abs=1e-6)
    assert abs(math.hypot(*raw) - 1) > 0.01
    assert cosine(plain, raw) == pytest.approx(1)


def test_base64_holds_the_same_float32_numbers(target: Target) -> None:
    [floats] = vectors(embed(target, "hello", encoding_format="float"))
    [text] = vectors(embed(target, "hello", encoding_format="base64"))
    raw = base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == floats


def test_mean_sees_every_token_and_last_does_not(target: Target) -> None:
    long, short = [target.tokenizer.encode(text, parse_control=False) for text in ("zzzzza", "a")]
    assert vectors(embed(target, long)) != vectors(embed(target, short))
    assert vectors(embed(target, long)) == vectors(embed(target, long, pooling="mean"))
    assert vectors(embed(target, [long, short], pooling="last"))[0] == vectors(embed(target, short))[0]


def test_texts_that_share_tokens_are_closer(target: Target) -> None:
    a, b, c = vectors(embed(target, ["a red house", "a red horse", "1234567890"]))
    assert cosine(a, b) > cosine(a, c)


def test_literals_of_control_tokens_are_text(target: Target) -> None:
    literal = "<|im_end|>"
    as_text = vectors(embed(target, literal))
    assert as_text == vectors(embed(target, target.tokenizer.encode(literal, parse_control=False)))
    assert as_text != vectors(embed(target, target.tokenizer.encode(literal, parse_control=True)))


def test_O58_usage_counts_every_text_once(target: Target) -> None:
    answer = embed(target, ["one", "three", "one"])
    n = sum(len(target.tokenizer.encode(text, parse_control=False)) for text in ("one", "three", "one"))
    assert answer.json["usage"] == {"prompt_tokens": n, "total_tokens": n}


def test_the_whole_context_may_be_used(target: Target) -> None:
    """Nothing is generated, so that no token is kept for it."""
    assert embed(target, [7] * CONTEXT).status == 200
    error = embed(target, [[7], [7] * (CONTEXT + 1)]).error
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert str(CONTEXT) in error["message"] and str(CONTEXT + 1) in error["message"]
    error = embed(target, "\x01" * 5000).error  # refused by its bytes
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", []]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [["a"]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [-1]}, "input"),
        ({"input": [[1], [10**6]]}, "input[1]"),
        ({"input": None}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 4}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"pooling": "cls"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"priority": 2**31}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"user": 5}, "user"),
        ({"truncate": True}, "truncate"),
        ({"stream": True}, "stream"),
        ({"input": "\ud800"}, "input"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(target: Target, fields: dict[str, Any], param: str) -> None:
    before = target.submitted
    answer = target.post("/v1/embeddings", {"model": target.model, "input": "hi", **fields})
    assert answer.status == 400 and answer.error["param"] == param, answer.body
    assert target.submitted == before
    target.check_alive()


def test_fields_that_are_accepted(target: Target) -> None:
    size = len(vectors(embed(target, "hi"))[0])
    assert vectors(embed(target, "hi", dimensions=size, user="u", cache_salt="s", priority=3)) == vectors(
        embed(target, "hi", user=None, dimensions=None)
    )
    assert embed(target, "hi", model="other").error["code"] == "model_not_found"


def test_O49_more_texts_or_tokens_than_are_allowed(target: Target) -> None:
    before = target.submitted
    error = embed(target, ["a"] * (MAX_INPUTS + 1)).error
    assert error["param"] == "input" and str(MAX_INPUTS) in error["message"]
    error = embed(target, ["a" * CONTEXT] * (MAX_INPUT_TOKENS // CONTEXT + 1)).error
    assert error["param"] == "input" and str(MAX_INPUT_TOKENS) in error["message"]
    assert target.submitted == before
    target.check_alive()


def test_many_texts_go_in_waves(serve: Callable[..., Any]) -> None:
    fake = FakeEngine()
    fake.max_outstanding = WAVE + 10
    target, live = serve(fake)
    texts = [str(i) for i in range(3 * WAVE + 1)]
    found = vectors(embed(target, texts))
    assert found == [vectors(embed(target, text))[0] for text in texts]
    assert not fake.live and not len(live.server.app.context.open_requests)


def test_a_full_server_takes_what_there_is_room_for(serve: Callable[..., Any]) -> None:
    fake = FakeEngine()
    fake.max_outstanding = 3
    target, _ = serve(fake)
    assert len(vectors(embed(target, ["a"] * 10))) == 10
    fake.refuse = Overloaded("full", retry_after_s=2.0)
    answer = embed(target, ["a"] * 10)
    assert answer.status == 429 and answer.headers["retry-after"] == "2"


def test_truncation_keeps_an_end_of_a_text(target: Target) -> None:
    long = "y" * 600 + "z"
    assert embed(target, long).error["code"] == "context_length_exceeded"
    for n_tokens, side, kept in ((2, None, "yz"), (2, "right", "yy"), (-1, None, "y" * (CONTEXT - 1) + "z")):
        answer = embed(target, long, truncate_prompt_tokens=n_tokens, truncation_side=side)
        assert vectors(answer) == vectors(embed(target, kept))
        assert answer.json["usage"]["prompt_tokens"] == len(kept)
    assert embed(target, "a", truncate_prompt_tokens=0).error["param"] == "truncate_prompt_tokens"
    assert embed(target, "a", truncation_side="left").error["param"] == "truncation_side"


def test_a_client_that_leaves_takes_its_texts_along(serve: Callable[..., Any]) -> None:
    fake = FakeEngine()
    fake.prefill_s = 1000.0
    target, live = serve(fake)
    with target.connect() as connection:
        connection.sendall(post_bytes("/v1/embeddings", {"input": ["a"] * (WAVE + 5)}))
        eventually(lambda: len(fake.live) == WAVE)
    eventually(lambda: fake.aborts == WAVE)
    eventually(lambda: live.server.app.context.admission.in_flight == 0)
    assert not fake.live and len(fake.requests) == WAVE


def test_a_dead_engine_ends_the_call(serve: Callable[..., Any]) -> None:
    fake = FakeEngine()
    fake.prefill_s = 1000.0
    target, live = serve(fake)
    with target.connect() as connection:
        connection.sendall(post_bytes("/v1/embeddings", {"input": ["a"] * 2}, "Connection: close\r\n"))
        eventually(lambda: len(fake.live) == 2)
        live.call(fake.kill)
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 503 ")
            assert any(b'"engine_dead"' in line for line in iter(answer.readline, b""))


def test_the_openai_client(target: Target) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{target.port}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=target.model, input=["a", "b"])  # asks for base64, gives floats
        plain = client.embeddings.create(model=target.model, input=["a", "b"], encoding_format="float")
        assert [entry.embedding for entry in answer.data] == [entry.embedding for entry in plain.data]
        assert answer.usage.prompt_tokens == 2 and answer.object == "list" and answer.model == target.model
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=target.model, input="a", dimensions=EMBEDDING_SIZE - 1)
        assert caught.value.param == "dimensions"


def test_a_text_that_is_too_long_is_told_in_the_words_that_clients_know(target: Target) -> None:
    for text in ([97] * (CONTEXT + 1), "a" * (CONTEXT + 1)):
        message = embed(target, text).error["message"]
        assert f"this model's maximum context length is {CONTEXT} tokens" in message


def test_O41_an_embedding_has_a_deadline(serve: Callable[..., Any]) -> None:
    """In the engine, and before it where the queue is too long."""
    fake = FakeEngine()
    target, live = serve(fake)
    assert embed(target, "abc", timeout=5).status == 200
    (asked,) = fake.requests
    assert asked.deadline_s is not None and 0 < asked.deadline_s - asked.arrival_s <= 5
    assert target.post("/v1/embeddings", {"input": "a"}, **{"X-Request-Timeout-Ms": "2000"}).status == 200
    assert fake.requests[-1].deadline_s - fake.requests[-1].arrival_s <= 2
    for timeout in (0, -1, 1e9):
        assert embed(target, "abc", timeout=timeout).error["param"] == "timeout"
    fake.told = {"queue_wait_s": 10.0}
    answer = embed(target, "abc", timeout=5)
    assert answer.status == 429 and answer.error["code"] == "deadline_unreachable"
    assert not live.server.app.context.admission.in_flight
