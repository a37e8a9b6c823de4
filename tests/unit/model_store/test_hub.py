"""`org/name`: fetched with the real library from a local stand-in of the hub. Commands run in processes of their own,
since the library reads its settings when it is imported.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.model_store.hub_server import HubServer

from sixfold import model_store
from sixfold.errors import ModelNotFound
from sixfold.model_store.hub import HubName, _chosen

WEIGHTS = os.urandom(300_000)
LARGE = WEIGHTS * 40
"""More than the library takes from the network at once."""
REPOS = {
    "org/large": {"m.gguf": LARGE},
    "org/folder": {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"x",
        "model.safetensors": WEIGHTS,
        "consolidated.safetensors": b"again",
        "pytorch_model.bin": b"pickle",
        "modeling_x.py": b"code",
        "original/params.json": b"{}",
        "README.md": b"read",
    },
    "org/quants": {
        "config.json": b"{}",
        "m.Q4_K_M.gguf": WEIGHTS,
        "m.Q4_0.gguf": b"0",
        "sub/m.Q8_0-00001-of-00002.gguf": b"1",
        "sub/m.Q8_0-00002-of-00002.gguf": b"2",
        "mmproj-m.gguf": b"p",
    },
    "org/sharded": {
        "config.json": b"{}",
        "model-00001-of-00002.safetensors": WEIGHTS,
        "model-00002-of-00002.safetensors": LARGE,
        "model.safetensors.index.json": b"[]",
        "tokenizer.json": b"{ }",
    },
    "org/hostile": {"../../../out.gguf": b"x", "a/../../../../out.gguf": b"x", "/out.gguf": b"x", "m.gguf": b"x"},
    "org/nothing": {"README.md": b"read", "pytorch_model.bin": b"pickle"},
}

NO_NAMES = [
    "name", "a/b/c", "/etc/passwd", "../x", "a/..", "org/", "org/m.gguf", "o/n@../../x", "o/n:../x",
    "o/n--m", "o/n.git", "-o/n", "o/n@", "o/n:", "o/n m", "o/ñ", f"o/{'n' * 97}",
]  # fmt: skip


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer(REPOS)
    yield server
    server.shutdown()
    server.server_close()


class Command:
    """`sixfold ...` with a home for the library's cache of its own."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.env = {**kept, "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": endpoint, "SIXFOLD_CACHE": str(folder / "c")}

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sixfold", *arguments]
        return subprocess.run(
            command, env={**self.env, **env}, cwd=self.folder, capture_output=True, text=True, timeout=60
        )

    def succeeds(self, *arguments: str, **env: str) -> str:
        done = self.run(*arguments, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sixfold", *arguments]
        return subprocess.Popen(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def fails(self, *arguments: str, **env: str) -> str:
        done = self.run(*arguments, **env)
        assert done.returncode == 1, done.stdout
        said = [line for line in done.stderr.splitlines() if not line.startswith("fetching org/")]
        assert len(said) == 1 and said[0].startswith("sixfold: "), done.stderr
        return said[0]


@pytest.fixture
def command(tmp_path: Path, hub: HubServer) -> Command:
    return Command(tmp_path, hub.url)


def test_a_folder_is_pulled_listed_found_offline_and_removed(command: Command, hub: HubServer) -> None:
    folder = Path(command.succeeds("pull", "org/folder"))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    n_fetched = len(hub.fetched)
    assert command.succeeds("pull", "org/folder") == str(folder)
    assert len(hub.fetched) == n_fetched
    assert "org/folder" in command.succeeds("list")
    hub.shutdown()
    found = "from sixfold import model_store; print(model_store.resolve('org/folder'))"
    env = {**command.env, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", found], env=env, cwd=command.folder, capture_output=True, text=True)
    assert done.stdout.strip() == str(folder), done.stderr
    command.succeeds("rm", "org/folder")
    assert not folder.exists()
    assert "org/folder" not in command.succeeds("list")


def test_one_of_several_gguf_files(command: Command, hub: HubServer) -> None:
    assert "choose one as `org/quants:PART_OF_NAME`: m.Q4_0.gguf, m.Q4_K_M.gguf" in command.fails("pull", "org/quants")
    path = Path(command.succeeds("pull", "org/quants:q4_k_m"))
    assert path.name == "m.Q4_K_M.gguf"
    assert hub.fetched == ["m.Q4_K_M.gguf"]
    split = Path(command.succeeds("pull", "org/quants:Q8_0"))
    assert split.name == "m.Q8_0-00001-of-00002.gguf"
    assert (split.parent / "m.Q8_0-00002-of-00002.gguf").read_bytes() == b"2"
    assert "no GGUF file with 'Q2' in its name" in command.fails("pull", "org/quants:Q2")


def test_an_interrupted_transfer_goes_on(command: Command, hub: HubServer) -> None:
    hub.cut_after["m.gguf"] = len(LARGE) - 1000
    assert Path(command.succeeds("pull", "org/large")).read_bytes() == LARGE
    assert len(hub.ranges) == 1 and hub.ranges[0] != "bytes=0-"


def test_damage_is_found(command: Command, hub: HubServer) -> None:
    hub.damaged.add("model.safetensors")
    assert "wrong digest" in command.fails("pull", "org/folder")
    hub.damaged.clear()
    folder = Path(command.succeeds("pull", "org/folder"))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_tokens_and_refusals(command: Command, hub: HubServer) -> None:
    assert "neither safetensors with a config.json nor GGUF" in command.fails("pull", "org/nothing")
    assert "there is no repository org/missing" in command.fails("pull", "org/missing")
    assert "no revision 'v9'" in command.fails("pull", "org/folder@v9")
    hub.gated.add("org/folder")
    assert "accept its terms" in command.fails("pull", "org/folder")
    hub.gated.clear()
    hub.token = "secret"
    assert "HF_TOKEN is not set" in command.fails("pull", "org/folder")
    command.succeeds("pull", "org/folder", HF_TOKEN="secret")


def test_no_network(command: Command) -> None:
    assert "HF_HUB_OFFLINE" in command.fails("pull", "org/folder", HF_HUB_OFFLINE="1")
    assert "cannot be reached" in command.fails("pull", "org/folder", HF_ENDPOINT="http://127.0.0.1:9")


def test_what_is_here_needs_no_network_when_there_is_none(command: Command, hub: HubServer) -> None:
    path = command.succeeds("pull", "org/quants:q4_k_m")
    n_requests = len(hub.requests)
    assert command.succeeds("pull", "org/quants:q4_k_m", HF_HUB_OFFLINE="1") == path
    assert "not a GGUF file" in command.fails("show", "org/quants:q4_k_m")
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize("name", ["org/large", "org/sharded"])
def test_an_interrupt_ends_at_once_and_leaves_nothing_half(name: str, command: Command, hub: HubServer) -> None:
    file = max(REPOS[name], key=lambda file: len(REPOS[name][file]))
    arrived = hub.held[file] = threading.Event()
    process = command.starts("pull", name)
    assert arrived.wait(60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not list(command.folder.rglob("*.incomplete"))
    assert f"sixfold pull {name}" in command.fails("show", name)
    listed = [line for line in command.succeeds("list").splitlines() if line.startswith(name)]
    assert not any("here" in line for line in listed)
    del hub.held[file]
    command.succeeds("pull", name)
    assert sorted(hub.fetched) == sorted([*REPOS[name], file]), "whole files stayed"


def test_what_a_broken_fetch_left_can_be_removed(command: Command) -> None:
    repo = command.folder / "hf" / "hub" / "models--org--broken"
    (repo / "blobs").mkdir(parents=True)
    (repo / "blobs" / "x.incomplete").write_bytes(WEIGHTS)
    assert "org/broken" not in command.succeeds("list")
    assert command.succeeds("rm", "org/broken") == "removed org/broken"
    assert not repo.exists()
    assert "nothing to remove" in command.fails("rm", "org/broken")


def test_a_cache_that_is_no_folder(command: Command) -> None:
    cache = {"HF_HUB_CACHE": str(command.folder / "file")}
    Path(cache["HF_HUB_CACHE"]).write_text("in the way")
    assert "smollm2" in command.succeeds("list", **cache)
    assert "nothing to remove" in command.fails("rm", "org/folder", **cache)
    assert "org/large could not be fetched: Not a directory (" in command.fails("pull", "org/large", **cache)


def test_several_at_once_fetch_once(command: Command, hub: HubServer) -> None:
    processes = [command.starts("pull", "org/large") for _ in range(3)]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(paths) == 1 and Path(*paths).read_bytes() == LARGE
    assert hub.fetched == ["m.gguf"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "set HF_TOKEN"),
        (403, "the token may not read it"),
        (404, "a file is missing"),
        (429, "too many requests; try again later"),
        (503, "try again later"),
    ],
)
def test_refusals_say_what_they_mean(status: int, said: str, command: Command, hub: HubServer) -> None:
    hub.status["API"] = status
    assert f"answers {status} for org/large: " in (fault := command.fails("pull", "org/large")) and said in fault
    if status < 429:  # others are tried again for a while
        hub.status = {"m.gguf": status}
        assert command.fails("pull", "org/large") == fault


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "ftp://x", "http://127.0.0.1:99999", "http://[::1"])
def test_an_endpoint_that_is_no_address(endpoint: str, command: Command) -> None:
    assert "HF_ENDPOINT is " in command.fails("pull", "org/large", HF_ENDPOINT=endpoint)


def test_a_token_that_no_header_can_carry(command: Command) -> None:
    assert "HF_TOKEN" in command.fails("pull", "org/large", HF_TOKEN="schlüssel")


def test_names_that_lead_out_of_the_cache_are_passed_over(command: Command, hub: HubServer) -> None:
    assert Path(command.succeeds("pull", "org/hostile")).name == "m.gguf"
    assert hub.fetched == ["m.gguf"]


def test_a_progress_bar_is_shown_when_asked_for(command: Command) -> None:
    show = "from sixfold import model_store; model_store.pull('org/folder', progress=%s)"
    for progress in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", show % progress], env=command.env, cwd=command.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert ("%|" in done.stderr) is progress, done.stderr
        command.succeeds("rm", "org/folder")


def test_a_terminal_sees_a_progress_bar_and_a_file_one_line(command: Command) -> None:
    assert command.run("pull", "org/large").stderr == "fetching org/large from the Hugging Face hub ...\n"
    command.succeeds("rm", "org/large")
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-m", "sixfold", "pull", "org/large"],
        env=command.env, cwd=command.folder, stdout=subprocess.DEVNULL, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the last writer is gone
        while piece := os.read(leader, 4096):
            shown += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    assert b"m.gguf: 100%|" in shown, shown


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("org/name", HubName("org/name")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name:Q4_K_M", HubName("org/name", None, "Q4_K_M")),
        ("org/name@main:Q4", HubName("org/name", "main", "Q4")),
        *((name, None) for name in NO_NAMES),
    ],
)
def test_names(name: str, parsed: HubName | None) -> None:
    assert HubName.parse(name) == parsed


def test_choice_prefers_the_exact_name() -> None:
    files = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-IQ4_K.gguf"]
    assert _chosen(HubName("a/b", None, "-Q4_K"), files) == ["m-Q4_K.gguf"]
    with pytest.raises(ModelNotFound, match="parts of"):
        _chosen(HubName("a/b"), ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf"])


def test_a_name_that_is_not_here_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="sixfold pull some-org/never-pulled"):
        model_store.resolve("some-org/never-pulled")
    assert model_store.can_pull("some-org/never-pulled")
    (tmp_path / "some-org" / "never-pulled").mkdir(parents=True)
    assert not model_store.can_pull("some-org/never-pulled")
