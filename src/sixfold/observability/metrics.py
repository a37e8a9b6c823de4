"""The metrics of one API process, in Prometheus' text format.

What there is stands in families.py. The hot path adds to plain integers (a histogram's observation is one `bisect` and
two additions); families in the library's form are made only when somebody asks, and the library is loaded only then.
Every counter of requests and tokens only ever rises: an engine that restarts begins at zero, so its last counts are
added to a base; what an API process has counted is kept for its successor (`kept_counts.py`). Series of an API process
carry its number (label `api_server`), because several processes answer on one port and each knows only its own
requests: whoever is asked asks the others. The engine's series are the same from all of them. No label depends
on a request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from sixfold.messages import ApiCounts, EngineStats
from sixfold.observability.aliases import vllm_families
from sixfold.observability.families import (
    ABORT_CAUSES,
    COUNTERS,
    FINISH_REASONS,
    GAUGES,
    HISTOGRAMS,
    LABELLED,
    process_families,
)
from sixfold.observability.kept_counts import Kept, KeptCounts
from sixfold.observability.processes import Processes

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["ApiMetrics", "Timing"]


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

    def go_on(self, counts: list[int], total: float) -> None:
        """From these, unless they are of other buckets."""
        if len(counts) == len(self._counts):
            self._counts, self._sum = counts, total


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound."""
    total, out = 0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, float(total)))
    return out


class Timing:
    """Follows one call for the histograms and the log. All times are CLOCK_MONOTONIC seconds; 0: not yet."""

    __slots__ = ("_arrival_s", "_last_s", "_metrics", "_tokens", "first_token_s", "started_s")

    def __init__(self, metrics: ApiMetrics, arrival_s: float) -> None:
        self._metrics = metrics
        self._arrival_s = arrival_s
        self.started_s = 0.0
        """When its first step was planned; 0: not yet, as far as is known."""
        self._last_s = self.first_token_s = 0.0
        self._tokens = 0

    def accepted(self, n_prompt_tokens: int) -> None:
        """The engine took it."""
        self._metrics.histograms["request_prompt_tokens"].observe(n_prompt_tokens)

    def started(self, started_s: float) -> None:
        """Its first step was planned."""
        self.started_s = started_s
        self._metrics.histograms["request_queue_time_seconds"].observe(max(0.0, started_s - self._arrival_s))

    def step(self, now_s: float, n_tokens: int) -> None:
        """`n_tokens` arrived together."""
        if not n_tokens:
            return
        if self._tokens:
            self._metrics.inter_token.observe((now_s - self._last_s) / n_tokens, n_tokens)
        else:
            self._metrics.first_token.observe(now_s - self._arrival_s)
            self.first_token_s = now_s
            if self.started_s:
                self._metrics.histograms["request_prefill_time_seconds"].observe(max(0.0, now_s - self.started_s))
        self._last_s = now_s
        self._tokens += n_tokens

    def end(self, reasons: Iterable[str]) -> None:
        """All choices have ended, each for one of these reasons; an aborted call counts like any other."""
        histograms = self._metrics.histograms
        histograms["e2e_request_latency_seconds"].observe(time.monotonic() - self._arrival_s)
        histograms["request_generation_tokens"].observe(self._tokens)
        if self._tokens:
            histograms["request_decode_time_seconds"].observe(self._last_s - self.first_token_s)
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
        processes: the server's, for what they spend their time on; None: nothing of it is shown.
        aliases: `vllm` shows metrics under vLLM's names, too.
        block_size: tokens of a KV block.
        kept: where the counts are kept; None: they end with this process.
        n_api: API processes of the server.
    """

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        api_server: int = 0,
        restarts: Callable[[], Mapping[str, int]] = lambda: dict.fromkeys(("engine", "worker", "api"), 0),
        processes: Processes | None = None,
        *,
        aliases: str = "none",
        block_size: int = 0,
        kept: KeptCounts | None = None,
        n_api: int = 1,
    ) -> None:
        self.histograms = {name: _Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.inter_token = self.histograms["inter_token_latency_seconds"]
        self.finished: dict[str, int] = {}
        self.aborts = dict.fromkeys(ABORT_CAUSES, 0)
        self.refused: dict[tuple[int, str], int] = {}
        self.streams_cut = 0
        self.spans_dropped: Callable[[], int] = lambda: 0
        self._model_name = model_name
        self.api_server = api_server
        self._stats = stats
        self.restarts = restarts
        self._processes = processes
        self._aliases = aliases
        self._block_size = block_size
        self._epoch_stats = EngineStats()
        self._base: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._spans_dropped_before = 0
        self._kept = kept
        self._n_api = n_api
        if kept is not None and (found := kept.read()) is not None:
            self._go_on(found)

    def _go_on(self, found: Kept) -> None:
        """From what this process's predecessor has counted."""
        counts = found.counts
        self.finished = counts.finished
        self.aborts |= counts.aborts
        self.refused = {(status, reason): count for status, reason, count in counts.refused}
        self.streams_cut, self._spans_dropped_before = counts.streams_cut, counts.spans_dropped
        for name, (per_bucket, total) in counts.histograms.items():
            if name in self.histograms:
                self.histograms[name].go_on(per_bucket, total)
        self._base |= {name: count for name, count in found.base.items() if name in COUNTERS}
        self._epoch_stats = found.last

    def begin(self, arrival_s: float) -> Timing:
        return Timing(self, arrival_s)

    def count_refusal(self, status: int, reason: str) -> None:
        """A call was answered with an error.

        Args:
            reason: the error's code, or its type where it has none.
        """
        self.refused[status, reason] = self.refused.get((status, reason), 0) + 1

    def counts(self) -> ApiCounts:
        """What this process has counted, and its predecessors. It is kept before it is shown."""
        counts = self._counts()
        if self._kept is not None:
            self._kept.write(Kept(counts, self._base, self._epoch_stats))
        return counts

    def _counts(self) -> ApiCounts:
        return ApiCounts(
            api_server=self.api_server,
            finished=self.finished,
            aborts=self.aborts,
            refused=[(status, reason, count) for (status, reason), count in self.refused.items()],
            streams_cut=self.streams_cut,
            spans_dropped=self._spans_dropped_before + self.spans_dropped(),
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
        stats = self._stats()
        processes = sorted((self.counts(), *others, *self._away(others)), key=lambda counts: counts.api_server)
        families = list(chain(self._engine_families(stats, processes), self._api_families(processes)))
        yield from families
        if self._processes is not None:
            labels = {"model_name": self._model_name}
            yield from process_families(self._processes.meters(), self._processes.cpu(), labels)
        if self._aliases == "vllm":
            yield from vllm_families(families, block_size=self._block_size, num_blocks=stats.blocks_total)

    def _away(self, others: Sequence[ApiCounts]) -> list[ApiCounts]:
        """What those have counted who do not answer."""
        if self._kept is None:
            return []
        here = {self.api_server, *(counts.api_server for counts in others)}
        found = [self._kept.read(number) for number in range(self._n_api) if number not in here]
        return [kept.counts for kept in found if kept is not None]

    def _engine_families(self, stats: EngineStats, processes: Sequence[ApiCounts]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["model_name"]
        values = [self._model_name]
        for name, (text, read) in GAUGES.items():
            gauge = GaugeMetricFamily(f"sixfold_{name}", text, labels=labels)
            gauge.add_metric(values, read(stats))
            yield gauge
        for name, (text, label, read_all) in LABELLED.items():
            gauge = GaugeMetricFamily(f"sixfold_{name}", text, labels=[*labels, label])
            for value, count in read_all(stats).items():
                gauge.add_metric([*values, value], count)
            yield gauge
        for name, (text, _) in COUNTERS.items():
            counter = CounterMetricFamily(f"sixfold_{name}", text, labels=labels)
            # A process that was started again has heard of fewer engines than the others.
            counter.add_metric(values, max(counts.engine[name] for counts in processes))
            yield counter
        restarts = CounterMetricFamily(
            "sixfold_process_restarts", "processes that were started again", labels=[*labels, "role"]
        )
        for role, count in self.restarts().items():
            restarts.add_metric([*values, role], count)
        yield restarts

    def _engine_totals(self, stats: EngineStats) -> dict[str, int]:
        """The counters, which go on rising over a restart of the engine."""
        last = self._epoch_stats
        if not stats.engine_epoch and last.engine_epoch:  # nothing has been heard of an engine yet
            stats = last
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
            for reason in FINISH_REASONS:
                success.add_metric([*values, reason], counts.finished.get(reason, 0))
        yield success
        aborts = CounterMetricFamily(
            "sixfold_aborts", "calls that ended before their answer was complete", labels=[*labels, "cause"]
        )
        for values, counts in told:
            for cause, count in counts.aborts.items():
                aborts.add_metric([*values, cause], count)
        yield aborts
        refused = CounterMetricFamily(
            "sixfold_http_errors", "calls answered with an error", labels=[*labels, "status", "reason"]
        )
        for values, counts in told:
            for status, reason, count in sorted(counts.refused):
                refused.add_metric([*values, str(status), reason], count)
        yield refused
        cut = CounterMetricFamily("sixfold_streams_cut", "streams whose clients lagged too far behind", labels=labels)
        for values, counts in told:
            cut.add_metric(values, counts.streams_cut)
        yield cut
        spans = CounterMetricFamily(
            "sixfold_trace_spans_dropped",
            "spans that the collector (--otlp-traces-endpoint) did not get",
            labels=labels,
        )
        for values, counts in told:
            spans.add_metric(values, counts.spans_dropped)
        yield spans
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
