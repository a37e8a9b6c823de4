"""The safetensors reader: what it reads, and that every way of breaking a file has its own clear refusal (O52)."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import safetensors_writer as w

from sixfold.errors import ModelFileError
from sixfold.model_file.safetensors import SafetensorsFile, shard_names


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes


def raw(header: str | bytes | dict[str, Any], data: bytes = bytes(16)) -> bytes:
    text = json.dumps(header) if isinstance(header, dict) else header
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def save(tmp_path: Path) -> Any:
    def _save(content: bytes) -> Path:
        path = tmp_path / "t.safetensors"
        path.write_bytes(content)
        return path

    return _save


def test_reads(save: Any) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32)
    tensors = {"a é": w.stored(a), "b": w.stored(b, "BF16"), "c": w.stored(b, "F16"), "none": ("I64", (0,), b"")}
    file = SafetensorsFile.open(save(w.safetensors(tensors, {"format": "pt", "x": '{"y": [1]}'})))
    assert file.metadata == {"format": "pt", "x": '{"y": [1]}'}
    assert [(t.name, t.dtype, t.shape) for t in file.tensors.values()] == [
        ("a é", "F32", (2, 3)),
        ("b", "BF16", (4,)),
        ("c", "F16", (4,)),
        ("none", "I64", (0,)),
    ]
    assert np.array_equal(file.data("a é").view(np.float32).reshape(2, 3), a)
    assert np.array_equal(file.data("c").view(np.float16), b.astype(np.float16))
    with pytest.raises(ValueError, match="read-only"):
        file.data("b")[0] = 1


def test_bytes_at_an_odd_place_are_copied(save: Any) -> None:
    text = json.dumps({"a": entry(), "b": {"dtype": "U8", "shape": [1], "data_offsets": [16, 17]}})
    text += " " * (1 - len(text) % 2)
    file = SafetensorsFile.open(save(raw(text, struct.pack("<4fB", 1, 2, 3, 4, 9))))
    data = file.data("a")
    assert data.ctypes.data % 4 == 0
    assert data.view(np.float32).tolist() == [1, 2, 3, 4]


def test_an_empty_file(save: Any) -> None:
    assert SafetensorsFile.open(save(raw("{}  ", b""))).tensors == {}


FAULTS: list[tuple[bytes, str]] = [
    (b"", "too short"),
    (b"1234567", "too short"),
    (struct.pack("<Q", 1 << 63), "ends inside the header"),
    (struct.pack("<Q", 100) + b"{}", "ends inside the header"),
    (raw("", b""), "'{' was expected at 0"),
    (raw("[]"), "'{' was expected"),
    (raw("{"), "a string was expected"),
    (raw('{"a"'), "':' was expected"),
    (raw('{"a":1}'), "entry of 'a' is not a small JSON object"),
    (raw('{"a":{}}'), "dtype, shape and data_offsets, once each"),
    (raw('{"a":{"dtype"}}'), "entry of 'a' is not valid JSON"),
    (raw({"a": entry()} | {"b": {"a": entry()}}), "entry of 'b' is not a small JSON object"),
    (raw({"a": entry()}) + b"x", "the last 1 bytes belong to no tensor"),
    (raw(json.dumps({"a": entry()}) + "x"), "behind the header's JSON"),
    (raw(b'{"\xff": 1}'), "not valid UTF-8"),
    (raw('{"\\ud800x": 1'), "':' was expected|not a small JSON object"),
    (raw('{"\\x": 1}'), "not valid JSON"),
    (raw({"a": entry(more=1)}), "once each"),
    (raw('{"a":{"dtype":"F32","shape":[2,2],"shape":[2,2],"data_offsets":[0,16]}}'), "once each"),
    (raw({"a": entry(dtype=3)}), "field of another type"),
    (raw({"a": entry(dtype="F33")}), "unknown element type 'F33'"),
    (raw({"a": entry(shape="x")}), "field of another type"),
    (raw({"a": entry(shape=[2, 2.0])}), "field of another type"),
    (raw({"a": entry(shape=[2, True])}), "field of another type"),
    (raw({"a": entry(shape=[-2, -2])}), "field of another type"),
    (raw({"a": entry(shape=[1 << 63, 2])}), "field of another type"),
    (raw({"a": entry(shape=[1 << 62, 1 << 62])}), "its type and shape make"),
    (raw({"a": entry(shape=[1] * 9)}), "9 dimensions"),
    (raw({"a": entry(data_offsets=[0])}), "1 offsets"),
    (raw({"a": entry(data_offsets=[0, 16, 16])}), "3 offsets"),
    (raw({"a": entry(data_offsets=[16, 0])}), "has -16 bytes"),
    (raw({"a": entry(data_offsets=[0, 12])}), "has 12 bytes; its type and shape make 16"),
    (raw({"a": entry(data_offsets=[4, 20])}), "ends inside tensor 'a'"),
    (raw({"a": entry(data_offsets=[1 << 62, (1 << 62) + 16])}), "ends inside tensor 'a'"),
    (raw({"a": entry(), "b": entry()}), "tensors 'a' and 'b' overlap"),
    (raw({"a": entry(shape=[2], data_offsets=[8, 16])}), "8 bytes before tensor 'a' belong to none"),
    (raw('{"a":' + json.dumps(entry()) + ',"a":' + json.dumps(entry()) + "}"), "'a' appears twice"),
    (raw('{"a":' + json.dumps(entry()) + ',"\\u0061":' + json.dumps(entry()) + "}"), "'a' appears twice"),
    (raw('{"__metadata__":{"a":1}}', b""), "a string was expected"),
    (raw('{"__metadata__":{"a":"1","a":"2"}}', b""), "metadata key 'a' appears twice"),
    (raw('{"__metadata__":{},"__metadata__":{}}', b""), "'__metadata__' appears twice"),
    (raw('{"a":' + "[" * 100_000), "not a small JSON object"),
    (raw('{"a":{"dtype":' + "[" * 1000 + "}}"), "not a small JSON object|not valid JSON"),
    (raw('{"a":{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,16]}}'), "not a small JSON object"),
    (raw(json.dumps({"n" * 2000: entry()})), "a name above 1024 characters"),
]


@pytest.mark.parametrize(("content", "fault"), FAULTS, ids=range(len(FAULTS)))
def test_o52_refuses(content: bytes, fault: str, save: Any) -> None:
    with pytest.raises(ModelFileError, match=fault) as caught:
        SafetensorsFile.open(save(content))
    assert caught.value.message.startswith("t.safetensors: ")


def test_o52_every_truncation(save: Any) -> None:
    whole = w.safetensors({"a": w.stored(np.ones((2, 2), np.float32)), "b": w.stored(np.ones(3, np.float32), "F16")})
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            SafetensorsFile.open(save(whole[:length]))


@pytest.mark.parametrize(
    "body",
    [
        '{"a":' + "[" * (1 << 20),
        '{"a":[' + "[]," * (1 << 20),
        '{"a":{"x":[' + "0," * (1 << 20),
        '{"__metadata__":{' + '"a":"b",' * (1 << 18),
        '{"' + "\\\\" * (1 << 20),
        "{" * (1 << 20),
        " " * (1 << 22),
    ],
)
def test_o52_hostile_headers_cost_little(body: str, save: Any) -> None:
    path = save(raw(body))
    started = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            SafetensorsFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 2


def test_many_tensors_are_read_quickly(save: Any) -> None:
    tensors = {f"model.layers.{i}.weight": ("U8", (1,), b"x") for i in range(10_000)}
    path = save(w.safetensors(tensors))
    started = time.perf_counter()
    assert len(SafetensorsFile.open(path).tensors) == 10_000
    assert time.perf_counter() - started < 1


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, fault in (("pipe", "not a regular file"), ("absent", "cannot be opened")):
        with pytest.raises(ModelFileError, match=fault):
            SafetensorsFile.open(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `weight_map`"),
        ('{"weight_map": {"a": 1}}', "Expected `str`"),
        ('{"weight_map": {}}', "names 0 files"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "not the name of a safetensors file"),
        ('{"weight_map": {"a": "/etc/x.safetensors"}}', "not the name of a safetensors file"),
        ('{"weight_map": {"a": "x.bin"}}', "not the name of a safetensors file"),
        ('{"weight_map": ' + "[" * 100_000, "index.json: "),
        ('{"other": ' + "[" * 100_000, "index.json: "),
    ],
)
def test_o52_refuses_an_index(content: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match=fault):
        shard_names(path)
