"""What a collector may do to the process that sends it spans: nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sixfold.observability.otlp import SpanQueue
from sixfold.observability.spans import EndedCall

ENOUGH_BYTES = 64 << 20
PIECE = b"x" * (1 << 16)


class Collector:
    """Reads a request and answers it with `head`; what follows of it is sent as long as somebody takes it."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.n_requests = 0
        self.n_sent = 0
        self.is_over = threading.Event()
        """An answer has ended, or its reader has hung up."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1/traces"

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            thread.join(10)

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            self.n_requests += 1
            with caller:
                caller.recv(1 << 16)
                try:
                    caller.sendall(self._head)
                    while b"Content-Length: 0" not in self._head and self.n_sent < ENOUGH_BYTES:
                        caller.sendall(PIECE)
                        self.n_sent += len(PIECE)
                except OSError:
                    pass
            self.is_over.set()


def send(queue: SpanQueue) -> None:
    """A call's only span, however long that takes."""
    at_ns = time.monotonic_ns()
    queue.put(
        EndedCall(request_id="a", method="GET", path="/v1/models", start_ns=at_ns - 1000, end_ns=at_ns, status=200)
    )
    queue.close()
    assert queue._thread is not None
    queue._thread.join(20)


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
def test_of_an_answer_without_end_nothing_is_read_but_its_head(status: bytes) -> None:
    with Collector(b"HTTP/1.1 %b\r\n\r\n" % status).running() as collector:
        queue = SpanQueue(collector.url)
        send(queue)
        assert collector.is_over.wait(20)
    assert collector.n_sent < ENOUGH_BYTES
    assert queue.n_dropped == (status != b"200 OK")


def test_an_answer_that_points_elsewhere_is_not_followed_and_its_spans_are_counted() -> None:
    with Collector(b"").running() as other:
        head = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % other.url.encode()
        with Collector(head).running() as collector:
            queue = SpanQueue(collector.url)
            send(queue)
    assert queue.n_dropped == 1 and not other.n_requests


def test_a_variable_that_the_library_refuses_costs_the_spans_and_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "nonsense")
    queue = SpanQueue("http://127.0.0.1:9/v1/traces")
    send(queue)
    assert queue.n_dropped == 2
