"""Damaged vocabularies: SentencePiece's in GGUF and tokenizer.json. Each is used or refused with ModelFileError."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

from tests import gguf_writer as w

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, folder_tokenizer, gguf_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"
TEXT = "Hello  wörld <table>\n\n\n<s></s> ▁ 12345 日本 🙂 a\x00b"
N_SPM, N_FOLDER = 150, 400
ODD_TEXTS = ["", "▁", "<0x00>", "<0xFF>", "\x00", "日", "a" * 500, "<s>", " ", "▁▁", "é"]
ODD_SCORES = [0.0, -1e30, 1e30, float("inf"), float("nan"), -0.0]


def use(tokenizer: Tokenizer) -> None:
    """What it gives must be within its own vocabulary."""
    for parse in (False, True):
        ids = tokenizer.encode(TEXT, parse_control=parse)
        assert all(0 <= i < tokenizer.n_vocab for i in ids)
        tokenizer.decode(ids)


def test_o52_damaged_scores_texts_and_types(tmp_path: Path) -> None:
    metadata = json.loads((GOLDEN / "llama-spm.json").read_text())["vocabulary"]
    rng = random.Random(5)
    n = len(metadata["tokenizer.ggml.tokens"])
    path = tmp_path / "v.gguf"
    for _ in range(N_SPM):
        damaged = {key: list(value) if isinstance(value, list) else value for key, value in metadata.items()}
        for _ in range(rng.randint(1, 20)):
            place = rng.randrange(n)
            match rng.randrange(4):
                case 0:
                    damaged["tokenizer.ggml.tokens"][place] = rng.choice([*ODD_TEXTS, f"x{rng.random()}"])
                case 1:
                    damaged["tokenizer.ggml.token_type"][place] = rng.choice([-1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1])
                case 2:
                    damaged["tokenizer.ggml.scores"][place] = rng.choice(ODD_SCORES)
                case 3:
                    damaged["tokenizer.ggml.unknown_token_id"] = rng.choice([0, n - 1, n, 2**32 - 1])
        if rng.random() < 0.1:
            key = rng.choice(["tokens", "token_type", "scores"])
            del damaged[f"tokenizer.ggml.{key}"][rng.randrange(1, n) :]
        path.write_bytes(w.gguf(damaged))
        with contextlib.suppress(ModelFileError):
            use(gguf_tokenizer(GGUFFile.open(path)))


def test_o52_damaged_tokenizer_json(tmp_path: Path) -> None:
    alphabet = {chr(c): i for i, c in enumerate([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144)])}
    whole = {
        "version": "1.0",
        "added_tokens": [
            {"id": len(alphabet) + 1, "content": "<s>", "special": True, "rstrip": False, "lstrip": False}
            | {"single_word": False, "normalized": False}
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": alphabet | {"He": len(alphabet)}, "merges": [["H", "e"]]},
    }
    raw = json.dumps(whole, ensure_ascii=False).encode()
    path = tmp_path / "tokenizer.json"
    path.write_bytes(raw)
    use(folder_tokenizer(tmp_path))
    rng = random.Random(6)
    for _ in range(N_FOLDER):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(damaged))
            match rng.randrange(4):
                case 0:
                    damaged[place] = rng.randrange(256)
                case 1:
                    del damaged[place : place + rng.randint(1, 30)]
                case 2:
                    damaged[place:place] = rng.choice([b"null", b"{", b"]", b'"', b"-1", b"1e999", b"9" * 30])
                case 3:
                    del damaged[place:]
                    damaged += b"}"
        path.write_bytes(damaged)
        with contextlib.suppress(ModelFileError):
            use(folder_tokenizer(tmp_path))
