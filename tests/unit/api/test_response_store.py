"""The file of stored responses: what is kept, what goes, and what breaks nothing."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sixfold.api.responses import store_file
from sixfold.api.responses.store import MAX_CHAIN, MAX_WAITING, ResponseStore
from sixfold.api.responses.store_file import ENTRY_BYTES, ChainBroken, ChainTooLong, Stored, StoreFile
from sixfold.config import Config
from sixfold.engine import resolve
from sixfold.errors import ConfigError, InvalidRequest, NotReady, ResponseNotFound

ALL = {"max_links": 100, "max_bytes": 1 << 20}


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock) -> Iterator[StoreFile]:
    opened = StoreFile(tmp_path / "r.sqlite", max_bytes=100 * ENTRY_BYTES, ttl_s=60.0, clock=clock)
    yield opened
    opened.close()


def answer(id: str, previous: str | None = None, n_bytes: int = 100) -> Stored:
    return Stored(id, previous, b"x" * n_bytes, b"[]")


def test_what_was_put_is_there(file: StoreFile) -> None:
    assert file.get("", "a") is None
    assert file.put("", answer("a"))
    assert file.get("", "a") == answer("a")
    assert file.delete("", "a")
    assert not file.delete("", "a")
    assert file.get("", "a") is None
    assert file.size() == (0, 0)


def test_asking_makes_no_file(file: StoreFile, tmp_path: Path) -> None:
    assert file.get("", "a") is None
    assert not file.delete("", "a")
    assert list(tmp_path.iterdir()) == []


def test_another_tenants_answer_is_not_there(file: StoreFile) -> None:
    file.put("one", answer("a"))
    file.put("two", answer("b", "a"))
    assert file.get("two", "a") is None
    assert not file.delete("two", "a")
    with pytest.raises(ChainBroken):
        file.chain("two", "b", **ALL)
    assert file.get("one", "a") is not None
    file.put("two", answer("a", n_bytes=7))
    assert [file.get(tenant, "a") for tenant in ("one", "two")] == [answer("a"), answer("a", n_bytes=7)]


def test_a_chain_comes_oldest_first(file: StoreFile) -> None:
    for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("x", "a")):
        file.put("", answer(id, previous))
    assert [link.id for link in file.chain("", "c", **ALL)] == ["a", "b", "c"]
    assert [link.id for link in file.chain("", "x", **ALL)] == ["a", "x"]
    with pytest.raises(ChainTooLong):
        file.chain("", "c", max_links=2, max_bytes=1 << 20)
    with pytest.raises(ChainTooLong):
        file.chain("", "c", max_links=9, max_bytes=250)
    file.delete("", "a")
    with pytest.raises(ChainBroken) as broken:
        file.chain("", "c", **ALL)
    assert broken.value.args == ("a",)


def test_an_answer_has_its_time(file: StoreFile, clock: Clock) -> None:
    file.put("", answer("a"))
    clock.now += 59
    file.put("", answer("b", "a"))
    assert file.get("", "a") is not None
    clock.now += 1
    assert file.get("", "a") is None
    with pytest.raises(ChainBroken):
        file.chain("", "b", **ALL)
    assert file.get("", "b") is not None
    assert file.size()[0] == 1, "whoever uses the file sweeps up what has expired"


def test_the_least_recently_used_goes_first(file: StoreFile) -> None:
    size = 9 * ENTRY_BYTES  # ten of them, with what each takes besides
    for id in "abcdefghij":
        file.put("", answer(id, n_bytes=size - 2))
    assert file.size() == (10, 100 * ENTRY_BYTES)
    file.get("", "a")
    file.put("", answer("k", n_bytes=size - 2))
    assert file.get("", "b") is None
    assert [id for id in "acdefghijk" if file.get("", id) is None] == []


def test_reading_a_chain_uses_all_of_it(file: StoreFile) -> None:
    size = 9 * ENTRY_BYTES - 2
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        file.put("", answer(id, previous, size))
    for i in range(20):
        file.chain("", "c", **ALL)
        file.put("", answer(f"x{i}", n_bytes=size))
    assert [link.id for link in file.chain("", "c", **ALL)] == ["a", "b", "c"]


def test_no_answer_takes_everybody_elses_room(file: StoreFile) -> None:
    file.put("", answer("a"))
    assert not file.put("", answer("b", n_bytes=20 * ENTRY_BYTES))
    assert file.get("", "b") is None
    assert file.get("", "a") is not None


def test_entries_are_bounded(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "MAX_ENTRIES", 3)
    for id in "abcd":
        file.put("", answer(id))
    assert file.size()[0] == 3
    assert file.get("", "a") is None


def test_the_file_does_not_grow_past_its_bound(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "r.sqlite"
    file = StoreFile(path, max_bytes=1 << 20, ttl_s=60.0, clock=clock)
    for i in range(500):
        file.put("", answer(str(i), n_bytes=20_000))
    file.close()
    assert sum(found.stat().st_size for found in tmp_path.iterdir()) < 3 << 20


def test_what_was_deleted_is_gone_from_the_disk(tmp_path: Path, clock: Clock) -> None:
    file = StoreFile(tmp_path / "r.sqlite", max_bytes=1 << 20, ttl_s=60.0, clock=clock)
    file.put("", Stored("a", None, b"a secret of mine" * 100, b"[]"))
    file.delete("", "a")
    file.close()
    assert all(b"a secret of mine" not in found.read_bytes() for found in tmp_path.iterdir())


def test_only_the_owner_reads_it(tmp_path: Path, file: StoreFile) -> None:
    file.put("", answer("a"))
    for found in tmp_path.iterdir():
        assert stat.S_IMODE(found.stat().st_mode) == 0o600, found


def test_several_processes_share_it(tmp_path: Path, clock: Clock, file: StoreFile) -> None:
    other = StoreFile(tmp_path / "r.sqlite", max_bytes=100 * ENTRY_BYTES, ttl_s=60.0, clock=clock)
    file.put("", answer("a"))
    other.put("", answer("b", "a"))
    assert [link.id for link in file.chain("", "b", **ALL)] == ["a", "b"]
    assert other.size() == file.size()
    other.close()


USER_OF_A_STORE = """
import os, sys
from pathlib import Path
from sixfold.api.responses.store_file import Stored, StoreFile
file = StoreFile(Path(sys.argv[1]), max_bytes=1 << 20, ttl_s=60.0)
for line in sys.stdin:
    verb, id = line.split()
    done = file.put("", Stored(id, None, b"x" * 5000, b"[]")) if verb == "put" else file.get("", id) is not None
    print(done, flush=True)
"""


class StoreUser:
    """Another process: SIGBUS would end this one."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER_OF_A_STORE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def does(self, verb: str, id: str) -> bool:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{verb} {id}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        assert said in ("True", "False"), f"it ended with {self.process.wait(5)}"
        return said == "True"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("n_bytes", [0, 100, 4096])
def test_an_index_that_was_cut_short_ends_no_process(tmp_path: Path, n_bytes: int) -> None:
    """SQLite maps the file beside the store, and who reads what is not there any more gets SIGBUS."""
    path = tmp_path / "r.sqlite"
    first, second = StoreUser(path), StoreUser(path)
    try:
        assert first.does("put", "a") and second.does("get", "a")
        for round in range(3):
            os.truncate(tmp_path / "r.sqlite-shm", n_bytes)
            for one, other, id in ((first, second, f"b{round}"), (second, first, f"c{round}")):
                assert one.does("get", "a") and one.does("put", id)
                assert other.does("get", id)
                os.truncate(tmp_path / "r.sqlite-shm", n_bytes)
    finally:
        first.end()
        second.end()


def test_a_restart_finds_it(tmp_path: Path, clock: Clock, file: StoreFile) -> None:
    file.put("", answer("a"))
    file.close()
    assert file.get("", "a") == answer("a")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_is_made_anew(tmp_path: Path, clock: Clock, file: StoreFile, replaced: bool) -> None:
    """What is put into a file that has no name any more is lost with the process, and other processes never see it."""
    file.put("", answer("a"))
    for found in tmp_path.iterdir():
        found.unlink()
    other = StoreFile(tmp_path / "r.sqlite", max_bytes=100 * ENTRY_BYTES, ttl_s=60.0, clock=clock)
    if replaced:
        other.put("", answer("c"))
    assert file.get("", "a") is None
    assert not file.delete("", "a")
    assert file.put("", answer("b"))
    assert other.get("", "b") == answer("b")
    assert (file.get("", "c") is not None) == replaced
    other.close()


def run(work: Any) -> Any:
    return asyncio.run(work)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.sqlite"


def store_at(path: Path) -> ResponseStore:
    return ResponseStore(StoreFile(path, max_bytes=1 << 20, ttl_s=60.0), max_chain_bytes=1 << 20)


async def check_unusable(store: ResponseStore) -> None:
    """Nothing can be kept, which is no fault; what cannot be read is."""
    assert not await store.put("", answer("a"))
    with pytest.raises(NotReady):
        await store.get("", "a")
    with pytest.raises(NotReady):
        await store.chain("", "a")
    with pytest.raises(NotReady):
        await store.delete("", "a")
    store.close()


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    path.write_text("my diary")
    run(check_unusable(store_at(path)))
    assert path.read_text() == "my diary"
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    run(check_unusable(store_at(path)))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_broken_file_that_is_taken_away_is_not_missed(path: Path) -> None:
    async def work() -> None:
        store = store_at(path)
        assert await store.put("", answer("a"))
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE responses")
        assert not await store.put("", answer("b"))
        with pytest.raises(NotReady):
            await store.get("", "a")
        for found in path.parent.iterdir():
            found.unlink()
        assert await store.put("", answer("c"))
        assert await store.get("", "c") == answer("c")
        store.close()

    run(work())


def test_a_place_that_cannot_be_written(path: Path) -> None:
    path.mkdir()
    run(check_unusable(store_at(path)))


def test_a_full_disk_breaks_no_answer(path: Path) -> None:
    file = StoreFile(path, max_bytes=1 << 20, ttl_s=60.0)
    store = ResponseStore(file, max_chain_bytes=1 << 20)

    def fill() -> None:
        file.put("", answer("a"))
        assert file._open is not None
        pages = file._open.execute("PRAGMA page_count").fetchone()[0]
        file._open.execute(f"PRAGMA max_page_count = {pages}")

    async def work() -> None:
        await store._call(fill)
        assert not await store.put("", answer("b", n_bytes=50_000))
        assert (await store.get("", "a")).id == "a"
        store.close()

    run(work())


def test_a_locked_file_breaks_no_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "BUSY_S", 0.01)

    async def work() -> None:
        store = store_at(path)
        assert await store.put("", answer("a"))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert not await store.put("", answer("b"))
        assert (await store.get("", "a")).id == "a", "readers do not wait for writers"
        holder.execute("ROLLBACK")
        holder.close()
        assert await store.put("", answer("b"))
        store.close()

    run(work())


def test_the_store_says_what_is_not_there(path: Path) -> None:
    async def work() -> None:
        store = store_at(path)
        with pytest.raises(ResponseNotFound):
            await store.get("", "a")
        with pytest.raises(ResponseNotFound):
            await store.delete("", "a")
        with pytest.raises(InvalidRequest) as error:
            await store.chain("", "a" * 1000)
        assert error.value.param == "previous_response_id"
        assert len(error.value.message) < 200
        previous = None
        for i in range(MAX_CHAIN + 1):
            await store.put("", answer(str(i), previous))
            previous = str(i)
        assert len(await store.chain("", str(MAX_CHAIN - 1))) == MAX_CHAIN
        with pytest.raises(InvalidRequest) as error:
            await store.chain("", str(MAX_CHAIN))
        assert error.value.code == "conversation_too_long"
        store.close()

    run(work())


def test_calls_in_flight_are_bounded(path: Path) -> None:
    async def work() -> None:
        store = store_at(path)
        results = await asyncio.gather(*[store.put("", answer(str(i))) for i in range(MAX_WAITING + 5)])
        assert results.count(True) == MAX_WAITING
        assert await store.put("", answer("later"))
        store.close()

    run(work())


def test_the_setting_is_a_file_that_can_be(tmp_path: Path) -> None:
    def resolved(value: str) -> str:
        config = Config.from_flat({"model": "scripted", "response_store": value})
        return resolve.resolve(config).api.response_store

    assert resolved("off") == "off"
    assert resolved("").endswith("/responses.sqlite")
    assert resolved(str(tmp_path / "x")) == str(tmp_path / "x")
    for wrong in (str(tmp_path), str(tmp_path / "nowhere" / "x")):
        with pytest.raises(ConfigError) as error:
            resolved(wrong)
        assert error.value.param == "--response-store"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    run(check_unusable(store_at(tmp_path / "closed" / "r.sqlite")))
