"""Models of a given shape with random weights: `synthetic:llama-1b@q4_1`.

They answer how fast a model will be before it is downloaded, and give tests a model of any family and size. One is
written as an ordinary GGUF file, so that everything else, other programs included, reads it like any other.

    synthetic:<shape>[,<number>=<value>...][@<type>]      synthetic:llama-8b,n_layers=4,vocab=32000@q8_0
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sixfold.config import SYNTHETIC_PREFIX
from sixfold.errors import ModelNotFound
from sixfold.model_file.architectures import ARCHITECTURES
from sixfold.model_file.gguf_writer import NO_STRINGS, NewTensor, write, write_outline
from sixfold.model_file.random_blocks import RANDOM_TYPES, random_blocks
from sixfold.model_file.tensor_types import F32, TENSOR_TYPES
from sixfold.sizes import size_text

__all__ = ["SHAPES", "Shape", "SyntheticModel", "cached", "is_synthetic", "list_cached", "remove_leftovers"]

_TYPE_DEFAULT = "q4_1"
_LOCK = "synthetic.lock"
"""In a cache folder: held by whoever writes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths of a decoder, as `ModelConfig` names them."""

    architecture: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    """Of one expert where there are experts."""
    vocab: int
    tied: int = 1
    context: int = 8192
    window: int = 0
    n_experts: int = 0
    n_experts_used: int = 0


SHAPES: dict[str, Shape] = {
    "tiny": Shape("llama", 2, 64, 2, 1, 32, 96, 512, context=512),
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256),
    "llama-3b": Shape("llama", 28, 3072, 24, 8, 128, 8192, 128256),
    "llama-8b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 0),
    "mistral-7b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 32768, 0),
    "mixtral-8x7b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 32000, 0, n_experts=8, n_experts_used=2),
    "qwen2-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936),
    "qwen2-1.5b": Shape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936),
    "qwen2-7b": Shape("qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 0),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 16, 8, 128, 6144, 151936),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728, 151936),
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 0),
    "qwen3moe-30b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, 0, n_experts=128, n_experts_used=8),
    "gemma2-2b": Shape("gemma2", 26, 2304, 8, 4, 256, 9216, 256000, window=4096),
    "gemma2-9b": Shape("gemma2", 42, 3584, 16, 8, 256, 14336, 256000, window=4096),
    "gemma3-270m": Shape("gemma3", 18, 640, 4, 1, 256, 2048, 262144, window=512),
    "gemma3-1b": Shape("gemma3", 26, 1152, 4, 1, 256, 6912, 262144, window=512),
    "gemma3-4b": Shape("gemma3", 34, 2560, 8, 4, 256, 10240, 262144, window=1024),
    "phi3-mini": Shape("phi3", 32, 3072, 32, 32, 96, 8192, 32064, 0, context=4096),
    "olmo2-1b": Shape("olmo2", 16, 2048, 16, 16, 128, 8192, 100352, 0, context=4096),
    "olmo2-7b": Shape("olmo2", 32, 4096, 32, 32, 128, 11008, 100352, 0, context=4096),
    "smollm3-3b": Shape("smollm3", 36, 2048, 16, 4, 128, 11008, 128256, context=65536),
}
"""Shapes by the name of the model that has them."""

_NUMBERS = {field.name for field in dataclasses.fields(Shape)} - {"architecture"}
_SIZE_MAX = 1 << 20
_LIMITS = {
    "n_layers": (1, 4096),
    "tied": (0, 1),
    "window": (0, _SIZE_MAX),
    "n_experts": (0, 4096),
    "n_experts_used": (0, 4096),
    "vocab": (259, _SIZE_MAX),  # every byte has a token
}
"""What a number can be, where that is not 1 to _SIZE_MAX."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def is_synthetic(name: str) -> bool:
    return name.startswith(SYNTHETIC_PREFIX)


def cached(
    name: str,
    cache: Path,
    check: Callable[[Path], None] = lambda outline: None,
    announce: Callable[[int], None] = lambda n_bytes: None,
) -> Path:
    """The file of a synthetic model in a cache folder; made if it is not there, by one process at a time.

    Args:
        check: is given the outline of a model that is not there; what it raises is passed on, and nothing is written.
        announce: is told the bytes of the weights just before they are written.

    Raises:
        ModelNotFound: the name is not understood.
        OSError: it cannot be written, or there is no room for it.
    """
    model = SyntheticModel.parse(name)
    path = model.place(cache)
    remove_leftovers(cache)
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory() as folder:
        check(model.outline(Path(folder)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (cache / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it when its process dies
        if not path.is_file():
            _unlink_parts(cache)
            needed, free = model.n_bytes, shutil.disk_usage(path.parent).free
            if free < needed:
                reason = f"it needs {size_text(needed)} of disk space; {size_text(free)} are free"
                raise OSError(errno.ENOSPC, reason)
            announce(needed)
            model.write(path)
    return path


def remove_leftovers(cache: Path) -> None:
    """Delete what killed processes have left of their files, unless a process is writing one."""
    with contextlib.suppress(OSError), (cache / _LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _unlink_parts(cache)


def _unlink_parts(cache: Path) -> None:
    for leftover in (cache / "synthetic").glob(".*.part"):
        leftover.unlink()


def list_cached(cache: Path) -> list[tuple[str, int]]:
    """(name, bytes of its file) of every synthetic model in a cache folder that can be read."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(cache / "synthetic"), key=lambda entry: entry.name):
            label, _, kind = entry.name.removesuffix(".gguf").rpartition("-")
            name = f"{SYNTHETIC_PREFIX}{label.replace('+', ',')}@{kind}"
            with contextlib.suppress(ModelNotFound):  # a file of somebody else's
                if SyntheticModel.parse(name).file_name == entry.name:
                    found.append((name, entry.stat().st_size))
    return found


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """A shape and the type of its matrices."""

    label: str
    """What stands between the prefix and the type."""
    shape: Shape
    ggml_type: int

    @classmethod
    def parse(cls, name: str) -> SyntheticModel:
        """Raises: ModelNotFound: there is no such shape, number or type; the message lists what there is."""
        label, _, kind = name.removeprefix(SYNTHETIC_PREFIX).partition("@")
        ggml_type = RANDOM_TYPES.get((kind or _TYPE_DEFAULT).lower())
        if ggml_type is None:
            raise ModelNotFound(f"{kind[:40]!r} is no type of synthetic weights; {', '.join(RANDOM_TYPES)} are")
        shape_name, *changes = label.split(",")
        if shape_name not in SHAPES:
            raise ModelNotFound(f"{shape_name[:40]!r} is no synthetic model; {', '.join(SHAPES)} are")
        numbers: dict[str, Any] = {}
        for change in changes:
            number, value = _change(change)
            if number in numbers:
                raise ModelNotFound(f"{number} is given twice")
            numbers[number] = value
        shape = dataclasses.replace(SHAPES[shape_name], **numbers)
        if bool(shape.n_experts) != bool(shape.n_experts_used):
            missing = "n_experts_used" if shape.n_experts else "n_experts"
            raise ModelNotFound(f"{missing} is missing: n_experts and n_experts_used belong together")
        return cls(label, shape, ggml_type)

    @property
    def file_name(self) -> str:
        return f"{self.label.replace(',', '+')}-{TENSOR_TYPES[self.ggml_type].name.lower()}.gguf"

    @property
    def n_bytes(self) -> int:
        """Of the weights."""
        return sum(tensor.n_bytes for tensor in self.tensors())

    def place(self, cache: Path) -> Path:
        """Its file in a cache folder."""
        return cache / "synthetic" / self.file_name

    def outline(self, folder: Path) -> Path:
        """The file without the weights: to be looked at, not to be computed with; it takes no space.

        Raises:
            OSError: it cannot be written.
        """
        path = folder / self.file_name
        write_outline(path, self.metadata(), self.tensors())
        return path

    def write(self, path: Path) -> Path:
        """Write the file; it appears when it is complete.

        Raises:
            OSError: it cannot be written.
        """
        return write(path, self.metadata(), self.tensors())

    def tensors(self) -> list[NewTensor]:
        s, entry = self.shape, ARCHITECTURES[self.shape.architecture]
        q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
        out = [self._matrix("token_embd.weight", s.vocab, s.hidden), _ones("output_norm.weight", s.hidden)]
        if not s.tied:
            out.append(self._matrix("output.weight", s.vocab, s.hidden))
        for i in range(s.n_layers):
            blk = f"blk.{i}.".__add__
            if entry.qk_norm != "projection":
                out += [_ones(blk("attn_norm.weight"), s.hidden), _ones(blk("ffn_norm.weight"), s.hidden)]
            if entry.post_norms:
                out += [_ones(blk(f"{name}.weight"), s.hidden) for name in ("post_attention_norm", "post_ffw_norm")]
            if entry.qk_norm != "none":
                sizes = (q, kv) if entry.qk_norm == "projection" else (s.head_dim, s.head_dim)
                out += [_ones(blk(f"attn_{x}_norm.weight"), n) for x, n in zip("qk", sizes, strict=True)]
            if entry.name == "phi3":
                out.append(self._matrix(blk("attn_qkv.weight"), q + 2 * kv, s.hidden))
            else:
                out += [
                    self._matrix(blk(f"attn_{x}.weight"), n, s.hidden) for x, n in zip("qkv", (q, kv, kv), strict=True)
                ]
            if entry.name == "qwen2":
                out += [_ones(blk(f"attn_{x}.bias"), n) for x, n in zip("qkv", (q, kv, kv), strict=True)]
            out.append(self._matrix(blk("attn_output.weight"), s.hidden, q))
            out += self._feed_forward(i)
        return out

    def _feed_forward(self, i: int) -> list[NewTensor]:
        s, blk = self.shape, f"blk.{i}.".__add__
        if s.n_experts:
            return [
                self._matrix(blk("ffn_gate_inp.weight"), s.n_experts, s.hidden, ggml_type=F32),
                self._matrix(blk("ffn_gate_exps.weight"), s.n_experts, s.ffn, s.hidden),
                self._matrix(blk("ffn_up_exps.weight"), s.n_experts, s.ffn, s.hidden),
                self._matrix(blk("ffn_down_exps.weight"), s.n_experts, s.hidden, s.ffn),
            ]
        if s.architecture == "phi3":
            first = [self._matrix(blk("ffn_up.weight"), 2 * s.ffn, s.hidden)]
        else:
            first = [self._matrix(blk(f"ffn_{x}.weight"), s.ffn, s.hidden) for x in ("gate", "up")]
        return [*first, self._matrix(blk("ffn_down.weight"), s.hidden, s.ffn)]

    def _matrix(self, name: str, *shape: int, ggml_type: int | None = None) -> NewTensor:
        number = self._type_of(name, shape[-1]) if ggml_type is None else ggml_type
        n_values = int(np.prod(shape, dtype=object))
        data = partial(random_blocks, name, number, n_values, shape[-1] ** -0.5)
        return NewTensor(name, number, shape, data)

    def _type_of(self, name: str, k: int) -> int:
        """Embedding and head keep 8 bits (6 beside the K types), as files of these types usually do."""
        wanted = TENSOR_TYPES[self.ggml_type].name
        if not name.startswith("blk.") and wanted.startswith(("Q4", "Q5")):
            wanted = "Q6_K" if wanted.endswith("K") else "Q8_0"
        for fallback in (wanted, "Q8_0", "F16"):
            if k % TENSOR_TYPES[RANDOM_TYPES[fallback.lower()]].block_values == 0:
                return RANDOM_TYPES[fallback.lower()]
        raise AssertionError("rows of any length can be F16")

    def metadata(self) -> dict[str, Any]:
        s = self.shape
        values: dict[str, Any] = {
            "block_count": s.n_layers,
            "context_length": s.context,
            "embedding_length": s.hidden,
            "feed_forward_length": s.ffn,
            "attention.head_count": s.n_heads,
            "attention.head_count_kv": s.n_kv_heads,
            "attention.key_length": s.head_dim,
            "attention.value_length": s.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": s.head_dim,
            "rope.freq_base": 1e6 if s.architecture in ("qwen2", "qwen3", "qwen3moe", "gemma3") else 500000.0,
            "vocab_size": s.vocab,
        }
        if s.window:
            values["attention.sliding_window"] = s.window
        if s.architecture == "gemma2":
            values |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        if s.n_experts:
            values |= {"expert_count": s.n_experts, "expert_used_count": s.n_experts_used}
            values["expert_feed_forward_length"] = s.ffn
        # The name does not tell the family: some readers take rules for vocabularies from it.
        head = {"general.architecture": s.architecture, "general.name": "synthetic", "general.quantization_version": 2}
        return head | {f"{s.architecture}.{key}": value for key, value in values.items()} | _vocabulary(s.vocab)


def _change(change: str) -> tuple[str, int]:
    """`hidden=256` -> ("hidden", 256)."""
    name, equals, value = change.partition("=")
    if name not in _NUMBERS or not equals:
        raise ModelNotFound(f"{change[:40]!r} changes nothing; write one of {', '.join(sorted(_NUMBERS))}=NUMBER")
    low, high = _LIMITS.get(name, (1, _SIZE_MAX))
    if re.fullmatch("[0-9]{1,7}", value) is None or not low <= int(value) <= high:
        raise ModelNotFound(f"{change[:40]!r} is out of range: {name} can be {low} to {high}")
    return name, int(value)


def _ones(name: str, size: int) -> NewTensor:
    return NewTensor(name, F32, (size,), lambda: [np.ones(size, "<f4")])


def _vocabulary(n_tokens: int) -> dict[str, Any]:
    """Control tokens of ChatML, every byte, then made-up words: drawn tokens read as words with spaces between."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = [chr(0x100 + i) for i in range(256 - len(printable))] + [chr(value) for value in printable]
    words = [_word(i) for i in range(max(n_tokens - len(control) - len(alphabet), 0))]
    tokens = [*control, *alphabet, *words][:n_tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": ([3] * len(control) + [1] * len(tokens))[:n_tokens],
        "tokenizer.ggml.merges": NO_STRINGS,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHAT_TEMPLATE,
    }


def _word(number: int) -> str:
    """A space (as byte-level vocabularies write it) and syllables that spell the number: all different."""
    syllables = ""
    while True:
        number, rest = divmod(number, 100)
        syllables = "bdfghjklmnprstvwxzcq"[rest // 5] + "aeiou"[rest % 5] + syllables
        if number == 0:
            return "Ġ" + syllables
