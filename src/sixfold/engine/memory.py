"""What a model needs in memory, from its description alone: nothing is loaded.

    total = weights + KV cache + working memory of the worker + the other processes of a server

Weights are held in the file's own precision. The embedding is read where it lies in the file, also where it is the head
and is packed as that besides. The KV cache holds, for each token of each running sequence and each layer, one key and
one value of every KV head.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from sixfold.config import BLOCK_SIZE, Config
from sixfold.engine.free_memory import FreeMemory
from sixfold.engine.resolve import served_context
from sixfold.errors import DoesNotFit
from sixfold.model_file import TENSOR_TYPES, ModelConfig, ModelFile
from sixfold.sizes import size_text

__all__ = ["MemoryNeed", "check_fits", "kv_bytes_per_token", "memory_need"]

_ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}
_MB = 1 << 20
_WORKER_BYTES = 49 * _MB
"""A worker without a model: interpreter and libraries."""
_WEIGHTS_PER_ROUNDING = 64
"""Packed weights end amid large pages: about 1 MB is lost of each 64."""
_CONTROL_BYTES = 35 * _MB
"""Supervisor and engine together, what they share counted once."""
_API_BYTES = 75 * _MB
"""An API process with its tokenizer."""
_SEGMENT_TOKENS, _SEGMENT_ROWS, _SEGMENTS_OF_A_THREAD = 256, 16, 4
"""Partial results of attention that threads keep: `native/kernels/program.cc`."""


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
    working: int
    """Tables and buffers of the worker, and the process itself."""
    processes: int
    """All others."""

    @property
    def worker(self) -> int:
        return self.weights + self.kv + self.working

    @property
    def total(self) -> int:
        return self.worker + self.processes

    def with_blocks(self, blocks: int) -> MemoryNeed:
        """With so many blocks of KV cache, whatever sequences share them."""
        n_tokens = blocks * BLOCK_SIZE
        return replace(self, context=n_tokens, sequences=1, kv=n_tokens * self.kv_per_token)

    def __str__(self) -> str:
        return (
            f"{size_text(self.total)}: {size_text(self.weights)} of weights, {size_text(self.kv)} of KV cache "
            f"({self.sequences} x {self.context:,} tokens of {self.kv_per_token:,} bytes), {size_text(self.working)} "
            f"for the worker itself and {size_text(self.processes)} for the other processes"
        )


def kv_bytes_per_token(config: ModelConfig, kv_cache_dtype: str) -> int:
    """Of all layers together."""
    return 2 * config.n_layers * config.kv_size * _ELEMENT_BYTES[kv_cache_dtype]


def memory_need(model: ModelFile, config: Config) -> MemoryNeed:
    """What a model needs when `max_num_seqs` sequences reach `max_model_len` (0: the model's context).

    Raises:
        ConfigError: `max_model_len` is more than that.
    """
    context = served_context(config, model.config.context)
    sequences = config.scheduler.max_num_seqs
    per_token = kv_bytes_per_token(model.config, config.cache.kv_cache_dtype)
    weights = _weights(model, config.executor.activations)
    working = _WORKER_BYTES + weights // _WEIGHTS_PER_ROUNDING
    return MemoryNeed(
        weights=weights,
        kv_per_token=per_token,
        context=context,
        sequences=sequences,
        kv=sequences * -(-context // BLOCK_SIZE) * BLOCK_SIZE * per_token,
        working=working + _tables(model.config, context, sequences) + _buffers(model.config, config, context),
        processes=_CONTROL_BYTES + config.api.api_server_count * _API_BYTES,
    )


def check_fits(need: MemoryNeed, free: FreeMemory, name: str) -> None:
    """
    Raises:
        DoesNotFit: the message has the figures and what to change.
    """
    if need.total <= free.n_bytes:
        return
    left = f"{size_text(free.n_bytes)} are {free.source}"
    if need.total - need.kv > free.n_bytes:
        raise DoesNotFit(
            f"{name} does not fit: its weights need {size_text(need.weights)} and the processes "
            f"{size_text(need.working + need.processes)}, {left}",
            param="model",
        )
    raise DoesNotFit(
        f"{name} does not fit: it needs {need}, {left}; lower --max-model-len, --max-num-seqs, --num-kv-blocks or "
        "--kv-cache-memory",
        param="--max-model-len",
    )


def _weights(model: ModelFile, activations: str) -> int:
    """Of the packed matrices, and of the embedding beside them."""
    total = 0
    for name, ggml_type, n_values in model.stored_types():
        kind = TENSOR_TYPES[ggml_type]
        packed = n_values // kind.block_values * (kind.block_bytes + (4 if kind.block_values == 256 else 0))
        if activations == "float32" and kind.block_values > 1:
            packed = 4 * n_values
        is_embedding = name == "token_embd.weight"
        total += packed if not is_embedding or model.config.tied else 0
        total += n_values // kind.block_values * kind.block_bytes if is_embedding else 0
    return total


def _tables(c: ModelConfig, context: int, sequences: int) -> int:
    """Cosines and sines of positions; tokens, blocks and logits of every slot."""
    n_ropes = 1 if c.rope == c.rope_local or not any(c.windows) or all(c.windows) else 2
    rope = n_ropes * context * c.rope_dims * 4
    slots = sequences * (4 * (context + 1) + 4 * -(-context // BLOCK_SIZE))
    return rope + slots + sequences * c.vocab * 4


def _buffers(c: ModelConfig, config: Config, context: int) -> int:
    """Of a step: activations as float32, which are larger than those of 8 bits; partial results of attention."""
    tokens, threads = config.scheduler.max_num_batched_tokens, config.executor.threads or len(os.sched_getaffinity(0))
    ffn = (2 * c.hidden + c.expert_ffn) * c.n_experts_used if c.n_experts else c.ffn
    floats = 2 * c.hidden + max(c.hidden, c.q_size) + ffn + 3 * c.q_size + 2 * c.kv_size
    segments = -(-context // _SEGMENT_TOKENS) if threads > 1 else 0
    parts = _SEGMENTS_OF_A_THREAD * threads * segments * _SEGMENT_ROWS * (c.head_dim + 2)
    return 4 * (tokens * floats + parts)
