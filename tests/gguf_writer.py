"""Makes small GGUF files for tests: what the reader reads, written down a second time."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 32
BYTE_CHARS = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit GGUF type number, its bytes given."""

    kind: int
    raw: bytes


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata_value(value: Any) -> bytes:
    """Type number and bytes: bool, int (u32), float (f32), str, list of str, list of int (i32), list of float (f32)."""
    match value:
        case Typed():
            return struct.pack("<I", value.kind) + value.raw
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case [float(), *_]:
            return struct.pack("<IIQ", 9, 6, len(value)) + np.array(value, "<f4").tobytes()
        case list():
            return struct.pack("<IIQ", 9, 5, len(value)) + np.array(value, "<i4").tobytes()
    raise TypeError(type(value))


def tensor_entry(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """`shape` in NumPy's order."""
    dims = list(reversed(shape))
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[int, Sequence[int], bytes]] | None = None,
    *,
    version: int = 3,
    alignment: int = ALIGNMENT,
) -> bytes:
    """A whole file. `tensors`: name -> (type number, shape in NumPy's order, bytes)."""
    metadata, tensors = metadata or {}, tensors or {}
    body = b"".join(text(key) + metadata_value(value) for key, value in metadata.items())
    offset, data = 0, b""
    for name, (kind, shape, raw) in tensors.items():
        body += tensor_entry(name, shape, kind, offset)
        data += raw + bytes(-len(raw) % alignment)
        offset = len(data)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata)) + body
    return head + bytes(-len(head) % alignment) + data


def tiny_vocabulary() -> dict[str, Any]:
    """Metadata of a byte-level BPE tokenizer: all bytes, a few merges, control and user-defined tokens."""
    other = [value for value in range(256) if value not in set(BYTE_CHARS)]
    alphabet = [chr(value) for value in BYTE_CHARS] + [chr(0x100 + i) for i in range(len(other))]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "i m", "Ġ Ġ"]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = control + alphabet + merged + ["<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(control) + [1] * (len(alphabet) + len(merged)) + [4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
