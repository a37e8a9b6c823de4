"""`sixfold bench --breakdown`, on the executor that has no model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sixfold.cli.breakdown import Breakdown, _scale_parts, print_breakdown


def test_the_time_of_a_step_by_process_and_place() -> None:
    arguments = ["bench", "scripted", "--breakdown", "--decode", "2", "--output-tokens", "1000", "--json"]
    command = [sys.executable, "-m", "sixfold", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout.splitlines()[-1])["breakdown"]
    assert one["batch"] == 2 and one["steps"] > 0
    sites = {site for process in one["us"].values() for site in process}
    assert {"engine.schedule", "engine.handover", "engine.commit", "engine.frame", "worker.prepare"} <= sites
    assert {"worker.sample", "worker.reply", "api.receive", "api.deliver"} <= sites
    parts = [us for site, us in one["us"]["api-0"].items() if site.startswith("api.deliver/")]
    assert sum(parts) == pytest.approx(one["us"]["api-0"]["api.deliver"])
    assert set(one["cpu_us"]) == {"supervisor", "engine", "worker-0", "api-0"}


def test_parts_of_a_sample_become_parts_of_the_whole() -> None:
    sites = {"api.deliver": 80.0, "api.deliver/write": 6.0, "api.deliver/route": 2.0, "worker.forward": 9.0}
    sites["worker.forward/qkv"] = 5.0
    _scale_parts(sites)
    assert sites == {
        "api.deliver": 80.0,
        "api.deliver/write": 60.0,
        "api.deliver/route": 20.0,
        "worker.forward": 9.0,
        "worker.forward/qkv": 5.0,
    }


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    us = {"engine": {"engine.schedule": 30.0, "engine.commit": 10.0}}
    print_breakdown([Breakdown(8, 100, us, {"engine": 55.0})])
    shown = capsys.readouterr().out
    assert "75.0%" in shown and "25.0%" in shown and "55.0" in shown and "100 at 8" in shown
