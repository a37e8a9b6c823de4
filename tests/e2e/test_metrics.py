"""`/metrics` of a server under load: every name that is documented is there, and Prometheus can read it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .serving import Server

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = set(re.findall(r"`((?:sixfold_|vllm:)\w+)`", (ROOT / "docs" / "metrics.md").read_text()))


def test_every_documented_name_appears_under_load() -> None:
    with Server("scripted", "--metrics-aliases", "vllm") as server:
        for _ in range(12):  # one batch of deltas in eight is taken apart
            list(server.stream("/v1/completions", {"prompt": "a", "max_tokens": 4}))
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4})
        assert server.request("POST", "/v1/completions", {"prompt": "a", "temperature": 9})[0] == 400
        text = server.request("GET", "/metrics")[2].decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    names = {s.name for s in samples}
    shown = names | {re.sub("_(bucket|count|sum)$", "", name) for name in names}
    assert DOCUMENTED - shown == set()
    extra = {name for name in names if name.startswith("sixfold_") and not name.endswith("_created")}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in extra} - DOCUMENTED == set()
    stays = {s.labels["site"]: s.value for s in samples if s.name == "sixfold_site_stays_total"}
    assert {"engine.schedule", "engine.commit", "worker.forward", "api.receive", "api.parse"} <= set(stays)
    assert len({stays[f"engine.{site}"] for site in ("schedule", "handover", "commit")}) == 1
    cpu = {s.labels["process"] for s in samples if s.name == "sixfold_process_cpu_seconds_total"}
    assert cpu == {"supervisor", "engine", "worker-0", "api-0"}


def test_O50_times_of_a_process_go_on_after_its_restart() -> None:
    with Server("scripted") as server:

        def commits() -> float:
            server.post("/v1/completions", {"prompt": "a", "max_tokens": 4})
            metrics = server.metrics()
            (found,) = (value for name, value in metrics.items() if "site_stays" in name and "engine.commit" in name)
            return found

        before = commits()
        (engine,) = (pid for pid, line in server.children().items() if "engine" in line)
        os.kill(engine, signal.SIGKILL)
        assert commits() > before
