"""A call that is over -> what `observability/spans.py` makes spans of, where `--otlp-traces-endpoint` is set."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sixfold import __version__
from sixfold.api.call_log import PROBES
from sixfold.observability.otlp import SpanQueue, traces_url
from sixfold.observability.spans import EndedCall, Value
from sixfold.observability.timeline import RequestTimeline

if TYPE_CHECKING:
    from sixfold.api.call import Call, Counted
    from sixfold.observability.observatory import Observatory

__all__ = ["CallSpans", "ended_call"]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Route -> `gen_ai.operation.name`."""

MAX_HEADER_BYTES = 512
"""Of `traceparent` and `tracestate`; longer ones are ignored."""


class CallSpans:
    """Follows the calls of one API process.

    Args:
        endpoint: value of `--otlp-traces-endpoint`.
        observatory: for what other processes know of a call; None: only its own process is asked.
        instance: this process's name.

    Raises:
        ConfigError: the endpoint is no URL, or the library is not there.
    """

    def __init__(self, endpoint: str, observatory: Observatory | None, *, instance: str) -> None:
        timelines = _timelines(observatory) if observatory is not None else None
        self._queue = SpanQueue(traces_url(endpoint), timelines, instance=instance, version=__version__)

    def put(self, call: Call, route: str) -> None:
        """The call is over.

        Args:
            route: its path in the route table, "" where it is in none.
        """
        if route not in PROBES:  # nobody wants to see them
            self._queue.put(ended_call(call, route))

    def dropped(self) -> int:
        """Spans that nobody will see."""
        return self._queue.n_dropped

    def close(self) -> None:
        self._queue.close()


def _timelines(observatory: Observatory) -> Callable[[Sequence[EndedCall]], list[RequestTimeline | None]]:
    def known(calls: Sequence[EndedCall]) -> list[RequestTimeline | None]:
        wanted = {(call.request_id, call.start_ns) for call in calls if call.operation}
        found: dict[tuple[str, int], RequestTimeline] = {}
        if wanted:
            snapshot = observatory.snapshot()
            for api, record in snapshot.calls:
                key = (record.request_id, record.start_ns)
                if key in wanted:
                    found[key] = snapshot.timeline(api, record)
        return [found.get((call.request_id, call.start_ns)) for call in calls]

    return known


def ended_call(call: Call, route: str) -> EndedCall:
    """What its spans are made of; see `CallSpans.put`."""
    counted = call.counted
    host, port = call.scope.get("server") or ("", 0)
    return EndedCall(
        request_id=call.request_id,
        method=call.scope.get("method", ""),
        path=route,
        start_ns=int(call.arrival_s * 1e9),
        end_ns=time.monotonic_ns(),
        status=call.status,
        fault=call.fault,
        parent=_parent(call),
        server=(host, port or 0),
        operation=OPERATIONS.get(route, "") if counted is not None else "",
        attributes=_attributes(call, counted) if counted is not None else {},
        model=call.context.client.model_name,
    )


def _parent(call: Call) -> dict[str, str]:
    found = {}
    for name in ("traceparent", "tracestate"):
        value = call.header(name.encode())
        if value is not None and len(value) <= MAX_HEADER_BYTES:
            found[name] = value.decode("latin-1")
    return found


def _attributes(call: Call, counted: Counted) -> dict[str, Value]:
    asked, usage = counted.asked, counted.usage()
    sampling = asked.sampling
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
    }
    if asked.pooling:
        return found
    found |= {
        "gen_ai.request.max_tokens": asked.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed - (sampling.seed >> 63 << 64),  # as it was given: an attribute has a sign
        "gen_ai.response.finish_reasons": counted.reasons(),
    }
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    if sampling.frequency_penalty:
        found["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        found["gen_ai.request.presence_penalty"] = sampling.presence_penalty
    if asked.n > 1:
        found["gen_ai.request.choice.count"] = asked.n
    if counted.first_token_s:
        found["sixfold.time_to_first_token_ms"] = (counted.first_token_s - call.arrival_s) * 1e3
    if call.caller.name:
        found["sixfold.api_key"] = call.caller.name
    return found
