"""Every place where one part of the server waits for another is in the register, and the register is true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.tidy.waits import Wait, coroutines, waits

from sixfold.observability import sites
from sixfold.observability.site import Kind, Site
from sixfold.observability.sites import SITES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sixfold"
NOT_SERVING = ("cli/", "llm.py")
"""Commands, which are clients of a server, and the library, which has no other part to wait for."""

NO_WAITS = {
    "api/app.py: __call__": "the router and the handlers are coroutines of this call",
    "api/server.py: main_loop": "`on_tick` is uvicorn's, and renews a header",
    "engine/engine_process.py: _on_result": "`poll` takes what is here",
    "engine/engine_process.py: _on_connect": "`accept` on a socket of which `select` said that somebody is there",
    "engine/script_file.py: scripted_backend": "it stands for the time that a model takes to load",
    "engine/run_files.py: read_run_files": "the pipe's end, at the start, while the supervisor reads the model's head",
    "engine/run_directory.py: run_directory": "nobody else has locked a file that was just made",
    "engine/run_directory.py: _sweep": "the lock is tried, and not waited for",
    "engine/supervisor.py: _goes_on": "`poll` said that there is something",
    "engine/supervisor.py: __init__": "`select.poll` makes an object",
    "executor/scripted.py: _draw": "it stands for a worker that hangs",
    "executor/scripted.py: run": "it stands for the time that a model would take",
    "transport/sockets.py: connect": "a Unix socket whose listener exists is connected at once",
    "transport/sockets.py: accept": "what others wait with: they are registered",
    "transport/sockets.py: send": "the same",
    "transport/sockets.py: receive": "never blocks",
    "transport/sockets.py: receive_one": "what others wait with: they are registered",
    "transport/sockets.py: wait": "the same",
}
"""Places that look like waits, and why they are none."""

SOURCES = {
    name: ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
    if not (name := str(path.relative_to(PACKAGE))).startswith(NOT_SERVING)
}
OWN = coroutines(SOURCES.values())
REGISTERED = {place for site in SITES for place in site.places}
WAITS = [site for site in SITES if site.kind is not Kind.WORK]


def unregistered(found: list[Wait]) -> list[str]:
    return [
        f"{wait.where} ({wait.line}): {wait.what}" for wait in found if wait.where not in REGISTERED | set(NO_WAITS)
    ]


@pytest.mark.parametrize("file", SOURCES)
def test_every_wait_is_registered(file: str) -> None:
    assert unregistered(waits(file, SOURCES[file], OWN)) == [], "see observability/waits.py"


def test_what_is_no_wait_is_still_there() -> None:
    found = {wait.where for file, tree in SOURCES.items() for wait in waits(file, tree, OWN)}
    assert set(NO_WAITS) - found == set()


@pytest.mark.parametrize(
    "statement",
    [
        "await asyncio.sleep(1)",
        "await self._event.wait()",
        "await future",
        "async with self._gate: pass",
        "async for item in stream: pass",
        "await loop.run_in_executor(None, work)",
        "await asyncio.to_thread(work)",
        "time.sleep(1)",
        "thread.join()",
        "thread.join(timeout=2)",
        "thread.join(2)",
        "thread.join(CLOSE_S)",
        "future.result()",
        "lock.acquire()",
        "with self._lock: pass",
        "selector.select(1)",
        "sock.recv(4)",
        "sock.sendall(data)",
        "listener.accept()",
        "channel.send(kind, body, block=True)",
        "channel.receive_one()",
        "process.wait()",
        "os.read(fd, 1)",
        "subprocess.run(['true'])",
        "fcntl.flock(file, fcntl.LOCK_EX)",
    ],
)
def test_a_planted_wait_is_found(statement: str) -> None:
    tree = ast.parse(f"async def planted(self):\n    {statement}\n")
    assert len(unregistered(waits("engine/planted.py", tree, OWN))) == 1


@pytest.mark.parametrize(
    "statement", ["', '.join(names)", "os.path.join(a, b)", "await mine()", "channel.send(kind, body)", "x = lock_path"]
)
def test_what_only_looks_like_a_wait_is_left_alone(statement: str) -> None:
    tree = ast.parse(f"async def mine():\n    {statement}\n")
    assert waits("engine/planted.py", tree, frozenset({"mine"})) == []


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_a_site_is_where_it_says(site: Site) -> None:
    for place in site.places:
        file, _, function = place.partition(": ")
        path = PACKAGE / file if file.endswith(".py") else ROOT / file
        text = path.read_text()
        assert f"def {function}(" in text if file.endswith(".py") else f"{function}(" in text, place


@pytest.mark.parametrize("site", WAITS, ids=lambda site: site.name)
def test_a_wait_is_defended(site: Site) -> None:
    said = {
        Kind.INVARIANT: bool(site.protects and site.test),
        Kind.OVERLAPPABLE: bool(site.meanwhile),
        Kind.SHRINKABLE: bool(site.lever),
        Kind.IDLE: True,
    }
    assert said[site.kind]
    assert not site.test or site.kind is Kind.INVARIANT


@pytest.mark.parametrize("site", [site for site in SITES if site.test], ids=lambda site: site.name)
def test_the_test_of_an_invariant_exists(site: Site) -> None:
    file, _, name = site.test.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert name in names


def test_a_wait_that_is_timed_has_an_id() -> None:
    known = {name for name in vars(sites) if name.isupper()}
    timed = {site.name.upper().replace(".", "_") for site in SITES if site.timed}
    assert timed - known == set()


def test_names_are_unique() -> None:
    names = [site.name for site in SITES]
    assert len(set(names)) == len(names)
