"""Spans of a real server arrive at a collector, with the right parents and attributes, and without a word of a text."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.e2e.otlp_receiver import Receiver, Span, receiver
from tests.e2e.serving import Server

SECRET = "xyzzy"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, INTERNAL = 2, 1


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def roots(collector: Receiver, request_id: str) -> list[Span]:
    return [span for span in collector.spans if span.attributes.get("sixfold.request_id") == request_id]


def below(collector: Receiver, parent: Span) -> list[Span]:
    return [span for span in collector.spans if span.parent == parent.id and span.trace_id == parent.trace_id]


def test_spans_arrive_with_their_parents_and_attributes() -> None:
    with receiver() as collector, Server("scripted", "--otlp-traces-endpoint", collector.url) as server:
        body = {
            "messages": [{"role": "user", "content": SECRET}],
            "script": ["a", "b", "c"],
            "temperature": 0.5,
            "top_k": 7,
            "seed": -5,
            "max_tokens": 9,
            "stream": True,
        }
        sent = {"X-Request-Id": "mine", "traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        assert server.request("POST", "/v1/chat/completions", body, sent)[0] == 200
        assert server.request("POST", "/v1/embeddings", {"input": SECRET}, {"X-Request-Id": "vector"})[0] == 200
        refused = {"X-Request-Id": "wrong", "traceparent": f"00-{TRACE}-no"}
        assert server.request("POST", "/v1/chat/completions", {"messages": [], "foo": 1}, refused)[0] == 400
        unwanted = {"X-Request-Id": "unwanted", "traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert server.request("GET", "/v1/models", headers=unwanted)[0] == 200
        assert server.request("GET", "/health")[0] == 200
        eventually(lambda: bool(roots(collector, "wrong") and roots(collector, "vector")))
        metrics = server.metrics()
        server.stop()

    assert set(collector.paths) == {"/v1/traces"}
    assert not any(SECRET.encode() in body for body in collector.bodies)
    assert [value for name, value in metrics.items() if "trace_spans_dropped" in name] == [0]

    (root,) = roots(collector, "mine")
    assert (root.trace_id, root.parent, root.kind) == (TRACE, PARENT, SERVER)
    assert root.name == "POST /v1/chat/completions" and root.attributes["http.response.status_code"] == 200
    assert root.attributes["server.address"] == "127.0.0.1" and not root.is_error
    assert root.resource["service.name"] == "sixfold" and root.resource["service.instance.id"] == "api 0"
    assert abs(root.end_ns - time.time_ns()) < 60e9

    (model,) = below(collector, root)
    assert model.name == "chat scripted" and model.kind == INTERNAL
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sixfold",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": -5,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert {name: model.attributes.get(name) for name in wanted} == wanted
    assert model.attributes["gen_ai.usage.input_tokens"] > len(SECRET)
    assert model.attributes["sixfold.time_to_first_token_ms"] > 0

    phases = {span.name: span for span in below(collector, model)}
    assert set(phases) >= {"receive", "template", "tokenize", "admission", "queue", "prefill", "decode", "detokenize"}
    assert len(phases) == len(below(collector, model))
    assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in phases.values())
    order = ["receive", "template", "tokenize", "queue", "prefill", "decode"]
    assert [phases[name].start_ns for name in order] == sorted(phases[name].start_ns for name in order)

    (vector,) = roots(collector, "vector")
    (model,) = below(collector, vector)
    assert model.name == "embeddings scripted" and model.attributes["gen_ai.usage.input_tokens"] == len(SECRET)
    assert vector.parent == "" and vector.trace_id != TRACE

    (wrong,) = roots(collector, "wrong")
    assert wrong.parent == "" and wrong.trace_id != TRACE, "a malformed traceparent is none"
    assert wrong.attributes["http.response.status_code"] == 400 and not wrong.is_error and not below(collector, wrong)
    assert not roots(collector, "unwanted"), "its caller does not sample it"
    assert not [span for span in collector.spans if "/health" in span.name]


def test_a_collector_that_is_away_costs_its_spans_and_nothing_else() -> None:
    with receiver() as collector:
        collector.status = 400
        with Server("scripted", "--otlp-traces-endpoint", f"{collector.url}/custom") as server:
            assert server.post("/v1/completions", {"prompt": SECRET, "script": ["a"]})
            eventually(lambda: any(value for name, value in server.metrics().items() if "spans_dropped" in name))
            assert server.post("/v1/completions", {"prompt": SECRET, "script": ["a"]})
            server.stop()
        assert set(collector.paths) == {"/custom"}
    assert server.output.count("spans are dropped: the collector does not take them") == 1
    assert SECRET not in server.output and "Traceback" not in server.output


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a", "http://", "http://a:x", "4318"])
def test_an_endpoint_that_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(AssertionError, match=r"--otlp-traces-endpoint .* is no URL like"):
        Server("scripted", "--otlp-traces-endpoint", url).__enter__()
