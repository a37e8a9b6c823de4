"""The metrics of one API process, in Prometheus' text format.

The hot path adds to plain integers (a histogram's observation is one `bisect` and two additions); families in the
library's form are made only when somebody asks, and the library is loaded only then. Every counter only ever rises: an
engine that restarts begins at zero, so its last counts are added to a base. Series of an API process carry its number
(label `api_server`), because several processes answer on one port and each knows only its own requests: whoever is
asked asks the others. The engine's series are the same from all of them. No label depends on a request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sixfold.messages import ApiCounts, EngineStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["COUNTERS", "GAUGES", "HISTOGRAMS", "ApiMetrics", "Timing"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_FINE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 131072.0)

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("from the parsed request to its first token", _SECONDS),
    "inter_token_latency_seconds": ("between a request's steps, per token", _FINE_SECONDS),
    "e2e_request_latency_seconds": ("from the parsed request to its end", _SECONDS),
    "request_queue_time_seconds": ("from the parsed request to the engine's verdict", _SECONDS),
    "request_prompt_tokens": ("prompt tokens of a call, all its prompts together", _TOKENS),
    "request_generation_tokens": ("tokens generated for a call, all its choices together", _TOKENS),
}
"""Name without `sixfold_` -> (help, upper bounds)."""

GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_requests_running": ("choices that hold a slot of the worker", lambda s: s.running),
    "num_requests_waiting": ("choices in the queue", lambda s: s.waiting),
    "queued_prompt_tokens": ("prompt tokens of requests of which no choice has started", lambda s: s.queued_tokens),
    "queue_wait_seconds": ("predicted wait of a request that comes now", lambda s: s.queue_wait_s),
    "kv_cache_usage_ratio": (
        "part of the KV blocks that requests hold",
        lambda s: (s.blocks_total - s.blocks_free - s.blocks_cached) / s.blocks_total if s.blocks_total else 0.0,
    ),
    "engine_epoch": ("starts of the engine", lambda s: s.engine_epoch),
}

COUNTERS: dict[str, tuple[str, Callable[[EngineStats], int]]] = {
    "steps": ("steps of the engine", lambda s: s.steps),
    "mixed_steps": ("steps with prefill and decode rows together", lambda s: s.mixed_steps),
    "num_preemptions": ("choices that were put back into the queue to free blocks", lambda s: s.preemptions),
    "wasted_rows": ("rows that were computed and dropped", lambda s: s.wasted_rows),
    "prompt_tokens": ("prompt tokens of admitted requests", lambda s: s.prompt_tokens),
    "prefix_cache_hits": ("prompt tokens found in the prefix cache", lambda s: s.cached_tokens),
    "generation_tokens": ("tokens drawn and kept", lambda s: s.generated_tokens),
}


class _Histogram:
    """Counts per bucket; the last bucket has no upper bound."""

    __slots__ = ("_counts", "_sum", "bounds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def counts(self) -> tuple[list[int], float]:
        """Per bucket, and the sum of all values."""
        return self._counts, self._sum


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound."""
    total, out = 0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, float(total)))
    return out


class Timing:
    """Follows one call for the histograms. All times are CLOCK_MONOTONIC seconds."""

    __slots__ = ("_arrival_s", "_last_s", "_metrics", "_tokens")

    def __init__(self, metrics: ApiMetrics, arrival_s: float) -> None:
        self._metrics = metrics
        self._arrival_s = arrival_s
        self._last_s = 0.0
        self._tokens = 0

    def accepted(self, n_prompt_tokens: int) -> None:
        """The engine took it."""
        histograms = self._metrics.histograms
        histograms["request_queue_time_seconds"].observe(time.monotonic() - self._arrival_s)
        histograms["request_prompt_tokens"].observe(n_prompt_tokens)

    def step(self, now_s: float, n_tokens: int) -> None:
        """`n_tokens` arrived together."""
        if not n_tokens:
            return
        if self._tokens:
            self._metrics.inter_token.observe((now_s - self._last_s) / n_tokens, n_tokens)
        else:
            self._metrics.first_token.observe(now_s - self._arrival_s)
        self._last_s = now_s
        self._tokens += n_tokens

    def end(self, reasons: Iterable[str]) -> None:
        """All choices have ended, each for one of these reasons; an aborted call counts like any other."""
        histograms = self._metrics.histograms
        histograms["e2e_request_latency_seconds"].observe(time.monotonic() - self._arrival_s)
        histograms["request_generation_tokens"].observe(self._tokens)
        finished = self._metrics.finished
        for reason in reasons:
            finished[reason] = finished.get(reason, 0) + 1


class ApiMetrics:
    """See the module's docstring.

    Args:
        model_name: constant label of every series.
        stats: the engine's latest snapshot.
        api_server: this API process's number.
        restarts: role of a process -> how often one was started again.
    """

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        api_server: int = 0,
        restarts: Callable[[], Mapping[str, int]] = lambda: dict.fromkeys(("engine", "worker", "api"), 0),
    ) -> None:
        self.histograms = {name: _Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.inter_token = self.histograms["inter_token_latency_seconds"]
        self.finished: dict[str, int] = {}
        self.refused: dict[int, int] = {}
        self.streams_cut = 0
        self._model_name = model_name
        self._api_server = api_server
        self._stats = stats
        self._restarts = restarts
        self._epoch_stats = EngineStats()
        self._base: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def begin(self, arrival_s: float) -> Timing:
        return Timing(self, arrival_s)

    def count_refusal(self, status: int) -> None:
        """A call was answered with an error."""
        self.refused[status] = self.refused.get(status, 0) + 1

    def counts(self) -> ApiCounts:
        """What this process has counted."""
        return ApiCounts(
            api_server=self._api_server,
            finished=self.finished,
            refused=self.refused,
            streams_cut=self.streams_cut,
            engine=self._engine_totals(self._stats()),
            histograms={name: histogram.counts() for name, histogram in self.histograms.items()},
        )

    def render(self, others: Sequence[ApiCounts] = ()) -> bytes:
        """Prometheus' text format 0.0.4.

        Args:
            others: of the server's other API processes.
        """
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(lambda: self.collect(others)))
        return generate_latest(registry)

    def collect(self, others: Sequence[ApiCounts] = ()) -> Iterator[Metric]:
        """All families (the registry's interface)."""
        processes = sorted((self.counts(), *others), key=lambda counts: counts.api_server)
        yield from self._engine_families(self._stats(), processes)
        yield from self._api_families(processes)

    def _engine_families(self, stats: EngineStats, processes: Sequence[ApiCounts]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["model_name"]
        values = [self._model_name]
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"sixfold_{name}", text, labels=labels)
            gauge.add_metric(values, read(stats))
            yield gauge
        blocks = GaugeMetricFamily("sixfold_kv_blocks", "KV blocks by state", labels=[*labels, "state"])
        held = stats.blocks_total - stats.blocks_free - stats.blocks_cached
        for state, count in (("free", stats.blocks_free), ("cached", stats.blocks_cached), ("held", held)):
            blocks.add_metric([*values, state], count)
        yield blocks
        for name, (text, _) in COUNTERS.items():
            counter = CounterMetricFamily(f"sixfold_{name}", text, labels=labels)
            # A process that was started again has heard of fewer engines than the others.
            counter.add_metric(values, max(counts.engine[name] for counts in processes))
            yield counter
        restarts = CounterMetricFamily(
            "sixfold_process_restarts", "processes that were started again", labels=[*labels, "role"]
        )
        for role, count in self._restarts().items():
            restarts.add_metric([*values, role], count)
        yield restarts

    def _engine_totals(self, stats: EngineStats) -> dict[str, int]:
        """The counters, which go on rising over a restart of the engine."""
        last = self._epoch_stats
        if stats.engine_epoch != last.engine_epoch:
            for name, (_, read) in COUNTERS.items():
                self._base[name] += read(last)
        self._epoch_stats = stats
        return {name: self._base[name] + read(stats) for name, (_, read) in COUNTERS.items()}

    def _api_families(self, processes: Sequence[ApiCounts]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        labels = ["model_name", "api_server"]
        told = [([self._model_name, str(counts.api_server)], counts) for counts in processes]
        success = CounterMetricFamily(
            "sixfold_request_success", "choices by the reason of their end", labels=[*labels, "finished_reason"]
        )
        for values, counts in told:
            for reason in ("stop", "length", "abort", "timeout", "error"):
                success.add_metric([*values, reason], counts.finished.get(reason, 0))
        yield success
        refused = CounterMetricFamily("sixfold_http_errors", "calls answered with an error", labels=[*labels, "status"])
        for values, counts in told:
            for status, count in sorted(counts.refused.items()):
                refused.add_metric([*values, str(status)], count)
        yield refused
        cut = CounterMetricFamily("sixfold_streams_cut", "streams whose clients lagged too far behind", labels=labels)
        for values, counts in told:
            cut.add_metric(values, counts.streams_cut)
        yield cut
        for name, (text, bounds) in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"sixfold_{name}", text, labels=labels)
            for values, counts in told:
                per_bucket, total = counts.histograms[name]
                family.add_metric(values, _buckets(bounds, per_bucket), total)
            yield family


class _Families:
    """What a registry wants to collect from."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect
