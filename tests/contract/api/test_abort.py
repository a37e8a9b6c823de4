"""`POST /v1/abort`: one connection ends what another waits for."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Answer, LiveServer, Target, eventually
from .fake_engine import FakeEngine

LABEL = "X-Request-Id"


class Pending:
    """A call whose answer is not read yet."""

    def __init__(self, target: Target, path: str, document: dict[str, Any], label: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
        headers = {"Content-Type": "application/json", LABEL: label}
        self._connection.request("POST", path, json.dumps({"model": target.model, **document}), headers)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def event(self) -> Any:
        """The next event of a stream."""
        while True:
            line = self.response.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: {"):
                assert self.response.readline() == b"\n"
                return json.loads(line[6:])

    def answer(self) -> Answer:
        """The rest."""
        response = self.response
        found = Answer(response.status, response.headers, response.read())
        self._connection.close()
        return found


@pytest.fixture
def served(serve: Callable[..., tuple[Target, LiveServer]]) -> Iterator[tuple[Target, LiveServer]]:
    """A server whose answers never end by themselves; after the test, nothing is left of any."""
    fake = FakeEngine(max_model_len=1 << 20)
    fake.step_s = 0.01
    target, live = serve(fake)
    yield target, live
    context = live.server.app.context
    eventually(lambda: not context.admission.in_flight and not fake.live and not len(context.open_requests))


def abort(target: Target, name: str) -> Answer:
    return target.post("/v1/abort", {"id": name})


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
CALLS = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hi"})]


@pytest.mark.parametrize(("path", "document"), CALLS)
@pytest.mark.parametrize("by_label", [True, False])
def test_a_stream_ends_with_one_error_event(
    served: tuple[Target, LiveServer], path: str, document: dict[str, Any], by_label: bool
) -> None:
    target, live = served
    call = Pending(target, path, {**document, "stream": True}, "mine")
    name = call.event()["id"]
    answer = abort(target, "mine" if by_label else name)
    assert answer.status == 200 and answer.json == {"id": "mine" if by_label else name, "aborted": True}
    events = call.answer().events
    assert [event for event in events if "error" in event] == [events[-1]]
    assert (events[-1]["error"]["type"], events[-1]["error"]["code"]) == ("request_aborted", "aborted")
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    eventually(lambda: live.fake.aborts == 1)


@pytest.mark.parametrize(("path", "document"), [*CALLS, ("/v1/embeddings", {"input": ["a", "b"]})])
def test_a_call_that_is_not_streamed_gets_499(
    served: tuple[Target, LiveServer], path: str, document: dict[str, Any]
) -> None:
    target, live = served
    live.fake.prefill_s = 1000.0
    call = Pending(target, path, document, "mine")
    eventually(lambda: bool(live.fake.live))
    n = len(live.fake.live)
    assert abort(target, "mine").status == 200
    answer = call.answer()
    assert answer.status == 499 and answer.error["code"] == "aborted"
    assert answer.headers[LABEL] == "mine" and live.fake.aborts >= n


def test_all_choices_of_all_prompts_end(served: tuple[Target, LiveServer]) -> None:
    target, live = served
    call = Pending(target, "/v1/completions", {"prompt": ["a", "b"], "n": 2, "stream": True}, "mine")
    assert abort(target, call.event()["id"]).status == 200
    assert call.answer().events[-1]["error"]["code"] == "aborted"
    eventually(lambda: live.fake.aborts == 2)


def test_what_is_not_in_flight_is_404(served: tuple[Target, LiveServer]) -> None:
    target, _ = served
    assert target.complete(max_tokens=1).status == 200
    for name in ("cmpl-unknown", "mine", "mi"):
        answer = abort(target, name)
        assert answer.status == 404 and answer.error["code"] == "request_not_found" and answer.error["param"] == "id"
    call = Pending(target, "/v1/completions", {"prompt": "a", "stream": True}, "mine")
    name = call.event()["id"]
    assert abort(target, name[:-1]).status == 404, "a name is whole"
    assert [abort(target, name).status for _ in range(2)] == [200, 404], "once"
    call.answer()


def test_O33_a_label_that_two_calls_have_ends_neither(served: tuple[Target, LiveServer]) -> None:
    target, live = served
    first = Pending(target, "/v1/completions", {"prompt": "a", "stream": True}, "twin")
    second = Pending(target, "/v1/completions", {"prompt": "b", "stream": True}, "twin")
    names = [call.event()["id"] for call in (first, second)]
    assert names[0] != names[1]
    answer = abort(target, "twin")
    assert answer.status == 409 and answer.error["code"] == "ambiguous_id"
    assert live.fake.aborts == 0
    assert abort(target, names[0]).status == 200
    assert first.answer().events[-1]["error"]["code"] == "aborted"
    second.event()
    assert abort(target, "twin").status == 200, "the label is one call's now"
    assert second.answer().events[-1]["error"]["code"] == "aborted"


def test_an_abort_does_not_need_the_server_to_have_room(served: tuple[Target, LiveServer]) -> None:
    target, live = served
    call = Pending(target, "/v1/completions", {"prompt": "a", "stream": True}, "mine")
    call.event()
    live.fake.max_outstanding = 1
    assert target.complete(max_tokens=1).status == 429
    assert abort(target, "mine").status == 200
    assert call.answer().events[-1]["error"]["code"] == "aborted"


@pytest.mark.parametrize(
    ("document", "param"),
    [({}, "id"), ({"id": ""}, "id"), ({"id": "x" * 257}, "id"), ({"id": 5}, "id"), ({"id": "a", "all": True}, "all")],
)
def test_a_wrong_request_is_refused_by_its_field(target: Target, document: dict[str, Any], param: str) -> None:
    answer = target.post("/v1/abort", document)
    assert answer.status == 400 and answer.error["param"] == param
