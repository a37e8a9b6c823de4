"""Broken model files through the real command line: one sentence that names the file and the fault, and no server."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.serving import Server
from tests.fuzz import corpus
from tests.fuzz.mutations import Parts
from tests.fuzz.whole_path import peak_bytes

from sixfold.config import Config
from sixfold.engine.resolve import resolve
from sixfold.errors import ModelFileError
from sixfold.model_file.gguf_writer import NewTensor

SOUND = corpus.quantized_gguf("q4_1")
RAW = SOUND.encode()
DOWN = "blk.0.ffn_down.weight"
HUGE = 1 << 63
GROWTH_MAX = 50 << 20


def behind(name: str) -> int:
    """Index of what follows a key or a tensor's name."""
    text = struct.pack("<Q", len(name)) + name.encode()
    return RAW.index(text) + len(text)


def with_bytes(at: int, layout: str, *values: int) -> bytes:
    raw = struct.pack(layout, *values)
    return RAW[:at] + raw + RAW[at + len(raw) :]


def with_tensor(name: str, **changes: Any) -> Parts:
    return replace(SOUND, tensors=tuple(replace(t, **changes) if t.name == name else t for t in SOUND.tensors))


def with_nan_scale() -> bytes:
    [down] = (t for t in SOUND.tensors if t.name == DOWN)
    return with_tensor(DOWN, data=bytes(down.data)[:40] + b"\x00\x7e" + bytes(down.data)[42:]).encode()  # type: ignore[arg-type]


DIRECTORY = behind(DOWN)
"""u32 number of dimensions, u64 each of them, u32 type, u64 offset."""
OFFSET = DIRECTORY + 4 + 8 + 8 + 4
PADDING = -SOUND.tensors[-1].n_bytes % 32
BROKEN = {
    "last byte cut": (RAW[: len(RAW) - PADDING - 1], "ends inside tensor"),
    "cut in a tensor": (RAW[:-5000], "ends inside tensor"),
    "cut in the header": (RAW[:20], "too short"),
    "cut in the metadata": (RAW[:100], "ends inside"),
    "wrong magic": (b"GGML" + RAW[4:], "wrong magic"),
    "version 1": (with_bytes(4, "<I", 1), "version 1 "),
    "version 99": (with_bytes(4, "<I", 99), "version 99 "),
    "bytes swapped": (with_bytes(4, ">I", 3), "big endian"),
    "number of tensors": (with_bytes(8, "<Q", HUGE), f"{HUGE} tensors"),
    "number of keys": (with_bytes(16, "<Q", HUGE), f"{HUGE} metadata entries"),
    "length of a key": (with_bytes(24, "<Q", HUGE), "key of metadata entry 0"),
    "length of a string": (with_bytes(behind("general.architecture") + 4, "<Q", HUGE), "general.architecture"),
    "length of an array": (with_bytes(behind("tokenizer.ggml.tokens") + 8, "<Q", HUGE), "tokenizer.ggml.tokens"),
    "length of a string in an array": (
        with_bytes(behind("tokenizer.ggml.tokens") + 16, "<Q", HUGE),
        r"tokenizer.ggml.tokens\[1\]",
    ),
    "0 dimensions": (with_bytes(DIRECTORY, "<I", 0), f"{DOWN} has 0 dimensions"),
    "5 dimensions": (with_bytes(DIRECTORY, "<I", 5), f"{DOWN} has 5 dimensions"),
    "a product beyond 64 bits": (with_bytes(DIRECTORY + 4, "<QQ", 1 << 62, 16), f"ends inside tensor {DOWN}"),
    "offset past the end": (with_bytes(OFFSET, "<Q", 1 << 40), f"ends inside tensor {DOWN}"),
    "offset at the end of numbers": (with_bytes(OFFSET, "<Q", HUGE), f"ends inside tensor {DOWN}"),
    "offset misaligned": (with_bytes(OFFSET, "<Q", 4), f"{DOWN} begins at offset 4"),
    "offset of another": (with_bytes(OFFSET, "<Q", 0), f"tensors token_embd.weight and {DOWN} overlap"),
}


def saved(folder: Path, raw: bytes) -> Path:
    path = folder / "tiny.gguf"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("what", BROKEN)
def test_o52_refused_before_anything_is_started(what: str, tmp_path: Path) -> None:
    raw, fault = BROKEN[what]
    path = saved(tmp_path, raw)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak_bytes()
    with pytest.raises(ModelFileError, match=rf"^tiny\.gguf: .*{fault}"):
        resolve(Config.from_flat({"model": str(path)}))
    assert peak_bytes() - before < GROWTH_MAX


def sixfold(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sixfold", *arguments]
    return subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def without_down() -> bytes:
    return replace(SOUND, tensors=tuple(t for t in SOUND.tensors if t.name != DOWN)).encode()


def without_pre_tokenizer() -> bytes:
    return replace(SOUND, metadata={k: v for k, v in SOUND.metadata.items() if k != "tokenizer.ggml.pre"}).encode()


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (BROKEN["last byte cut"][0], "ends inside tensor"),
        (BROKEN["number of keys"][0], "metadata entries"),
        (with_nan_scale(), f"tensor '{DOWN}': a number is not finite (row 0, the block at 64)"),
        (without_down(), f"there is no tensor {DOWN}"),
        (without_pre_tokenizer(), "tokenizer.ggml.pre"),
    ],
    ids=["cut", "count", "NaN scale", "tensor missing", "O53"],
)
def test_o52_serve_ends_with_a_status_and_never_serves(raw: bytes, fault: str, tmp_path: Path) -> None:
    port = free_port()
    done = sixfold("serve", str(saved(tmp_path, raw)), "--port", str(port), "--threads", "1")
    assert done.returncode in (1, 4)
    assert f"tiny.gguf: {fault}" in done.stderr or (fault in done.stderr and "tiny.gguf: " in done.stderr)
    assert "Traceback" not in done.stderr and done.stdout == ""
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("command", ["show", "bench", "chat", "run", "doctor", "serve"])
def test_every_command_says_it_in_one_sentence(command: str, tmp_path: Path) -> None:
    path = saved(tmp_path, BROKEN["cut in a tensor"][0])
    done = sixfold(command, str(path), *(["hi"] if command == "run" else []))
    assert done.returncode == 1
    if command == "doctor":
        assert "problem: tiny.gguf: the file ends inside tensor" in done.stdout
    else:
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("sixfold: tiny.gguf: the file ends inside tensor")


@pytest.mark.parametrize("command", ["show", "serve"])
def test_a_pipe_is_not_waited_for(command: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    done = sixfold(command, str(tmp_path / "m.gguf"))
    assert (done.returncode, done.stderr) == (1, f"sixfold: {tmp_path}/m.gguf is no regular file\n")


def padded() -> bytes:
    """20 rows behind the vocabulary; one of two opposite ones wins every argmax that can see it."""
    rows = np.concatenate([np.zeros((300, 256)), np.full((10, 256), 1000.0), np.full((10, 256), -1000.0)]).astype("<f4")
    rows[:300] = np.random.default_rng(1).standard_normal((300, 256)) * 0.1
    embedding = NewTensor("token_embd.weight", 0, rows.shape, rows.tobytes())
    rest = tuple(t for t in SOUND.tensors if t.name != "token_embd.weight")
    return replace(SOUND, tensors=(embedding, *rest)).encode()


def test_o54_padded_rows_are_never_drawn_listed_or_accepted(tmp_path: Path) -> None:
    path = saved(tmp_path, padded())
    with Server(str(path), "--served-model-name", "tiny", "--threads", "1", "--num-kv-blocks", "32") as server:
        for temperature in (0, 1):
            body = {"model": "tiny", "prompt": "he", "max_tokens": 16, "temperature": temperature, "seed": 3}
            answer = server.post(
                "/v1/completions", body | {"logprobs": 5, "return_token_ids": True, "ignore_eos": True}
            )
            ids = answer["choices"][0]["token_ids"]
            assert len(ids) == 16 and max(ids) < 300
            listed = answer["choices"][0]["logprobs"]["top_logprobs"]
            assert all(entry and max(entry.values()) <= 0 for entry in listed)
        for field in ({"prompt": [300]}, {"prompt": "a", "logit_bias": {"300": 1}}, {"prompt": [2**31]}):
            status, _, data = server.request("POST", "/v1/completions", {"model": "tiny", **field})
            assert status == 400, data


def test_a_file_that_is_cut_while_it_is_served_ends_the_server_with_a_word(tmp_path: Path) -> None:
    path = saved(tmp_path, corpus.quantized_gguf("f32").encode())
    with Server(str(path), "--served-model-name", "tiny", "--threads", "1", "--num-kv-blocks", "32") as server:
        os.truncate(path, 4096)
        status, _, _ = server.request("POST", "/v1/completions", {"model": "tiny", "prompt": "he", "max_tokens": 4})
        assert status in (500, 503)
        assert server.process.wait(30) == 4
        server.stop(signal.SIGTERM)
    assert f"worker 0 ended unexpectedly (signal {signal.SIGBUS.value}: was the model's file cut short" in server.output
