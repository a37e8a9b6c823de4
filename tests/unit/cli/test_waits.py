"""`sixfold waits`: the register without a server, the figures of one that answers, one sentence where none does."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

import sixfold.cli.waits as command
from sixfold.api.debug.waits import WaitList, WaitSite
from sixfold.cli.waits import waits
from sixfold.errors import SixfoldError
from sixfold.observability.site import Kind
from sixfold.observability.sites import SITES


def test_the_register_needs_no_server() -> None:
    out = CliRunner().invoke(waits, ["--register"], catch_exceptions=False).output
    lines = out.splitlines()
    assert len(lines) == 1 + sum(site.kind is not Kind.WORK for site in SITES)
    [fence] = [line for line in lines if line.startswith("engine.fence ")]
    assert "invariant" in fence and "protects: no step writes a block" in fence


def test_the_register_as_json() -> None:
    out = CliRunner().invoke(waits, ["--register", "--json"], catch_exceptions=False).output
    assert len(msgspec.json.decode(out, type=WaitList).data) == len(SITES)


def test_figures_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    sites = [
        WaitSite("engine.blocks", "engine", "invariant", "", "", count=3, total_us=2.5e6, mean_us=8.3e5, max_us=1e6),
        WaitSite("worker.qkv", "worker", "work", "", "", count=2, total_us=4e3, mean_us=2e3),
        WaitSite("worker.step", "worker", "shrinkable", "", "", waiting=1, waiting_since_us=1500),
        WaitSite("api.head", "api", "overlappable", "", ""),
    ]

    def get(*call: str) -> bytes:
        asked.append(call)
        return msgspec.json.encode(WaitList(sites))

    monkeypatch.setattr(command, "get", get)
    out = CliRunner().invoke(waits, ["--url", "http://h:1/", "--api-key", "k"], catch_exceptions=False).output
    assert asked == [("http://h:1", "/debug/waits", "k")]
    assert out.splitlines()[1].split() == "engine.blocks invariant 3 2.5 s 830 ms 0 us 0 us 1 s".split()
    assert out.splitlines()[2].split() == "worker.qkv work 2 4 ms 2 ms".split(), "parts have totals only"
    assert out.splitlines()[3].split()[-2:] == ["1.5", "ms"] and len(out.splitlines()) == 4


def test_nobody_answers() -> None:
    with pytest.raises(SixfoldError, match="no server answers"):
        CliRunner().invoke(waits, ["--url", "http://127.0.0.1:9"], catch_exceptions=False)
