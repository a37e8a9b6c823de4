"""Spans to an OpenTelemetry collector: OTLP over HTTP, with the library of the extra `otel`.

A call that has ended is put into a bounded queue, and that is all that its process's event loop does. A thread makes
spans of it (`spans.py`) and sends them in batches; what finds the queue full, or what the collector does not take, is
dropped and counted. The library's own variables hold: OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sixfold.errors import ConfigError
from sixfold.observability.spans import EndedCall, SpanPlan, plan_spans
from sixfold.observability.timeline import RequestTimeline

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["MAX_QUEUED", "SpanQueue", "traces_url"]

MAX_QUEUED = 1024
"""Calls that wait for the thread."""
MAX_BATCH = 128
"""Calls whose spans are sent together."""
PERIOD_S = 0.5
"""Between two batches at most, while calls end."""
CLOSE_S = 0.5
"""For what is still there when the server stops."""
SEND_S = 5.0
"""For one batch, all tries together."""
WARN_EVERY_S = 60.0

FLAG = "--otlp-traces-endpoint"

logger = logging.getLogger(__name__)

Timelines = Callable[[Sequence[EndedCall]], Sequence[RequestTimeline | None]]
"""What the whole server knows of these calls, one entry each."""


def traces_url(endpoint: str) -> str:
    """The URL that spans are sent to: `endpoint`, behind which comes `/v1/traces` where it has no path.

    Raises:
        ConfigError: it is no http(s) URL, or the library is not there.
    """
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{FLAG} {endpoint!r} is no URL like http://localhost:4318", param=FLAG)
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError(
            f"{FLAG} needs OpenTelemetry's library; in a checkout: .venv/bin/pip install '.[otel]'", param=FLAG
        )
    return urlunsplit(parts._replace(path="/v1/traces")) if parts.path in ("", "/") else endpoint


class SpanQueue:
    """See the module's docstring. Its thread runs from the first call that ends until `close`.

    Args:
        url: see `traces_url`.
        timelines: asked in the thread for what other processes know; default: nobody is.
        instance, version: of the service, e.g. `api 0`.
    """

    def __init__(self, url: str, timelines: Timelines | None = None, *, instance: str = "", version: str = "") -> None:
        self._url = url
        self._timelines = timelines
        self._instance = instance
        self._version = version
        self._calls: deque[EndedCall] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._library: _Library | None = None
        self._warned_s = -WARN_EVERY_S
        self.n_dropped = 0
        """Spans that nobody will see; of a call that found the queue full, only the two that every call has."""

    def put(self, call: EndedCall) -> None:
        """Never waits."""
        if self._closing:
            return
        if len(self._calls) >= MAX_QUEUED:
            self.n_dropped += 2
            return
        self._calls.append(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sf: otlp", daemon=True)
            self._thread.start()
        if len(self._calls) >= MAX_BATCH:
            self._wake.set()

    def close(self) -> None:
        """Send what is still there, for CLOSE_S at most."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            if not self._closing:
                self._wake.wait(PERIOD_S)
                self._wake.clear()
            batch = [self._calls.popleft() for _ in range(min(MAX_BATCH, len(self._calls)))]
            if batch:
                self._send(batch)
            elif self._closing:
                if self._library is not None:
                    self._library.close()
                return

    def _send(self, batch: list[EndedCall]) -> None:
        n_spans = 2 * len(batch)
        try:
            if self._library is None:  # which refuses a variable that it does not understand
                self._library = _Library(self._url, self._instance, self._version)
            library = self._library
            known = self._timelines(batch) if self._timelines is not None else [None] * len(batch)
            spans = library.spans(zip(batch, known, strict=True))
            n_spans = len(spans)
            if not spans or library.send(spans):
                return
            reason = "the collector does not take them"
        except Exception as error:  # noqa: BLE001  whatever the library raises: the server goes on without its spans
            reason = type(error).__name__
        self.n_dropped += n_spans
        if time.monotonic() - self._warned_s >= WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("%(n)d spans are dropped: %(reason)s", {"n": n_spans, "reason": reason, "url": self._url})


class _Library:
    """What is used of OpenTelemetry. Made in the thread: loading it takes a third of a second."""

    def __init__(self, url: str, instance: str, version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would say it for each batch
        ended: list[ReadableSpan] = []

        class Gather(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        self._ended = ended
        self._exporter: Any = OTLPSpanExporter(endpoint=url, timeout=SEND_S, session=_session())
        resource = {"service.name": "sixfold", "service.version": version}
        if instance:
            resource["service.instance.id"] = instance
        provider = TracerProvider(
            resource=Resource.create(resource).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        provider.add_span_processor(Gather())
        self._tracer = provider.get_tracer("sixfold", version)

    def spans(self, calls: Any) -> list[ReadableSpan]:
        """All spans of these (call, timeline)s, but those that the caller or the sampler does not want."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        shift_ns = time.time_ns() - time.monotonic_ns()
        propagator = TraceContextTextMapPropagator()
        for call, timeline in calls:
            # An empty context is a root; so is a `traceparent` that is none.
            self._make(plan_spans(call, timeline), propagator.extract(call.parent), shift_ns)
        spans = list(self._ended)
        self._ended.clear()
        return spans

    def _make(self, plan: SpanPlan, context: Context, shift_ns: int) -> None:
        from opentelemetry import trace

        span = self._tracer.start_span(
            plan.name,
            context,
            trace.SpanKind.SERVER if plan.is_server else trace.SpanKind.INTERNAL,
            plan.attributes,
            start_time=plan.start_ns + shift_ns,
        )
        for name, at_ns in plan.events:
            span.add_event(name, timestamp=at_ns + shift_ns)
        if plan.error:
            span.set_attribute("error.type", plan.error)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        below = trace.set_span_in_context(span, context)
        for child in plan.children:
            self._make(child, below, shift_ns)
        span.end(plan.end_ns + shift_ns)

    def send(self, spans: list[ReadableSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return bool(self._exporter.export(spans) is SpanExportResult.SUCCESS)

    def close(self) -> None:
        self._exporter.shutdown()


def _session() -> Any:
    """What the exporter sends with. It believes a collector the head of its answer and reads no more: what follows may
    have no end, or unpack to gigabytes. And spans go where they were sent, not where an answer points to."""
    import requests

    class HeadOnly(requests.Session):
        def request(self, *args: Any, **kwargs: Any) -> requests.Response:
            with super().request(*args, **{**kwargs, "stream": True, "allow_redirects": False}) as answer:
                if answer.headers.get("Content-Length") == "0":
                    _ = answer.content  # the connection is used again
            if answer.is_redirect:
                raise requests.TooManyRedirects
            head = requests.Response()
            head.status_code, head.reason, head.headers, head.url = (
                answer.status_code,
                answer.reason,
                answer.headers,
                answer.url,
            )
            head.raw = io.BytesIO()
            return head

    return HeadOnly()
