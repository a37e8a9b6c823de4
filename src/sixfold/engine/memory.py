"""What a model needs in memory, from its description alone: nothing is loaded.

    total = weights + blocks of the KV cache

Weights are held in the file's own precision. The KV cache holds, for each token of each running sequence and each
layer, one key and one value of every KV head.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sixfold.config import BLOCK_SIZE
from sixfold.errors import ConfigError
from sixfold.model_file import ModelConfig, ModelFile

__all__ = ["MemoryNeed", "check_fits", "kv_bytes_per_token", "memory_available", "memory_need"]

_ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes, and what they are for."""

    weights: int
    kv_per_token: int
    context: int
    """Tokens of each sequence."""
    sequences: int
    """At the same time."""
    kv: int
    """Of all sequences at their full length."""

    @property
    def total(self) -> int:
        return self.weights + self.kv

    def __str__(self) -> str:
        return (
            f"{_size(self.total)}: {_size(self.weights)} of weights and {_size(self.kv)} of KV cache "
            f"({self.sequences} x {self.context:,} tokens of {self.kv_per_token:,} bytes)"
        )


def kv_bytes_per_token(config: ModelConfig, kv_cache_dtype: str) -> int:
    """Of all layers together."""
    return 2 * config.n_layers * config.kv_size * _ELEMENT_BYTES[kv_cache_dtype]


def memory_need(
    model: ModelFile, *, max_model_len: int = 0, max_num_seqs: int = 1, kv_cache_dtype: str = "bfloat16"
) -> MemoryNeed:
    """What a model needs.

    Args:
        max_model_len: tokens of a sequence; 0: the model's own context.
        max_num_seqs: sequences of that length.
    """
    context = max_model_len or model.config.context
    per_token = kv_bytes_per_token(model.config, kv_cache_dtype)
    blocks = max_num_seqs * -(-context // BLOCK_SIZE)
    return MemoryNeed(model.bytes_weights, per_token, context, max_num_seqs, blocks * BLOCK_SIZE * per_token)


def check_fits(need: MemoryNeed, available: int, name: str) -> None:
    """
    Raises:
        ConfigError: it does not fit; the message has the figures and what to change.
    """
    if need.total <= available:
        return
    free = f"{_size(available)} are free"
    if need.weights > available:
        raise ConfigError(f"{name} does not fit: its weights need {_size(need.weights)}, {free}", param="model")
    raise ConfigError(
        f"{name} does not fit: it needs {need}, {free}; lower --max-model-len, --max-num-seqs or --num-kv-blocks",
        param="--max-model-len",
    )


def memory_available() -> int:
    """Bytes that can be taken without swapping, within what the control group grants."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        granted, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return free
    return min(free, max(0, granted - used))


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"
