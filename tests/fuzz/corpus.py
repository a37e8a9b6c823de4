"""Small sound models of every kind, as a user has them on disk: what the fuzzers begin with."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import gguf_writer as w
from tests.fixtures import tiny_models as tiny
from tests.fuzz.mutations import Parts

from sixfold.model_file.gguf_writer import NewTensor
from sixfold.model_file.random_blocks import RANDOM_TYPES
from sixfold.model_file.synthetic import SyntheticModel

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message['content'] | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Files = Mapping[str, bytes]
"""Name within a folder -> content."""


def _whole(tensor: NewTensor) -> NewTensor:
    data = tensor.data
    if callable(data):
        data = b"".join(bytes(piece) for piece in data())
    return NewTensor(tensor.name, tensor.ggml_type, tensor.shape, bytes(data))


def family_gguf(family: str, kind: int) -> Parts:
    cfg = tiny.config(family)
    metadata = tiny.gguf_metadata(cfg) | tiny.vocabulary(cfg["vocab_size"])
    return Parts(metadata, tuple(tiny.gguf_tensors(cfg, tiny.weights(family), kind)))


def quantized_gguf(kind: str) -> Parts:
    """One layer of every type that can be computed with, and a chat template."""
    model = SyntheticModel.parse(f"synthetic:tiny,n_layers=1,hidden=256,ffn=256,n_heads=2,vocab=300,context=128@{kind}")
    return Parts(model.metadata(), tuple(map(_whole, model.tensors())))


def sentence_piece_gguf() -> Parts:
    vocabulary = json.loads((GOLDEN / "llama-spm.json").read_text())["vocabulary"]
    model = SyntheticModel.parse(f"synthetic:tiny,n_layers=1,vocab={len(vocabulary['tokenizer.ggml.tokens'])}@q8_0")
    metadata = {key: value for key, value in model.metadata().items() if not key.startswith("tokenizer.")}
    template = {"tokenizer.chat_template": TEMPLATE.replace("<|im_end|>", "</s>")}
    return Parts(metadata | vocabulary | template, tuple(map(_whole, model.tensors())))


def merging_gguf() -> Parts:
    vocabulary = w.tiny_vocabulary()
    n_tokens = len(vocabulary["tokenizer.ggml.tokens"])
    model = SyntheticModel.parse(f"synthetic:tiny,n_layers=1,vocab={n_tokens},tied=0@f16")
    return Parts(model.metadata() | vocabulary, tuple(map(_whole, model.tensors())))


def split_gguf() -> dict[str, bytes]:
    whole = quantized_gguf("q4_1")
    half = len(whole.tensors) // 2
    names = [f"m-0000{i + 1}-of-00002.gguf" for i in range(2)]
    split = {"split.count": 2, "split.tensors.count": len(whole.tensors)}
    first = Parts({**whole.metadata, **split, "split.no": 0}, whole.tensors[:half])
    second = Parts({**split, "split.no": 1}, whole.tensors[half:])
    return {names[0]: first.encode(), names[1]: second.encode()}


def folder(family: str, *, dtype: str, shards: int, tokenizer: Callable[[], dict[str, Any]]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as parent:
        path = tiny.folder(Path(parent), family, dtype=dtype, shards=shards)
        files = {file.name: file.read_bytes() for file in path.iterdir()}
    texts: dict[str, Any] = {
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "add_bos_token": True,
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "x"}],
        },
        "special_tokens_map.json": {"unk_token": "<unk>"},
        "generation_config.json": {"eos_token_id": [2], "temperature": 0.5, "top_k": 5, "do_sample": True},
    }
    return files | {name: json.dumps(value).encode() for name, value in texts.items()}


def _added(contents: Mapping[str, int]) -> list[dict[str, Any]]:
    flags = {"special": True, "rstrip": False, "lstrip": False, "single_word": False, "normalized": False}
    return [{"id": i, "content": content} | flags for content, i in contents.items()]


_SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_start|>": 3, "<|im_end|>": 4}


def byte_level_json() -> dict[str, Any]:
    characters = [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]
    vocab = _SPECIAL | {c: len(_SPECIAL) + i for i, c in enumerate(characters)}
    vocab["he"] = len(vocab)
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": _added(_SPECIAL),
        "pre_tokenizer": step,
        "decoder": step,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "e"]]},
    }


def sentence_piece_json() -> dict[str, Any]:
    texts = [*(f"<0x{value:02X}>" for value in range(128)), "▁", *map(chr, range(0x61, 0x7B)), "he"]
    vocab = _SPECIAL | {text: len(_SPECIAL) + i for i, text in enumerate(texts)}
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": _added(_SPECIAL),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                space,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "e"]], "byte_fallback": True, "unk_token": "<unk>"},
    }


@functools.cache
def ggufs() -> dict[str, Parts]:
    found = {
        family: family_gguf(family, (tiny.F32, tiny.F16, tiny.BF16)[i % 3]) for i, family in enumerate(tiny.FAMILIES)
    }
    found |= {kind: quantized_gguf(kind) for kind in RANDOM_TYPES}
    return found | {"sentence pieces": sentence_piece_gguf(), "merges": merging_gguf()}


@functools.cache
def folders() -> dict[str, dict[str, bytes]]:
    """Split GGUF files are among them: several files, too."""
    found: dict[str, dict[str, bytes]] = {"split": split_gguf()}
    for i, family in enumerate(tiny.FAMILIES):
        tokenizer = (byte_level_json, sentence_piece_json)[i % 2]
        found[family] = folder(family, dtype=("F32", "F16", "BF16")[i % 3], shards=1 + i % 2, tokenizer=tokenizer)
    return found
