"""`sixfold bench --breakdown`, on the executor that has no model."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

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


def _are_under_way(pid: int) -> bool:
    """Whether both streams run, in the server that this process supervises."""
    title = re.search(r"port (\d+)", Path(f"/proc/{pid}/cmdline").read_text())
    if title is None:
        return False
    connection = http.client.HTTPConnection("127.0.0.1", int(title[1]), timeout=20)
    try:
        connection.request("GET", "/metrics")
        return re.search(rb"num_requests_running\S* 2", connection.getresponse().read()) is not None
    finally:
        connection.close()


def test_a_signal_ends_it_without_a_word_about_streams() -> None:
    arguments = ["bench", "scripted", "--breakdown", "--decode", ",".join("2" * 100), "--output-tokens", "1500"]
    command = [sys.executable, "-m", "sixfold", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None and not _are_under_way(process.pid):
                pass
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 130
    assert "SIGTERM: what is in flight ends now" in said
    assert "Traceback" not in said and "never ran" not in said and "ended before" not in said


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
