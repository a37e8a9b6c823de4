"""`list` and `rm` over a cache of their own."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from sixfold import model_store
from sixfold.cli.main import main
from sixfold.config import Config
from sixfold.engine.resolve import model_path
from sixfold.sizes import size_text

NAME = "synthetic:tiny,ffn=64@q8_0"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_store.hub, "list_cached", lambda: [])
    return tmp_path / "cache"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capsys.readouterr()
    return left.value.code, out + err


def test_synthetic_models_are_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    path = model_path(Config.from_flat({"model": NAME}))
    status, text = ran(capsys, "list")
    assert status == 0 and " KB " in text
    assert [line.split() for line in text.splitlines() if line.startswith("synthetic")] == [
        [NAME, *size_text(path.stat().st_size).split(), "here"]
    ]
    assert ran(capsys, "rm", NAME) == (0, f"removed {NAME}\n")
    assert not path.exists()
    assert ran(capsys, "rm", NAME) == (1, f"sixfold: {NAME} is not on this machine: there is nothing to remove\n")
    assert ran(capsys, "rm", "synthetic:huge")[0] == 1


@pytest.mark.parametrize("command", [["list"], ["rm", "synthetic:tiny"], ["run", NAME, "hi", "--max-tokens", "1"]])
def test_what_a_killed_process_left_is_removed(
    command: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_path(Config.from_flat({"model": NAME}))
    half = cache / "synthetic" / ".tiny-f32.gguf.4711.part"
    half.write_bytes(b"half")
    with (cache / "synthetic.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its writer lives
        ran(capsys, *command)
        assert half.exists()
    ran(capsys, *command)
    assert not half.exists()


def test_bench_takes_what_the_context_holds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--decode", "1", "--repeat", "1", "--output-tokens", "8", "--threads", "1", "--json"]
    status, text = ran(capsys, "bench", NAME, *flags)
    assert status == 0 and "prefill_511" in json.loads(text)
    told = "512 tokens of --prefill are too many: the model's context of 512 has room for 511"
    assert ran(capsys, "bench", NAME, *flags, "--prefill", "512") == (2, f"sixfold: {told}\n")
    status, text = ran(capsys, "bench", NAME, *flags, "--prompt-tokens", "600")
    assert status == 2 and "608 tokens of --prompt-tokens and --output-tokens are too many" in text


def test_a_model_in_use_stays_usable(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sixfold import LLM, SamplingParams

    with LLM(NAME, num_kv_blocks=8, max_model_len=64, threads=1) as llm:
        before = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0))[0].outputs[0].token_ids
        assert ran(capsys, "rm", NAME)[0] == 0
        assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0))[0].outputs[0].token_ids == before


@pytest.mark.parametrize("kind", ["file", "folder without permission", "nothing"])
def test_a_cache_that_cannot_be_used(kind: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "file":
        cache.write_text("in the way")
    elif kind != "nothing":
        cache.mkdir(mode=0)
        if os.access(cache, os.R_OK):
            pytest.skip("this user may read everything")
    status, text = ran(capsys, "list")
    assert status == 0 and "smollm2" in text and "here" not in text
    assert ran(capsys, "rm", "smollm2")[1] == "sixfold: smollm2 is not on this machine: there is nothing to remove\n"
    status, text = ran(capsys, "rm", NAME)
    assert status == 1 and ("nothing to remove" in text or "Permission denied" in text)
    assert ran(capsys, "show", NAME)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pull", "x.gguf"), "x.gguf is a path"),
        (("pull", "folder"), "folder is a path"),
        (("pull", "a/folder"), "a/folder is a path"),
        (("pull", "synthetic:tiny"), "synthetic:tiny is made on this machine when it is first used"),
        (("rm", "x.gguf"), "x.gguf is a path"),
        (("rm", "folder"), "folder is a path"),
        (("pull", "nothing"), "or made up, as synthetic:tiny"),
    ],
)
def test_pull_and_rm_take_names(
    arguments: tuple[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 1
    assert said in capsys.readouterr().err
