"""Families that are made of meters, the aliases, and the dashboard's names."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sixfold.messages import EngineStats
from sixfold.observability.aliases import VLLM
from sixfold.observability.meter import Meter
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.processes import Processes, cpu_seconds
from sixfold.observability.sites import ENGINE_COMMIT, WORKER_QKV

ROOT = Path(__file__).resolve().parents[3]


def samples(metrics: ApiMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, values of its labels but the model) -> value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (s.name, tuple(value for label, value in sorted(s.labels.items()) if label != "model_name")): s.value
        for family in families
        for s in family.samples
    }


def test_time_of_every_process(tmp_path: Path) -> None:
    engine, worker = (Meter.create(str(tmp_path), role) for role in ("engine", "worker 0"))
    engine.add(ENGINE_COMMIT, 0, 2_000_000_000)
    engine.add(ENGINE_COMMIT, 0, 1_000_000_000)
    counters = worker.counters(WORKER_QKV, WORKER_QKV)
    counters[0, 0], counters[0, 1] = 1, 500_000_000
    shown = samples(ApiMetrics("m", EngineStats, processes=Processes(str(tmp_path), n_api=1)))
    assert shown["sixfold_site_seconds_total", ("work", "engine", "engine.commit")] == 3
    assert shown["sixfold_site_stays_total", ("work", "engine", "engine.commit")] == 2
    assert shown["sixfold_part_seconds_total", ("qkv", "worker-0", "worker.forward")] == 0.5
    processes = {key[1][0] for key in shown if key[0] == "sixfold_process_cpu_seconds_total"}
    assert processes == {"engine", "worker-0", "supervisor"}, "the API process has not begun"


def test_who_is_asked_keeps_no_descriptor(tmp_path: Path) -> None:
    meters = [Meter.create(str(tmp_path), role) for role in ("engine", "worker 0", "api 0")]
    metrics = ApiMetrics("m", EngineStats, processes=Processes(str(tmp_path), n_api=1))
    before = os.listdir("/proc/self/fd")
    metrics.render()
    assert os.listdir("/proc/self/fd") == before
    assert meters


def test_cpu_time_is_that_of_the_process() -> None:
    mine = cpu_seconds(os.getpid())
    assert mine is not None and mine <= sum(os.times()[:2]) + 1
    assert cpu_seconds(2**22 + 1) is None


def test_a_call_is_divided_into_queue_prefill_and_decode() -> None:
    metrics = ApiMetrics("m", EngineStats)
    timing = metrics.begin(10.0)
    timing.started(10.5)
    timing.step(12.0, 1)
    timing.step(15.0, 2)
    timing.end(["stop"])
    sums = {part: metrics.histograms[f"request_{part}_time_seconds"].counts()[1] for part in ("queue", "prefill")}
    assert sums == {"queue": 0.5, "prefill": 1.5}
    assert metrics.histograms["request_decode_time_seconds"].counts()[1] == 3.0
    assert metrics.first_token.counts()[1] == sum(sums.values())


def test_aliases_say_what_the_metric_says() -> None:
    stats = EngineStats(
        engine_epoch=1, running=3, waiting=2, blocks_total=10, blocks_free=4, blocks_cached=1, prompt_tokens=7
    )
    metrics = ApiMetrics("m", lambda: stats, aliases="vllm", block_size=16)
    metrics.begin(0.0).step(2.0, 1)
    shown = samples(metrics)
    assert shown["vllm:num_requests_running", ("0",)] == 3
    assert shown["vllm:num_requests_waiting", ("0",)] == 2
    assert shown["vllm:kv_cache_usage_perc", ("0",)] == 0.5
    assert shown["vllm:prefix_cache_queries_total", ("0",)] == 7
    assert shown["vllm:time_to_first_token_seconds_bucket", ("0", "0", "2.5")] == 1
    assert shown["vllm:cache_config_info", ("16", "0", "10")] == 1
    assert any(name == "vllm:lora_requests_info" for name, _ in shown)
    ours = {name.removeprefix("sixfold_").removesuffix("_total") for name, _ in shown if name.startswith("sixfold_")}
    plain = {re.sub("_(bucket|count|sum)$", "", name) for name in ours}
    assert set(VLLM) <= ours | plain
    assert not any(name.startswith("vllm:") for name, _ in samples(ApiMetrics("m", lambda: stats)))


def test_aborts_and_refusals_have_reasons() -> None:
    metrics = ApiMetrics("m", EngineStats)
    metrics.aborts["client_gone"] += 1
    metrics.count_refusal(429, "queue_full")
    shown = samples(metrics)
    assert shown["sixfold_aborts_total", ("0", "client_gone")] == 1
    assert shown["sixfold_aborts_total", ("0", "shutdown")] == 0
    assert shown["sixfold_http_errors_total", ("0", "queue_full", "429")] == 1


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = (ROOT / "deploy" / "grafana" / "sixfold.json").read_text()
    shown = set(re.findall(r"\bsixfold_\w+", dashboard)) - {"sixfold_"}
    documented = set(re.findall(r"`(sixfold_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    histograms = {f"{name}_bucket" for name in documented}
    assert shown and shown <= documented | histograms
    assert len(json.loads(dashboard)["panels"]) > 10
