"""Histograms, restarts of the engine, the text format."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sixfold.messages import ApiCounts, EngineStats
from sixfold.observability.kept_counts import KeptCounts
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


def test_O50_counters_rise_over_a_restart_of_the_api_process(tmp_path: Path) -> None:
    stats = [EngineStats(engine_epoch=1, steps=7)]

    def process(number: int = 0) -> ApiMetrics:
        kept = KeptCounts(str(tmp_path), number)
        return ApiMetrics("m", lambda: stats[0], number, kept=kept, n_api=2)

    first = process()
    first.count_refusal(429, "queue_full")
    first.begin(0.0).end(["stop", "length"])
    first.counts()
    stats[0] = EngineStats(engine_epoch=2, steps=1)
    shown = first.render()
    stats[0] = EngineStats()  # its successor has heard of no engine yet
    second = process()
    assert [line for line in second.render().splitlines() if b"_total" in line or b"_seconds_" in line] == [
        line for line in shown.splitlines() if b"_total" in line or b"_seconds_" in line
    ]
    stats[0] = EngineStats(engine_epoch=2, steps=4)
    assert value(second, "sixfold_steps_total") == 11
    second.begin(0.0).end(["stop"])
    assert value(second, "sixfold_request_success_total", finished_reason="stop", api_server="0") == 2
    stats[0] = EngineStats(engine_epoch=3, steps=2)
    third = process()
    assert value(third, "sixfold_steps_total") == 13
    # While it is away another process shows what it has counted; once it answers, that counts.
    other = process(1)
    assert value(other, "sixfold_request_success_total", finished_reason="stop", api_server="0") == 2
    assert value(other, "sixfold_request_success_total", [third.counts()], finished_reason="stop", api_server="0") == 2


def test_counts_that_cannot_be_read_or_kept_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "counts-0").write_bytes(b"\x93\xc1")
    assert value(ApiMetrics("m", EngineStats, kept=KeptCounts(str(tmp_path), 0)), "sixfold_steps_total") == 0
    assert KeptCounts(str(tmp_path), 0).read() is not None, "what was shown is kept"
    metrics = ApiMetrics("m", EngineStats, kept=KeptCounts(str(tmp_path / "gone"), 0))
    assert value(metrics, "sixfold_steps_total") == 0


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


def test_a_disk_that_fills_within_a_write_leaves_what_was_kept_before(tmp_path: Path) -> None:
    stats = EngineStats(engine_epoch=1, steps=7)
    ApiMetrics("m", lambda: stats, kept=KeptCounts(str(tmp_path), 0), n_api=1).render()
    before = KeptCounts(str(tmp_path), 0).read()
    assert before is not None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
        KeptCounts(str(tmp_path), 0).write(before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert KeptCounts(str(tmp_path), 0).read() == before
