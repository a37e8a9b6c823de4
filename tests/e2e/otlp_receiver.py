"""An OpenTelemetry collector for tests: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Receiver", "Span", "receiver"]


class Span(NamedTuple):
    """One that arrived."""

    name: str
    kind: int
    trace_id: str
    id: str
    parent: str
    """"" for a root."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[str]
    is_error: bool
    resource: dict[str, Any]


class Receiver:
    """What came. `status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.url = ""

    @property
    def spans(self) -> list[Span]:
        found = []
        for body in list(self.bodies):
            request = ExportTraceServiceRequest.FromString(body)
            for of_resource in request.resource_spans:
                resource = _values(of_resource.resource.attributes)
                for scope in of_resource.scope_spans:
                    found += [_span(span, resource) for span in scope.spans]
        return found


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port."""
    found = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            if found.status == 200:
                found.bodies.append(body)
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [event.name for event in span.events],
        span.status.code == 2,
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
