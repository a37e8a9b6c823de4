"""The live feed: one stream of views however many watch, none when nobody does, nothing kept for who does not read."""

from __future__ import annotations

import array
import base64
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sixfold.api.access.keys import new_key
from sixfold.api.debug import feed
from sixfold.api.debug.feed import MAX_WATCHERS
from sixfold.api.debug.frames import PAGE_CELLS, changed_pages
from sixfold.messages import ChoiceView, EngineStats, EngineView

from .conftest import LiveServer, Target, eventually
from .fake_engine import FakeEngine


def view(step: int, cells: list[int] | None = None, uid: int = 1 << 63) -> EngineView:
    return EngineView(
        engine_epoch=1,
        step_id=step,
        time_ns=step,
        outstanding=1,
        stats=EngineStats(generated_tokens=step, blocks_total=600),
        choices=[ChoiceView(uid, 0, "running", "", 5, 7, 3, 0, 1, 2, 0, 9)],
        blocks_per_cell=1,
        cells=array.array("H", cells or [0] * 600).tobytes(),
    )


class Watcher:
    """One connection to the feed."""

    def __init__(self, target: Target, query: str = "interval_ms=16", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
        self._connection.request("GET", f"/debug/live?{query}", headers=headers)
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def frame(self) -> dict[str, Any]:
        while not (line := self.response.readline()).startswith(b"data: "):
            assert line, "the feed has ended"
        found = json.loads(line[6:])
        assert isinstance(found, dict)
        return found

    def until(self, step: int) -> list[dict[str, Any]]:
        """Frames up to the first that shows this step."""
        frames = [self.frame()]
        while frames[-1]["step"] != step:
            frames.append(self.frame())
        return frames

    def close(self) -> None:
        self._connection.close()
        self.response.close()


@contextmanager
def watching(target: Target, query: str = "interval_ms=16", **headers: str) -> Iterator[Watcher]:
    watcher = Watcher(target, query, **headers)
    try:
        yield watcher
    finally:
        watcher.close()


def tell(live: LiveServer, fake: FakeEngine, seen: EngineView) -> None:
    """The engine sends a view."""
    told = threading.Event()

    def send() -> None:
        assert fake.on_view is not None
        fake.on_view(seen)
        told.set()

    live.call(send)
    assert told.wait(5)


def cells(frames: list[dict[str, Any]]) -> list[int]:
    """The map after these frames."""
    shown: list[int] = []
    for frame in frames:
        part = frame.get("map")
        if part is None:
            continue
        shown = shown or [9999] * part["cells"]
        for page, encoded in part["pages"]:
            values = array.array("H", base64.b64decode(encoded)).tolist()
            start = page * part["page_cells"]
            shown[start : start + len(values)] = values
    return shown


@pytest.fixture
def server(serve: Any) -> tuple[Target, LiveServer, FakeEngine]:
    fake = FakeEngine()
    target, live = serve(fake)
    return target, live, fake


def test_the_engine_is_asked_while_somebody_watches(server: tuple[Target, LiveServer, FakeEngine]) -> None:
    target, _, fake = server
    assert fake.watched == []
    with watching(target, "interval_ms=200") as slow:
        slow.frame()
        with watching(target, "interval_ms=16") as fast:
            fast.frame()
            assert fake.watched == [200, 16]
        eventually(lambda: fake.watched == [200, 16, 200])
    eventually(lambda: fake.watched[-1] == 0 and fake.on_view is None)


def test_each_watcher_gets_the_whole_map_first_and_then_what_changes(
    server: tuple[Target, LiveServer, FakeEngine],
) -> None:
    target, live, fake = server
    with watching(target) as first:
        first.frame()
        tell(live, fake, view(1, [7] * 600))
        frames = first.until(1)
        assert cells(frames) == [7] * 600 and len(frames[-1]["map"]["pages"]) == -(-600 // PAGE_CELLS)
        changed = [7] * 600
        changed[300] = 5
        tell(live, fake, view(2, changed))
        frames += first.until(2)
        assert [page for page, _ in frames[-1]["map"]["pages"]] == [1]
        assert cells(frames) == changed
        with watching(target) as second:
            assert cells(second.until(2)) == changed


def test_identifiers_are_text_that_javascript_can_hold(server: tuple[Target, LiveServer, FakeEngine]) -> None:
    target, live, fake = server
    with watching(target) as watcher:
        watcher.frame()
        tell(live, fake, view(1))
        choice = watcher.until(1)[-1]["choices"][0]
    assert choice == {
        "uid": "8000000000000000", "choice": 0, "state": "running", "reason": "", "prompt": 5, "computed": 7,
        "output": 3, "cached": 0, "blocks": 1, "slot": 2, "incarnation": 0, "limit": 9,
    }  # fmt: skip


def test_a_request_is_seen_by_its_id_from_its_arrival_to_its_end(
    server: tuple[Target, LiveServer, FakeEngine],
) -> None:
    target, _, fake = server
    fake.step_s = 0.01
    with watching(target) as watcher:
        watcher.frame()
        answer: list[Any] = []
        script = {"script": ["a"] * 30, "request_id": "mine"}
        thread = threading.Thread(target=lambda: answer.append(target.chat("hi", stream=True, **script)))
        thread.start()
        seen, ended = [], []
        while not ended:
            frame = watcher.frame()
            seen += [request for request in frame["requests"] if request["uids"]]
            ended += frame.get("ended", [])
        thread.join(10)
    events = answer[0].events
    assert seen and {request["label"] for request in seen} == {"mine"}
    assert {request["id"] for request in seen} == {ended[0]["id"]} == {events[0]["id"]}
    assert (ended[0]["reasons"], ended[0]["output"]) == (["stop"], 31)
    assert ended[0]["uids"] == seen[0]["uids"] == [f"{fake.requests[0].uid:x}"]
    assert "hi" not in json.dumps(seen) + json.dumps(ended), "no text of anybody"


def test_those_who_watch_at_the_same_time_share_what_is_made(
    server: tuple[Target, LiveServer, FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(new: EngineView, old: EngineView | None) -> Any:
        made.append((new.step_id, old and old.step_id))
        return changed_pages(new, old)

    monkeypatch.setattr(feed, "changed_pages", counted)
    target, live, fake = server
    watchers = [Watcher(target) for _ in range(12)]
    shown: list[list[dict[str, Any]]] = [[] for _ in watchers]
    for step in range(1, 8):
        tell(live, fake, view(step, [step] * 600))
        for watcher, frames in zip(watchers, shown, strict=True):
            frames += watcher.until(step)
    assert all(cells(frames) == [7] * 600 for frames in shown)
    assert len(made) == len(set(made)) or len(made) < 7 * 12 / 3, "not once for each of them"
    for watcher in watchers:
        watcher.close()


def test_the_dearer_frames_are_the_fewer_are_made(serve: Any) -> None:
    fake = FakeEngine()
    target, live = serve(fake)
    with watching(target) as watcher:
        watcher.frame()
        found: list[float] = []

        def pay() -> None:
            seen = live.server.app.context.live
            for cost_s in (0.0, 0.01, 100.0):
                seen._cost_s = 0.0
                seen.pay(cost_s)
                found.append(round(seen._due_s - seen._round_s, 6))

        live.call(pay)
        eventually(lambda: len(found) == 3)
        assert found == [feed.MIN_PERIOD_MS / 1e3, feed.COST_FACTOR * 0.01, feed.MAX_PERIOD_S]
        watcher.frame()  # it goes on


def test_who_does_not_read_gets_the_newest_and_nothing_is_kept(serve: Any) -> None:
    fake = FakeEngine()
    target, live = serve(fake)
    live.keep_send_buffers_small()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", target.port))
        slow.sendall(b"GET /debug/live?interval_ms=16 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with watching(target) as quick:
            quick.frame()
            for step in range(1, 60):
                tell(live, fake, view(step, [step] * 60_000))
                quick.until(step)  # nobody waits for the slow one
            slow.settimeout(10)
            data = b""
            while b'"step":59' not in data:
                data += slow.recv(1 << 20)
    assert data.count(b"data: ") < 30


def test_a_reader_that_stands_still_is_cut_off(serve: Any) -> None:
    fake = FakeEngine()
    target, live = serve(fake, stream_unread_s=0.2)
    live.keep_send_buffers_small()
    with socket.socket() as still:
        still.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        still.connect(("127.0.0.1", target.port))
        still.sendall(b"GET /debug/live?interval_ms=16 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: fake.watched == [16])
        for step in range(1, 4):
            tell(live, fake, view(step, [step] * 60_000))
        eventually(lambda: fake.watched[-1] == 0)
    target.check_alive()


@pytest.mark.parametrize(
    "query",
    ["interval_ms=15", "interval_ms=10001", "interval_ms=", "interval_ms=1e3", "interval_ms=-16", "hz=60", "frames=0",
     "frames=99999999999999999999", "interval_ms=%C2%B2", "frames=1&frames=2", "interval_ms=nan", "frames=%00",
     "frames", "=", "frames=1;interval_ms=16"],
)  # fmt: skip
def test_a_query_that_says_something_else_is_refused(target: Target, query: str) -> None:
    answer = target.get(f"/debug/live?{query}")
    assert answer.status == 400 and answer.error["param"] in ("interval_ms", "frames", "hz", "query", "")


def test_as_many_frames_as_asked_for(target: Target) -> None:
    answer = target.get("/debug/live?frames=3&interval_ms=16")
    assert answer.status == 200 and answer.body.count(b"data: ") == 3


def test_watchers_are_bounded(server: tuple[Target, LiveServer, FakeEngine]) -> None:
    target, _, fake = server
    watchers = [Watcher(target) for _ in range(MAX_WATCHERS)]
    for watcher in watchers:
        watcher.frame()
    assert target.get("/debug/live").status == 429
    for watcher in watchers:
        watcher.close()
    eventually(lambda: fake.watched[-1] == 0)


def test_a_server_that_stops_ends_the_feed(server: tuple[Target, LiveServer, FakeEngine]) -> None:
    target, live, _ = server
    with watching(target) as watcher:
        watcher.frame()
        live.stop()
        while line := watcher.response.readline():
            assert line == b"\n" or line.startswith(b"data: ")


def test_the_feed_goes_on_without_an_engine(server: tuple[Target, LiveServer, FakeEngine]) -> None:
    target, live, fake = server
    with watching(target) as watcher:
        assert watcher.frame()["state"] == "ready"

        def lose() -> None:
            fake.ready, fake.restarting = False, True

        live.call(lose)
        while watcher.frame()["state"] != "restarting":
            pass


def test_what_others_do_is_for_admins(serve: Any, tmp_path: Path) -> None:
    keys = {scope: new_key() for scope in ("user", "admin")}
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[{s}-key]\nsha256 = "{d}"\nscope = "{s}"\n' for s, (_, d) in keys.items()))
    os.chmod(file, 0o600)
    target, _ = serve(api_key_file=str(file))
    for path in ("/debug/live?frames=1", "/debug/health"):
        assert target.get(path).status == 401
        refused = target.get(path, Authorization=f"Bearer {keys['user'][0]}")
        assert (refused.status, refused.error["code"]) == (403, "admin_only")
        assert target.get(path, Authorization=f"Bearer {keys['admin'][0]}").status == 200
    health = target.get("/debug/health", Authorization=f"Bearer {keys['admin'][0]}")
    assert [(key["name"], key["scope"]) for key in health.json["keys"]] == [
        ("user-key", "user"),
        ("admin-key", "admin"),
    ]
    for key, digest in keys.values():
        assert key.encode() not in health.body and digest.encode() not in health.body


def test_health_tells_what_is_loaded(target: Target) -> None:
    health = target.get("/debug/health").json
    assert (health["model"], health["state"], health["keys"]) == (target.model, "ready", None)
    assert health["limits"]["max_model_len"] and health["restarts"] == {"engine": 0, "worker": 0, "api": 0}
