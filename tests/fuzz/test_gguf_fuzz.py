"""Thousands of damaged GGUF files: each is read or refused with ModelFileError; no other error, no large allocation."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests import gguf_writer as w
from tests.fuzz.mutations import damage, write_anew

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text import ChatTemplate, gguf_tokenizer

N_STRUCTURE, N_VOCABULARY = 10_000, 300


def small() -> bytes:
    nested = w.Typed(9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 8, 1) + w.text("x"))
    metadata = {"arch": "llama", "n": 2, "eps": 0.5, "on": True, "words": ["a", "bc"], "ids": [1, 2], "nest": nested}
    tensors = {"a": (0, (4,), np.zeros(4, "<f4").tobytes()), "b": (8, (2, 32), bytes(68))}
    return w.gguf(metadata, tensors)


def read_everything(path: Path) -> None:
    file = GGUFFile.open(path)
    for value in file.metadata.values():
        if not isinstance(value, bool | int | float | str):
            list(value)
    for name in file.tensors:
        with contextlib.suppress(ModelFileError):
            file.data(name).sum()


def test_o52_damaged_files(tmp_path: Path) -> None:
    rng, raw, path = random.Random(52), small(), tmp_path / "f.gguf"
    read_everything_sound(path, raw)
    n_refused = 0
    tracemalloc.start()
    try:
        for i in range(N_STRUCTURE):
            write_anew(path, damage(raw, rng, len(raw) - 160))
            try:
                read_everything(path)
            except ModelFileError as error:
                n_refused += 1
                assert error.message.startswith("f.gguf: ") or "not valid UTF-8" in error.message, i
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert N_STRUCTURE // 2 < n_refused < N_STRUCTURE


def read_everything_sound(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    read_everything(path)


def test_o53_damaged_vocabularies(tmp_path: Path) -> None:
    rng, path = random.Random(53), tmp_path / "f.gguf"
    raw = w.gguf({**w.tiny_vocabulary(), "tokenizer.chat_template": "{{ messages[0].content }}{% if a %}x{% endif %}"})
    n_built = 0
    for _ in range(N_VOCABULARY):
        write_anew(path, damage(raw, rng, len(raw)))
        with contextlib.suppress(ModelFileError):
            file = GGUFFile.open(path)
            tokenizer = gguf_tokenizer(file)
            n_built += 1
            text = "hello é <|im_end|><think>"
            ids = tokenizer.encode(text, parse_control=False)
            assert tokenizer.control_ids.isdisjoint(ids[1:] if tokenizer.adds_bos else ids)
            assert all(0 <= token < tokenizer.n_vocab for token in [*ids, *tokenizer.end_ids])
            ChatTemplate.of_file(file, tokenizer)
    assert n_built > 5


@pytest.mark.model
def test_o52_the_default_model_cut_short(model_path: Path, tmp_path: Path) -> None:
    with model_path.open("rb") as source:
        head = source.read(4 << 20)
    path = tmp_path / "f.gguf"
    for length in (24, 1000, 700_000, 1_700_000, len(head)):
        path.write_bytes(head[:length])
        with pytest.raises(ModelFileError, match="ends inside"):
            GGUFFile.open(path)
