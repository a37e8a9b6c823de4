"""Which metrics there are: names, meanings, and where the engine's values come from.

Names are without the prefix `sixfold_`; those that vLLM has, too, are the same there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from sixfold.messages import WAIT_REASONS, EngineStats
from sixfold.observability.meter import Meter
from sixfold.observability.sites import SITES
from sixfold.roles import slug

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["ABORT_CAUSES", "COUNTERS", "FINISH_REASONS", "GAUGES", "HISTOGRAMS", "LABELLED", "process_families"]

FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")

ABORT_CAUSES = ("client_gone", "slow_reader", "request", "shutdown")
"""Who ended a call before its answer was complete: its client left, or read too slowly; another call; the server."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_FINE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 131072.0)

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("from the parsed request to its first token", _SECONDS),
    "inter_token_latency_seconds": ("between a request's steps, per token", _FINE_SECONDS),
    "e2e_request_latency_seconds": ("from the parsed request to its end", _SECONDS),
    "request_queue_time_seconds": ("from the parsed request to its first step", _SECONDS),
    "request_prefill_time_seconds": ("from a request's first step to its first token", _SECONDS),
    "request_decode_time_seconds": ("from a request's first token to its last", _SECONDS),
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
    "prefix_cache_hit_ratio": (
        "part of all prompt tokens so far that the prefix cache had",
        lambda s: s.cached_tokens / s.prompt_tokens if s.prompt_tokens else 0.0,
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
    "kv_blocks_adopted": ("cached blocks that a restarted engine took over", lambda s: s.blocks_adopted),
    "kv_blocks_rejected": (
        "cached blocks that a restarted engine found and did not believe",
        lambda s: s.blocks_rejected,
    ),
    "generation_tokens": ("tokens drawn and kept", lambda s: s.generated_tokens),
    "prefilled_tokens": ("prompt tokens computed, also again after a preemption", lambda s: s.prefilled_tokens),
    "decode_rows": ("rows of one token that follow a prompt", lambda s: s.decode_rows),
}

LABELLED: dict[str, tuple[str, str, Callable[[EngineStats], Mapping[str, int]]]] = {
    "kv_blocks": (
        "KV blocks by state",
        "state",
        lambda s: {
            "free": s.blocks_free,
            "cached": s.blocks_cached,
            "held": s.blocks_total - s.blocks_free - s.blocks_cached,
        },
    ),
    "num_requests_waiting_by_reason": (
        "choices in the queue, by what they wait for",
        "reason",
        lambda s: dict.fromkeys(WAIT_REASONS, 0) | s.waiting_for,
    ),
    "last_step_tokens": (
        "tokens of the newest step",
        "kind",
        lambda s: {"prefill": s.step_prefill_tokens, "decode": s.step_decode_rows},
    ),
}
"""Gauges with one more label: name -> (help, label, its values)."""


def process_families(
    meters: Iterable[tuple[str, Meter]], cpu: Iterable[tuple[str, float]], labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Where the time of each process goes.

    Args:
        meters: (process, its meter).
        cpu: (process, CPU seconds).
        labels: of every series.
    """
    from prometheus_client.core import CounterMetricFamily

    names, constant = list(labels), list(labels.values())
    sites = [*names, "process", "site", "kind"]
    seconds = CounterMetricFamily("sixfold_site_seconds", "time at a place of the server", labels=sites)
    stays = CounterMetricFamily("sixfold_site_stays", "stays at a place of the server", labels=sites)
    parts = CounterMetricFamily(
        "sixfold_part_seconds",
        "time of a site by kind of work; of sites of API processes, one stay in eight is divided",
        labels=[*names, "process", "site", "part"],
    )
    for role, meter in meters:
        process = slug(role)
        for site, totals in zip(SITES, meter.totals(), strict=True):
            if not totals.count:
                continue
            if site.part_of:
                part = site.name.partition(".")[2]
                parts.add_metric([*constant, process, site.part_of, part], totals.total_ns / 1e9)
            else:
                at = [*constant, process, site.name, site.kind.value]
                seconds.add_metric(at, totals.total_ns / 1e9)
                stays.add_metric(at, totals.count)
    used = CounterMetricFamily(
        "sixfold_process_cpu_seconds", "CPU time of a process since it was started", labels=[*names, "process"]
    )
    for role, cpu_s in cpu:
        used.add_metric([*constant, slug(role)], cpu_s)
    yield from (seconds, stays, parts, used)
