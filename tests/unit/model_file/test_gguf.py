"""The GGUF reader: what it reads, and that every way of breaking a file has its own clear refusal (O52)."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import gguf_writer as w

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile

F32, Q4_1, Q8_0, IQ4_NL = 0, 3, 8, 20
HUGE = (1 << 63, (1 << 64) - 1, 1 << 40)


@pytest.fixture
def save(tmp_path: Path) -> Any:
    def _save(raw: bytes) -> Path:
        path = tmp_path / "tiny.gguf"
        path.write_bytes(raw)
        return path

    return _save


def sound() -> bytes:
    return w.gguf(
        {
            "general.architecture": "llama",
            "llama.block_count": 2,
            "llama.eps": 1e-5,
            "tokens": ["a", "é", ""],
            "types": [1, -3],
            "scores": [0.5, -1.0],
            "flag": True,
        },
        {
            "norm": (F32, (4,), np.arange(4, dtype="<f4").tobytes()),
            "weight": (Q4_1, (3, 64), bytes(range(120))),
            "head": (Q8_0, (2, 32), bytes(68)),
        },
    )


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert caught.value.message.startswith(f"{path.name}: ")
    return caught.value.message


def test_metadata_and_tensors(save: Any) -> None:
    file = GGUFFile.open(save(sound()))
    assert file.text("general.architecture") == "llama"
    assert file.u32("llama.block_count") == 2
    assert file.f32("llama.eps") == pytest.approx(1e-5)
    assert file.flag("flag") is True
    assert file.strings("tokens") == ["a", "é", ""]
    assert list(file.metadata["tokens"]) == ["a", "é", ""]  # type: ignore[arg-type]
    assert file.numbers("types").tolist() == [1, -3]
    assert file.numbers("scores").tolist() == [0.5, -1.0]
    info = file.tensors["weight"]
    assert (info.shape, info.n_bytes, info.type_name, info.offset % 32) == ((3, 64), 120, "Q4_1", 0)
    assert file.data("weight").tobytes() == bytes(range(120))
    assert file.data("norm").view("<f4").tolist() == [0, 1, 2, 3]
    assert not file.data("head").flags.writeable


def test_data_outlives_the_file_object(save: Any) -> None:
    data = GGUFFile.open(save(sound())).data("weight")
    assert data.tobytes() == bytes(range(120))


def test_version_2_and_other_alignments(save: Any) -> None:
    assert GGUFFile.open(save(w.gguf({"a": 1}, version=2))).u32("a") == 1
    raw = w.gguf({"general.alignment": 64}, {"t": (F32, (1,), b"1234")}, alignment=64)
    assert GGUFFile.open(save(raw)).data("t").tobytes() == b"1234"


def test_getters_name_the_key(save: Any) -> None:
    file = GGUFFile.open(save(sound()))
    assert file.u32("none", 7) == 7
    assert file.text("none", "x") == "x"
    for get in (file.u32, file.f32, file.text, file.flag, file.strings, file.numbers):
        with pytest.raises(ModelFileError, match=r"^tiny\.gguf: no\.key is missing"):
            get("no.key")
    for get, key in ((file.u32, "flag"), (file.u32, "llama.eps"), (file.f32, "flag"), (file.text, "types")):
        with pytest.raises(ModelFileError, match=key):
            get(key)
    for get, key in ((file.flag, "llama.block_count"), (file.strings, "types"), (file.numbers, "tokens")):
        with pytest.raises(ModelFileError, match=key):
            get(key)


@pytest.mark.parametrize("raw", [struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))])
def test_a_number_must_be_finite(save: Any, raw: bytes) -> None:
    file = GGUFFile.open(save(w.gguf({"x": w.Typed(6, raw)})))
    with pytest.raises(ModelFileError, match="x is not a finite number"):
        file.f32("x")


def test_integers_of_every_width(save: Any) -> None:
    values = {f"k{kind}": w.Typed(kind, struct.pack(fmt, 5)) for kind, fmt in enumerate("bBhHiI")}
    file = GGUFFile.open(save(w.gguf({**values, "q": w.Typed(10, struct.pack("<Q", 1 << 40))})))
    assert {file.u32(key) for key in values} == {5}
    with pytest.raises(ModelFileError, match="q is not an unsigned 32-bit"):
        file.u32("q")


def test_a_missing_tensor_and_an_unsupported_type_are_refused_by_name(save: Any) -> None:
    file = GGUFFile.open(save(w.gguf({}, {"old": (IQ4_NL, (1, 32), bytes(18))})))
    with pytest.raises(ModelFileError, match="no tensor new"):
        file.data("new")
    with pytest.raises(ModelFileError, match="old has type IQ4_NL, which is not supported"):
        file.data("old")


def test_o52_every_truncation_is_refused(save: Any) -> None:
    raw = sound()
    used = len(raw) - (-68 % 32)  # the padding after the last tensor may be missing
    GGUFFile.open(save(raw[:used]))
    for length in range(used):
        refusal(save(raw[:length]))


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ((0, b"GGML"), "magic"),
        ((4, struct.pack("<I", 1)), "version 1"),
        ((4, struct.pack("<I", 99)), "version 99"),
        ((4, struct.pack(">I", 3)), "big endian"),
        *[((8, struct.pack("<Q", count)), "tensors") for count in HUGE],
        *[((16, struct.pack("<Q", count)), "metadata entries") for count in HUGE],
        *[((24, struct.pack("<Q", count)), "key of metadata entry 0") for count in HUGE],
    ],
)
def test_o52_header(save: Any, patch: tuple[int, bytes], reason: str) -> None:
    raw = bytearray(sound())
    raw[patch[0] : patch[0] + len(patch[1])] = patch[1]
    assert reason in refusal(save(bytes(raw)))


def array(kind: int, count: int, raw: bytes = b"") -> w.Typed:
    return w.Typed(9, struct.pack("<IQ", kind, count) + raw)


@pytest.mark.parametrize("count", HUGE)
def test_o52_huge_counts(save: Any, count: int) -> None:
    for kind in (0, 4, 6, 8, 9, 12):
        assert "the_key" in refusal(save(w.gguf({"the_key": array(kind, count, bytes(64))})))
    for value in (
        w.Typed(8, struct.pack("<Q", count)),
        array(8, 2, struct.pack("<Q", count) + bytes(64)),
        array(8, 1, struct.pack("<Q", count) + bytes(64)),
    ):
        assert "the_key" in refusal(save(w.gguf({"the_key": value})))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"k": w.Typed(77, b"")}, "k has the unknown value type 77"),
        ({"k": array(77, 0)}, "k is an array of the unknown value type 77"),
        ({"k": w.Typed(7, b"\x02")}, "k is neither true nor false"),
        ({"k": array(7, 2, b"\x01\x02")}, "k holds values"),
        ({"k": w.Typed(8, struct.pack("<Q", 1) + b"\xff")}, "k is not valid UTF-8"),
        ({"k": array(9, 1, struct.pack("<IQ", 9, 0))}, "k nests arrays"),
        ({"k": array(9, 5000)}, "k nests arrays"),
        ({"general.alignment": 0}, "general.alignment"),
        ({"general.alignment": 24}, "general.alignment"),
        ({"general.alignment": 1 << 30}, "general.alignment"),
        ({"general.alignment": "x"}, "general.alignment"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_o52_metadata(save: Any, metadata: dict[str, Any], reason: str) -> None:
    assert reason in refusal(save(w.gguf(metadata)))


def test_arrays_of_arrays_and_empty_arrays(save: Any) -> None:
    nested = array(9, 2, struct.pack("<IQB", 0, 1, 7) + struct.pack("<IQ", 8, 1) + w.text("x"))
    file = GGUFFile.open(save(w.gguf({"n": nested, "none": array(8, 0), "zero": array(4, 0)})))
    numbers, strings = file.metadata["n"]  # type: ignore[misc]
    assert (numbers.tolist(), list(strings)) == ([7], ["x"])  # type: ignore[union-attr, arg-type]
    assert file.strings("none") == []
    assert file.numbers("zero").tolist() == []


def test_a_token_that_is_not_utf8_is_refused_when_read(save: Any) -> None:
    file = GGUFFile.open(save(w.gguf({"k": array(8, 2, w.text("a") + struct.pack("<Q", 1) + b"\x80")})))
    with pytest.raises(ModelFileError, match=r"k\[1\] is not valid UTF-8"):
        file.strings("k")


def test_o52_twice(save: Any) -> None:
    key = w.text("k") + w.metadata_value(1)
    assert "'k' appears twice" in refusal(save(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + key * 2))
    entry = w.tensor_entry("t", (1,), F32, 0)
    assert "'t' appears twice" in refusal(save(struct.pack("<4sIQQ", b"GGUF", 3, 2, 0) + entry * 2 + bytes(64)))


def directory(*entries: bytes, data: int = 4096) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), 0) + b"".join(entries)
    return head + bytes(-len(head) % w.ALIGNMENT) + bytes(data)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (directory(w.tensor_entry("t", (2048,), F32, 0)), "ends inside tensor t"),
        (directory(w.tensor_entry("t", (1,), F32, 1 << 62)), "ends inside tensor t"),
        (directory(w.tensor_entry("t", (1,), F32, 4)), "not a multiple of 32"),
        (directory(w.tensor_entry("t", (1 << 33, 1 << 33), F32, 0)), "ends inside tensor t"),
        (directory(w.tensor_entry("t", (1 << 62, 16), F32, 0)), "ends inside tensor t"),
        (directory(w.tensor_entry("t", (), F32, 0)), "0 dimensions"),
        (directory(w.tensor_entry("t", (1, 1, 1, 1, 1), F32, 0)), "5 dimensions"),
        (directory(w.tensor_entry("t", (0,), F32, 0)), "empty dimension"),
        (directory(w.tensor_entry("t", (2, 33), Q4_1, 0)), "multiple of 32"),
        (directory(w.tensor_entry("t", (1,), 4, 0)), "unknown type 4"),
        (directory(w.tensor_entry("t", (1,), 4_000_000_000, 0)), "unknown type"),
        (directory(w.tensor_entry("a", (9,), F32, 0), w.tensor_entry("b", (1,), F32, 32)), "a and b overlap"),
        (directory(w.tensor_entry("a", (1,), F32, 0), w.tensor_entry("b", (1,), F32, 0)), "a and b overlap"),
    ],
)
def test_o52_tensors(save: Any, raw: bytes, reason: str) -> None:
    assert reason in refusal(save(raw))


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "cannot be opened" in refusal(tmp_path / "missing.gguf")
    assert "not a regular file" in refusal(tmp_path)
    assert "not a regular file" in refusal(Path("/dev/null"))
    (tmp_path / "empty").write_bytes(b"")
    assert "too short" in refusal(tmp_path / "empty")


def test_o52_many_empty_strings_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(w.gguf({"k": array(8, 1 << 18)}))
        file.truncate(4 << 20)
    tracemalloc.start()
    try:
        # Legal, and stepped over: no list of strings is made until somebody asks.
        assert len(GGUFFile.open(path).metadata["k"]) == 1 << 18  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.model
def test_the_default_model_opens_quickly(model_path: Path) -> None:
    start = time.perf_counter()
    file = GGUFFile.open(model_path)
    assert time.perf_counter() - start < 0.5  # 0.02 s on an idle core
    assert len(file.tensors) == 272
    assert file.u32("llama.block_count") == 30
    assert file.tensors["token_embd.weight"].shape == (49152, 576)
    assert len(file.strings("tokenizer.ggml.tokens")) == 49152
