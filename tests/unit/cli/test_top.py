"""`sixfold top`: what it draws, and what it does when the server goes away."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

import sixfold.cli.top as top_module
from sixfold.api.debug.frames import ChoiceFrame, LiveFrame, RequestFrame
from sixfold.cli.main import cli
from sixfold.cli.remote import Unreachable
from sixfold.cli.top import _Latest
from sixfold.cli.top_view import Rates, draw
from sixfold.errors import ConfigError, Unauthorized
from sixfold.messages import EngineStats


def frame(time_ms: float, output: int, n: int = 3) -> dict[str, Any]:
    """A frame as it comes from the server."""
    choices = [
        ChoiceFrame(f"{uid:x}", 0, "running", "", 100, 100 + output, output, 0, 9, uid, 0, 500) for uid in range(n)
    ]
    waiting = ChoiceFrame("ff", 0, "waiting", "slots", 4000, 0, 0, 0, 0, -1, 0, 500)
    requests = [RequestFrame(f"chatcmpl-{uid:032x}", "r", "/v1/x", "engine", [f"{uid:x}"], 1.0) for uid in range(n)]
    return msgspec.to_builtins(
        LiveFrame(
            time_ms=time_ms,
            engine_time_ms=time_ms,
            state="ready",
            epoch=1,
            step=7,
            outstanding=2,
            stats=EngineStats(
                running=n, waiting=1, blocks_total=100, blocks_free=50, blocks_cached=25, generated_tokens=n * output
            ),
            choices=[*choices, waiting],
            requests=[*requests, RequestFrame("req-1", "req-1", "/v1/x", "prepare", [], 1.0)],
            n_calls=5,
            n_preparing=1,
            n_watchers=1,
        )
    )


def shown(width: int, **options: Any) -> list[str]:
    rates = Rates()
    rates.take(frame(1000, 10))
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(draw(frame(2000, 60), rates.take(frame(2000, 60)), "http://localhost:8000", **options))
        return console.export_text().splitlines()


def test_eighty_columns_are_enough() -> None:
    lines = shown(80, rows=20)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "25 held, 25 cached" in text and "150 tokens/s" in text and "run 3  wait 1" in text
    (first,) = [line for line in lines if line.startswith("chatcmpl-0") and line.rstrip().endswith("9")][:1]
    assert first.split() == ["chatcmpl-0~0000000000", "writes", "100/100", "60", "50", "9"]
    assert any("for a slot" in line for line in lines) and any("prepare" in line for line in lines)


def test_what_does_not_fit_is_counted_and_a_lost_connection_is_said() -> None:
    text = "\n".join(shown(80, rows=2, note="no server answers; trying again"))
    assert "and 3 more" in text and "no server answers" in text


def test_another_engine_begins_anew() -> None:
    rates = Rates()
    rates.take(frame(1000, 500))
    assert rates.take({**frame(2000, 3), "epoch": 2}) == {}
    assert rates.take({**frame(3000, 13), "epoch": 2})["0:0"] == pytest.approx(10)


def test_rates_are_of_two_views_over_the_engines_time() -> None:
    """Frames come more often than views, and a little later."""
    rates = Rates()
    rates.take(frame(1000, 10))
    seen = rates.take({**frame(2000, 60), "time_ms": 2200.0})
    assert seen["0:0"] == pytest.approx(50)
    assert rates.take({**frame(2000, 60), "time_ms": 2450.0}) == seen
    idle = {**frame(2000, 60), "time_ms": 9000.0}
    idle["stats"] = {**idle["stats"], "running": 0}
    assert rates.take(idle) == {}


@pytest.mark.parametrize("engine_times", [[0, 1000, 1000, 1000, 1500, 9000], [1000, 1000, 1500, 9000]])
def test_once_reads_on_until_it_has_seen_two_views(monkeypatch: pytest.MonkeyPatch, engine_times: list[int]) -> None:
    monkeypatch.setattr(top_module, "_frames", lambda *_: iter([frame(time, time // 10) for time in engine_times]))
    assert CliRunner().invoke(cli, ["top", "--once"]).output.count("300 tokens/s") == 1


class FeedServer(http.server.BaseHTTPRequestHandler):
    """Three frames, and then it hangs up."""

    def do_GET(self) -> None:
        status = self.server.status  # type: ignore[attr-defined]
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        body = b'{"error": {"message": "no API key was sent"}}' if status != 200 else b""
        for number in range(3 if status == 200 else 0):
            body += b"data: " + msgspec.json.encode(frame(1000.0 + number, number)) + b"\n\n"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def feed() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FeedServer)
    server.status, server.paths = 200, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(5)
    server.server_close()


def url_of(server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_once_prints_a_frame(feed: http.server.ThreadingHTTPServer) -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "--url", url_of(feed)])
    assert result.exit_code == 0 and "run 3  wait 1" in result.output
    result = CliRunner().invoke(cli, ["top", "--once", "--json", "--url", url_of(feed) + "/"])
    assert msgspec.json.decode(result.output.splitlines()[0])["step"] == 7


def test_the_base_url_of_a_client_and_a_bare_host_are_addresses(feed: http.server.ThreadingHTTPServer) -> None:
    seen = feed.paths = []  # type: ignore[attr-defined]
    for url in (url_of(feed) + "/v1", url_of(feed) + "/v1/", url_of(feed).removeprefix("http://")):
        assert CliRunner().invoke(cli, ["top", "--once", "--url", url]).exit_code == 0
    assert len(seen) == 3 and all(path.startswith("/debug/live?") for path in seen)


def test_a_connection_that_ends_is_made_again(feed: http.server.ThreadingHTTPServer) -> None:
    latest = _Latest(url_of(feed), "")
    deadline = time.monotonic() + 60
    while "trying again" not in latest.note:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert latest.frame is not None
    latest.frame = None
    while latest.frame is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    feed.status = 401  # type: ignore[attr-defined]
    while latest.fault is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(latest.fault, Unauthorized) and "--api-key" in latest.fault.message


@pytest.mark.parametrize(
    ("url", "kind"), [("http://127.0.0.1:1", Unreachable), ("ftp://x", ConfigError), ("http://[", ConfigError)]
)
def test_a_wrong_address_is_told_at_once(url: str, kind: type[Exception]) -> None:
    result = CliRunner().invoke(cli, ["top", "--url", url, "--once"], standalone_mode=False)
    assert isinstance(result.exception, kind)
