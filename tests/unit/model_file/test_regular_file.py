"""What a path of a model may name besides a file: refused, and nobody waits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.fixtures import tiny_models as tiny

from sixfold.errors import ModelFileError
from sixfold.model_file import open_model, read_whole
from sixfold.model_file.regular_file import map_whole
from sixfold.text.folder_files import read_text


def other_things(folder: Path) -> dict[str, Path]:
    """A pipe that nobody writes to, a device without an end, a socket, a folder, a link to nothing."""
    os.mkfifo(folder / "pipe")
    (folder / "zeros").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (folder / "nothing").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    return {name: folder / name for name in ("pipe", "zeros", "folder", "nothing", "socket")}


@pytest.mark.parametrize("name", ["pipe", "zeros", "folder", "nothing", "socket"])
def test_only_regular_files(name: str, tmp_path: Path) -> None:
    path = other_things(tmp_path)[name]
    fault = rf"^{name}: (not a regular file|cannot be opened \()"
    with pytest.raises(ModelFileError, match=fault):
        read_whole(path, bytes_max=100)
    with pytest.raises(ModelFileError, match=fault):
        map_whole(path, bytes_min=1, kind="GGUF")
    with pytest.raises(ModelFileError, match=fault):
        read_text(path)


@pytest.mark.parametrize("name", ["pipe", "zeros", "folder", "nothing", "socket"])
@pytest.mark.parametrize(
    "file", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
)
def test_every_file_of_a_folder(file: str, name: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path, "llama", shards=2)
    (folder / file).unlink(missing_ok=True)
    other_things(tmp_path)[name].rename(folder / file)
    with pytest.raises(
        ModelFileError, match=r"not a regular file|cannot be opened|there is neither model\.safetensors"
    ):
        open_model(folder)


def test_bounds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_whole(path, bytes_max=5) == b"12345" == bytes(map_whole(path, bytes_min=5, kind="GGUF"))
    with pytest.raises(ModelFileError, match=r"^file: longer than 4 bytes$"):
        read_whole(path, bytes_max=4)
    with pytest.raises(ModelFileError, match=r"^file: not a GGUF file, since it is too short \(5 bytes\)$"):
        map_whole(path, bytes_min=6, kind="GGUF")
    with pytest.raises(ModelFileError, match="cannot be opened"):
        read_whole(tmp_path / "a\0b", bytes_max=4)
    assert read_text(tmp_path / "absent") is None


def test_what_a_message_quotes_is_made_printable_and_cut() -> None:
    """Names in a file may hold anything: commands to a terminal, or megabytes."""
    assert ModelFileError("tensor 'a\x1b[2Jé\n'").message == r"tensor 'a\x1b[2Jé\n'"
    long = ModelFileError("f.gguf: " + "x" * 5000 + " is no number").message
    assert len(long) < 1010 and long.startswith("f.gguf: xxx") and long.endswith("xxx is no number")
