"""Makes small GGUF files for tests, sound ones and such as the writer of synthetic models would not make."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sixfold.model_file.gguf_writer import ALIGNMENT, Typed, metadata_value, tensor_entry
from sixfold.model_file.gguf_writer import string as text

__all__ = ["ALIGNMENT", "BYTE_CHARS", "Typed", "gguf", "metadata_value", "tensor_entry", "text", "tiny_vocabulary"]

BYTE_CHARS = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


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


def tiny_spm(**changes: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: bytes, ten pieces, a user-defined and a control token."""
    pieces = {"▁": -1, "a": -2, "b": -3, "c": -4, "ab": -6, "bc": -5, "▁a": -7, "▁▁": -8, "abc": -9, "▁ab": -10}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<tool>", "a<b"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 3],
        "tokenizer.ggml.scores": [0.0] * 259 + [float(score) for score in pieces.values()] + [0.0, 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {**metadata, **changes}
