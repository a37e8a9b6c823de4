"""`list` and `rm` over a cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sixfold import model_store
from sixfold.cli.main import main
from sixfold.engine.launch import model_path

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
    path = model_path(NAME)
    status, text = ran(capsys, "list")
    assert status == 0
    assert [line.split() for line in text.splitlines() if line.startswith("synthetic")] == [[NAME, "0", "MB", "here"]]
    assert ran(capsys, "rm", NAME) == (0, f"removed {NAME}\n")
    assert not path.exists()
    assert ran(capsys, "rm", NAME) == (1, f"sixfold: {NAME} is not on this machine: there is nothing to remove\n")
    assert ran(capsys, "rm", "synthetic:huge")[0] == 1


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
