"""Histograms, restarts of the engine, the text format."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from sixfold.messages import ApiCounts, EngineStats
from sixfold.observability.metrics import ApiMetrics


def value(metrics: ApiMetrics, name: str, others: Sequence[ApiCounts] = (), **labels: str) -> float:
    samples = [s for f in text_string_to_metric_families(metrics.render(others).decode()) for s in f.samples]
    (found,) = [s for s in samples if s.name == name and labels.items() <= s.labels.items()]
    return float(found.value)


def test_O50_counters_rise_over_a_restart_of_the_engine() -> None:
    stats = [EngineStats(engine_epoch=1, steps=5, generated_tokens=9)]
    metrics = ApiMetrics("m", lambda: stats[0])
    assert value(metrics, "sixfold_steps_total") == 5
    stats[0] = EngineStats(engine_epoch=1, steps=7)
    assert value(metrics, "sixfold_steps_total") == 7
    stats[0] = EngineStats(engine_epoch=2, steps=1)
    assert value(metrics, "sixfold_steps_total") == 8
    assert value(metrics, "sixfold_engine_epoch") == 2


def test_O50_counters_rise_whichever_api_process_is_asked() -> None:
    """One that was started again has not heard of the first engine."""
    stats = [EngineStats(engine_epoch=1, steps=7)]
    old = ApiMetrics("m", lambda: stats[0])
    assert value(old, "sixfold_steps_total") == 7
    stats[0] = EngineStats(engine_epoch=2, steps=1)
    young = ApiMetrics("m", lambda: stats[0], api_server=1)
    assert value(young, "sixfold_steps_total", [old.counts()]) == 8
    assert value(old, "sixfold_steps_total", [young.counts()]) == 8


def test_blocks_by_state() -> None:
    stats = EngineStats(blocks_total=10, blocks_free=3, blocks_cached=2)
    metrics = ApiMetrics("m", lambda: stats)
    states = {state: value(metrics, "sixfold_kv_blocks", state=state) for state in ("free", "cached", "held")}
    assert states == {"free": 3, "cached": 2, "held": 5}
    assert value(metrics, "sixfold_kv_cache_usage_ratio") == 0.5
    assert value(ApiMetrics("m", EngineStats), "sixfold_kv_cache_usage_ratio") == 0


def test_a_call_in_the_histograms() -> None:
    metrics = ApiMetrics("m", EngineStats, api_server=3)
    timing = metrics.begin(0.0)
    timing.step(2.0, 0)
    timing.step(4.0, 1)
    timing.step(4.3, 3)
    timing.end(["stop", "length", "stop"])
    labels = {"api_server": "3"}
    assert value(metrics, "sixfold_time_to_first_token_seconds_sum", **labels) == 4.0
    assert value(metrics, "sixfold_inter_token_latency_seconds_count") == 3
    assert abs(value(metrics, "sixfold_inter_token_latency_seconds_sum") - 0.3) < 1e-9
    assert value(metrics, "sixfold_inter_token_latency_seconds_bucket", le="0.1") == 3
    assert value(metrics, "sixfold_inter_token_latency_seconds_bucket", le="0.05") == 0
    assert value(metrics, "sixfold_request_generation_tokens_sum") == 4
    assert value(metrics, "sixfold_request_success_total", finished_reason="stop") == 2
    assert value(metrics, "sixfold_request_success_total", finished_reason="abort") == 0
