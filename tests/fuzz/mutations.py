"""Ways to damage model files: bytes, JSON, and the parts of a GGUF file. All of them follow from the given `rng`."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests import gguf_writer as w

from sixfold.model_file.gguf_writer import NewTensor

NUMBERS = (0, 1, 2, 7, 8, 9, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)
"""What stands where a count, length, offset or type is expected."""

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 16, 64, 255, 1 << 20, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 10**40, 0.5, -2.5, 1e30,
    1e308, True, False, None, "", "F32", "BF16", "I64", "x" * 3000, "default", "llama", "gelu", [], {}, [1], [[[]]],
    {"a": 1}, ["full_attention"], ["sliding_attention"] * 2, [0, 128], [1] * 500, 1e-30, 1e-300, 3, 24, 32, 96, 512,
)  # fmt: skip
"""What stands where JSON is expected."""

NAMES = ("a", "b.weight", "model.norm.weight", "__metadata__", "rope_scaling")
ODD_TEXTS = ("", "▁", "<0x00>", "\x00", "日本", "a" * 5000, "<s>", "llama", "gpt2", "yarn", "{{ 1 / 0 }}", "<|im_end|>")
ODD_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e-300, 1e30, 1e300, float("nan"), float("inf"), float("-inf"))
SPECIAL_BITS = (
    b"\x00\x7c",
    b"\x00\xfc",
    b"\x00\x7e",
    b"\x80\x7f",
    b"\x00\x00\x80\x7f",
    b"\x00\x00\xc0\x7f",
    b"\xff" * 8,
)
"""Infinite and not a number, as float16, bfloat16 and float32."""


def write_anew(path: Path, raw: bytes) -> None:
    """Some file systems flush a file that is emptied and written again: 2 ms instead of 0.05 ms each."""
    path.unlink(missing_ok=True)
    path.write_bytes(raw)


def damage(raw: bytes, rng: random.Random, structure: int) -> bytes:
    """One to three faults, most of them in the first `structure` bytes."""
    out = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        if not out:
            break
        place = rng.randrange(min(structure, len(out)) if rng.random() < 0.9 else len(out))
        match rng.randrange(6):
            case 0:
                out[place] ^= 1 << rng.randrange(8)
            case 1:
                out[place] = rng.randrange(256)
            case 2:
                width = rng.choice((4, 8))
                out[place : place + width] = rng.choice(NUMBERS).to_bytes(8, "little")[:width]
            case 3:
                del out[place : place + rng.choice((1, 4, 8, 40))]
            case 4:
                out[place:place] = rng.randbytes(rng.choice((1, 4, 8)))
            case 5:
                del out[place:]
    return bytes(out)


def changed(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one to three places changed, dropped or renamed."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        place = copy
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and rng.random() < 0.8:
                place = place[key]
                continue
            match rng.randrange(6):
                case 0:
                    del place[key]
                case 1 if isinstance(place, dict):
                    place[rng.choice(NAMES)] = place[key]
                case _:
                    place[key] = json.loads(json.dumps(rng.choice(VALUES)))
            break
    return copy


def with_special_bits(raw: bytes, rng: random.Random) -> bytes:
    """Somewhere a number that is none; at a place where one of the types has its scales, as often as not."""
    place = rng.randrange(max(len(raw) - 8, 1))
    if rng.random() < 0.5:
        place = place // 2 * 2
    bits = rng.choice(SPECIAL_BITS)
    return raw[:place] + bits + raw[place + len(bits) :]


@dataclass(frozen=True)
class Parts:
    """A GGUF file before it is written."""

    metadata: Mapping[str, Any]
    tensors: tuple[NewTensor, ...]

    def encode(self) -> bytes:
        """As it is, sound or not."""
        return w.gguf(self.metadata, {t.name: (t.ggml_type, t.shape, bytes(t.data)) for t in self.tensors})


def changed_parts(parts: Parts, rng: random.Random) -> Parts:
    """One to three entries of the metadata or of the directory changed, or bytes of a tensor."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.5 and parts.metadata:
            parts = replace(parts, metadata=_changed_metadata(dict(parts.metadata), rng))
        elif parts.tensors:
            parts = replace(parts, tensors=_changed_tensors(list(parts.tensors), rng))
    return parts


def _changed_metadata(metadata: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    key = rng.choice(list(metadata))
    match rng.randrange(5):
        case 0:
            del metadata[key]
        case 1:
            metadata[key] = metadata[rng.choice(list(metadata))]
        case 2:
            metadata[rng.choice(list(metadata))] = _odd_value(rng)
        case _:
            metadata[key] = _odd_like(metadata[key], rng)
    return metadata


def _odd_like(value: Any, rng: random.Random) -> Any:
    """Of the same type, but odd."""
    match value:
        case bool():
            return not value
        case int():
            return w.Typed(
                4, struct.pack("<I", rng.choice((*NUMBERS, value + 1, value * 2, value // 2, 3)) & 0xFFFFFFFF)
            )
        case float():
            return _float(rng)
        case str():
            return rng.choice(ODD_TEXTS)
        case list() if value:
            value = list(value)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(value))
                old = value[place]
                if isinstance(old, str):
                    value[place] = rng.choice((*ODD_TEXTS, *value[:5]))
                elif isinstance(old, float):
                    value[place] = rng.choice((0.0, -1e30, 1e30, float("inf"), float("nan")))
                else:
                    value[place] = rng.choice((-1, 0, 1, 2, 3, 4, 5, 6, 7, (1 << 31) - 1))
            return value[: rng.randrange(1, len(value) + 1)] if rng.random() < 0.3 else value
    return _odd_value(rng)


def _float(rng: random.Random) -> w.Typed:
    value = rng.choice(ODD_FLOATS)
    if abs(value) < 1e38 and rng.random() < 0.5:
        return w.Typed(6, struct.pack("<f", value))
    return w.Typed(12, struct.pack("<d", value))


def _odd_value(rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0:
            return rng.choice(ODD_TEXTS)
        case 1:
            return _float(rng)
        case 2:
            return w.Typed(10, struct.pack("<Q", rng.choice(NUMBERS)))
        case 3:
            return w.Typed(9, struct.pack("<IQ", rng.randrange(13), rng.choice(NUMBERS)) + rng.randbytes(16))
        case 4:
            return np.array([rng.choice((0, 1, 7, 255))] * rng.randrange(1, 40), rng.choice(("u1", "i4", "u8", "f4")))
    return rng.random() < 0.5


def _changed_tensors(tensors: list[NewTensor], rng: random.Random) -> tuple[NewTensor, ...]:
    i = rng.randrange(len(tensors))
    tensor = tensors[i]
    match rng.randrange(8):
        case 0:
            del tensors[i]
        case 1:
            tensors[i] = replace(tensor, name=rng.choice((*NAMES, tensors[rng.randrange(len(tensors))].name)))
        case 2:
            tensors[i] = replace(tensor, ggml_type=rng.choice((0, 1, 2, 3, 6, 8, 10, 12, 14, 24, 30)))
        case 3:
            shape = list(tensor.shape)
            at = rng.randrange(len(shape))
            shape[at] = rng.choice((*NUMBERS, shape[at] + 1, max(shape[at] - 1, 0), shape[at] // 2, shape[at] * 2, 32))
            tensors[i] = replace(tensor, shape=tuple(shape))
        case 4:
            tensors[i] = replace(tensor, shape=tensor.shape[::-1])
        case 5:
            tensors.append(replace(tensor, name=rng.choice((tensor.name + "x", "blk.0.attn_q.bias", "output.weight"))))
        case _:
            tensors[i] = replace(tensor, data=with_special_bits(bytes(tensor.data), rng))
    return tuple(tensors)
