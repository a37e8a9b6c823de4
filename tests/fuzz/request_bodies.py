"""Bodies of every POST route that `/openapi.json` tells of, against the application over an engine in memory.

An answer has a documented status that is no fault of the server, one shape, and nothing lands in the log of errors.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sys
from random import Random
from typing import Any

from tests.contract.api.fake_engine import FakeEngine
from tests.fuzz import fuzzing
from tests.fuzz.fuzzing import nudged, spliced
from tests.fuzz.mutations import changed, damage
from tests.unit.api.test_fuzz import ask

from sixfold.api.app import App, build_app
from sixfold.api.openapi import OPERATIONS, statuses
from sixfold.config import ApiConfig

Case = tuple[str, bytes, str]
"""(path, body, what is done with unknown fields)"""

REGRESSIONS: list[Case] = []
LONGEST_S = 20.0

_TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ],
    "max_tokens": 4,
}
_RICH: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        _CHAT | {"tools": [{"type": "function", "function": _TOOL}], "tool_choice": "required", "stream": True},
        _CHAT | {"n": 2, "stop": ["a", "bc"], "logprobs": True, "top_logprobs": 2, "seed": 5, "temperature": 0.5},
        _CHAT | {"response_format": _FORMAT, "logit_bias": {"7": -100}, "stream_options": {"include_usage": True}},
        _CHAT | {"structured_outputs": {"regex": "[a-z]+"}, "min_tokens": 1, "stop_token_ids": [97]},
        _CHAT | {"script": [97, 98, 256], "return_token_ids": True, "stream": True, "n": 2, "cache_salt": "s"},
    ],
    "/v1/completions": [
        {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "echo": True, "logprobs": 1, "stream": True},
        {"prompt": [1, 2, 3], "max_tokens": 3, "bad_words": ["x"], "allowed_token_ids": [97, 98], "top_k": 4},
    ],
    "/v1/responses": [
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
            "tools": [{"type": "function", **_TOOL}],
            "max_output_tokens": 4,
            "stream": True,
        },
        {"input": "a", "text": {"format": {"type": "json_object"}}, "previous_response_id": "resp_0", "store": False},
    ],
    "/v1/messages": [
        {
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "max_tokens": 4,
            "stream": True,
            "stop_sequences": ["x"],
        }
    ],
    "/v1/embeddings": [{"input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 8}],
    "/v1/abort": [{"id": "x"}],
    "/tokenize": [_CHAT | {"add_generation_prompt": True, "max_tokens": None}],
    "/apply-template": [_CHAT | {"chat_template_kwargs": {"a": [1]}}],
}
_POSTS = {op.path: op for op in OPERATIONS if op.method == "post"}
CORPUS = [(path, document) for path, op in _POSTS.items() for document in [*op.examples.values(), *_RICH.get(path, [])]]
_FIELDS = sorted({key for _, document in CORPUS for key in document})


def case(rng: Random) -> Case:
    path, document = rng.choice(CORPUS)
    for _ in range(rng.randint(0, 3)):
        document = nudged(document, rng) if rng.random() < 0.7 else changed(document, rng)
        if not isinstance(document, dict):
            break
        if rng.random() < 0.1:
            other = rng.choice(CORPUS)[1]
            key = rng.choice(sorted(other))
            document[key] = other[key]
        if rng.random() < 0.05:
            document[rng.choice(_FIELDS)] = rng.choice((None, True, 0, -1, 1 << 63, 1e308, "", [], {}, [[]], "\x00"))
    body = json.dumps(document).encode()
    if rng.random() < 0.1:
        body = damage(body, rng, len(body))
    if rng.random() < 0.05:
        body = spliced(body, json.dumps(rng.choice(CORPUS)[1]).encode(), rng)
    if rng.random() < 0.03:
        depth = rng.choice((63, 64, 65, 100_000))
        body = b'{"messages":' + b"[" * depth + b"]" * rng.choice((depth, 0)) + b"}"
    return path, body, rng.choice(("refuse", "ignore"))


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


class _Server:
    """Both applications, and the loop in which they run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.engine = FakeEngine(max_model_len=200)
        self.apps: dict[str, App] = {}
        for unknown in ("refuse", "ignore"):
            self.apps[unknown] = build_app(self.engine, ApiConfig(unknown_fields=unknown))  # type: ignore[arg-type]

    def close(self) -> None:
        for app in self.apps.values():
            app.context.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@functools.cache
def server() -> _Server:
    return _Server()


def check(one: Case) -> None:
    path, body, unknown = one
    own, errors = server(), _Errors()
    logging.getLogger().addHandler(errors)
    try:
        app = own.apps[unknown]
        status, out = own.loop.run_until_complete(asyncio.wait_for(ask(app, path, body), LONGEST_S))
    finally:
        logging.getLogger().removeHandler(errors)
    assert not errors.records and not own.faults, (errors.records, own.faults)
    assert status in statuses(_POSTS[path]), status
    assert status < 500 or status in (503, 504), (status, out)
    text = out.decode()
    if status >= 400:
        _check_error(path, json.loads(text))
    elif text.startswith(("data: ", "event: ", ": ")):
        for line in text.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                json.loads(line[6:])
    elif text:
        json.loads(text)
    context = app.context
    assert not context.admission.in_flight and not context.generations and not own.engine.live, "something is left"
    own.engine.requests.clear()
    own.engine.handles.clear()


def _check_error(path: str, document: Any) -> None:
    error = document["error"]
    if path.startswith("/v1/messages"):
        assert document["type"] == "error" and {"type", "message"} <= set(error)
    else:
        assert set(document) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in error["message"]


if __name__ == "__main__":
    sys.exit(fuzzing.main(sys.modules[__name__]))  # type: ignore[arg-type]
