"""Small tokenizer.json files for tests: of the byte-level kind, and of SentencePiece's."""

from __future__ import annotations

import json
from typing import Any

_ALPHABET = [chr(value) for value in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
"""GPT-2's characters for the 256 bytes."""
_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_PIECES = ["▁", "a", "b", "c", "▁a", "ab", "é", "▁▁"]


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **plain, "special": True, **flags}


def byte_level(**changes: Any) -> dict[str, Any]:
    """256 bytes, two merges, then the added tokens from id 258 on."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {char: i for i, char in enumerate(sorted(_ALPHABET))} | {"ab": 256, "Ġa": 257}
    model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["Ġ", "a"]]}
    file = {"version": "1.0", "added_tokens": [added(258, "<s>"), added(259, "</s>")], "normalizer": None}
    return changed({**file, "pre_tokenizer": step, "post_processor": None, "decoder": step, "model": model}, changes)


def spelled(**changes: Any) -> dict[str, Any]:
    """SentencePiece's kind, as Llama 2's folder has it."""
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *_BYTES, *_PIECES])}
    merges = [["a", "b"], ["▁", "a"], ["▁", "▁"]]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True, "unk_token": "<unk>"}
    before = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]
    back += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return changed(
        {
            "version": "1.0",
            "added_tokens": [added(i, token) for i, token in enumerate(["<unk>", "<s>", "</s>"])],
            "normalizer": {"type": "Sequence", "normalizers": before},
            "decoder": {"type": "Sequence", "decoders": back},
            "model": model,
        },
        changes,
    )


def changed(file: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`model__dropout=0.1` changes file["model"]["dropout"]."""
    file = json.loads(json.dumps(file))
    for path, value in changes.items():
        *where, last = path.split("__")
        place = file
        for key in where:
            place = place[key]
        place[last] = value
    return file
