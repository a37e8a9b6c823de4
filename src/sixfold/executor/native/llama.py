"""The llama family: RMSNorm, grouped-query attention with rotary positions, SwiGLU, an optionally tied head.

In GGUF the rows of q and k are permuted so that rotation pairs are neighbours (2i, 2i + 1): "interleaved" here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.errors import ModelFileError
from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import Embedding, KVCache, PackedMatrix, Program, Tensor, ThreadPool
from sixfold.model_file.gguf import GGUFFile

__all__ = ["LlamaModel", "LlamaShape", "load"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The numbers of a model, from the file's metadata."""

    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    """Tokens: what the head computes, and what can be drawn. The embedding may have more rows, as padding."""
    context: int
    """Positions that the model was made for."""
    rope_base: float
    eps: float

    @classmethod
    def of(cls, file: GGUFFile) -> LlamaShape:
        """Raises: ModelFileError: another architecture, a missing key, numbers that do not fit together."""
        architecture = file.text("general.architecture")
        if architecture != "llama":
            raise ModelFileError(f"models of architecture {architecture!r} are not supported; `llama` is")
        n_heads, hidden = file.u32("llama.attention.head_count"), file.u32("llama.embedding_length")
        if n_heads == 0 or hidden % 32:
            raise ModelFileError(f"{n_heads} heads and a hidden size of {hidden} are not supported")
        head_dim = file.u32("llama.attention.key_length", hidden // n_heads)
        shape = cls(
            n_layers=file.u32("llama.block_count"),
            hidden=hidden,
            n_heads=n_heads,
            n_kv_heads=file.u32("llama.attention.head_count_kv", n_heads),
            head_dim=head_dim,
            ffn=file.u32("llama.feed_forward_length"),
            vocab=_vocab(file),
            context=file.u32("llama.context_length"),
            rope_base=file.f32("llama.rope.freq_base", 10000.0),
            eps=file.f32("llama.attention.layer_norm_rms_epsilon"),
        )
        shape._check(file)
        return shape

    def bytes_per_block(self, dtype: str) -> int:
        """Bytes of one KV block of 16 tokens over all layers; dtype is `bfloat16` or `float32`."""
        element = 4 if dtype == "float32" else 2
        return self.n_layers * self.n_kv_heads * 2 * kernels.BLOCK_SIZE * self.head_dim * element

    def _check(self, file: GGUFFile) -> None:
        if self.n_layers == 0 or self.context == 0:
            raise ModelFileError("the model has no layers or no context")
        if not (self.rope_base > 0 and 0 <= self.eps < 1):
            raise ModelFileError(f"a rope base of {self.rope_base} with an epsilon of {self.eps} makes no sense")
        if self.n_kv_heads == 0 or self.n_heads % self.n_kv_heads or self.n_heads // self.n_kv_heads > 16:
            raise ModelFileError(f"{self.n_heads} heads over {self.n_kv_heads} KV heads are not supported")
        if self.head_dim % 32 or not 32 <= self.head_dim <= 512:
            raise ModelFileError(f"a head dimension of {self.head_dim} is not supported; multiples of 32 are")
        if file.u32("llama.rope.dimension_count", self.head_dim) != self.head_dim:
            raise ModelFileError("rotary positions over a part of the head are not supported")
        scaling = file.text("llama.rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise ModelFileError(f"rope scaling of type {scaling!r} is not supported")
        if file.u32("llama.expert_count", 0):
            raise ModelFileError("mixture-of-experts models are not supported")


def _vocab(file: GGUFFile) -> int:
    """Tokens of the tokenizer, or rows of the embedding where the file has no tokenizer."""
    rows = file.tensor("token_embd.weight").shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return rows
    n_tokens = len(file.strings("tokenizer.ggml.tokens"))
    if n_tokens > rows:
        raise ModelFileError(f"the vocabulary has {n_tokens} tokens, the embedding only {rows} rows")
    return n_tokens


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: Float32
    qkv: PackedMatrix
    proj: PackedMatrix
    ffn_norm: Float32
    gate_up: PackedMatrix
    down: PackedMatrix


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Packed weights; programs are recorded from them."""

    shape: LlamaShape
    pool: ThreadPool
    embedding: Embedding
    layers: list[_Layer]
    output_norm: Float32
    head: PackedMatrix
    rope: tuple[Float32, Float32]

    @property
    def bytes_weights(self) -> int:
        """Bytes of packed matrices, read once per decode step."""
        return self.head.n_bytes + sum(
            m.n_bytes for layer in self.layers for m in (layer.qkv, layer.proj, layer.gate_up, layer.down)
        )

    def bytes_per_block(self, dtype: str) -> int:
        """Bytes of one KV block of 16 tokens over all layers."""
        return self.shape.bytes_per_block(dtype)

    def kv_cache(self, n_blocks: int, dtype: str = "bfloat16") -> KVCache:
        """KV memory of `n_blocks` blocks; pages are taken from the system when they are first written."""
        s = self.shape
        return KVCache(s.n_layers, s.n_kv_heads, s.head_dim, n_blocks, dtype == "float32")

    def program(self, kv: KVCache, max_tokens: int) -> Program:
        """Record the forward pass for steps of at most `max_tokens` tokens."""
        s = self.shape
        p = Program(self.pool, kv, max_tokens, s.hidden)
        p.embed(self.embedding)
        for i, layer in enumerate(self.layers):
            p.norm_qkv_rope_write(
                i, layer.attn_norm, layer.qkv, s.n_heads, s.n_kv_heads, s.head_dim, *self.rope, "interleaved", s.eps
            )
            p.attention(i, s.head_dim**-0.5)
            p.proj_residual(layer.proj)
            p.norm_gateup_act(layer.ffn_norm, layer.gate_up, "silu", s.eps)
            p.down_residual(layer.down)
        p.final_norm_head(self.output_norm, self.head, s.eps)
        p.finalize()
        return p


def load(file: GGUFFile, pool: ThreadPool, *, activations: str = "int8", max_positions: int = 0) -> LlamaModel:
    """Pack the file's weights with the pool's threads. The embedding is read in place: the file must stay open.

    Args:
        activations: `int8`, or `float32` for reference checks.
        max_positions: rows of the rope tables; 0: the model's context.

    Raises:
        ModelFileError: a tensor is missing, unknown, or of a type or shape that is not supported.
    """
    return _Loader(file, pool, activations).load(max_positions)


class _Loader:
    """Takes tensors out of the file and knows in the end which ones nobody asked for."""

    def __init__(self, file: GGUFFile, pool: ThreadPool, activations: str) -> None:
        self._file, self._pool, self._activations = file, pool, activations
        self._taken: set[str] = set()

    def load(self, max_positions: int) -> LlamaModel:
        shape = LlamaShape.of(self._file)
        table = self._rows("token_embd.weight", shape)
        head = self._rows("output.weight", shape) if "output.weight" in self._file.tensors else table
        model = LlamaModel(
            shape=shape,
            pool=self._pool,
            embedding=kernels.pack_embedding(table),
            layers=[self._layer(f"blk.{i}.", shape) for i in range(shape.n_layers)],
            output_norm=self._vector("output_norm.weight", shape.hidden),
            head=self._pack([head]),
            rope=self._rope(shape, max_positions or shape.context),
        )
        unknown = sorted(set(self._file.tensors) - self._taken)
        if unknown:
            raise ModelFileError(f"tensor {unknown[0]!r} has no meaning in a llama model")
        return model

    def _layer(self, prefix: str, s: LlamaShape) -> _Layer:
        q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
        return _Layer(
            attn_norm=self._vector(prefix + "attn_norm.weight", s.hidden),
            qkv=self._pack(
                [
                    self._tensor(prefix + "attn_q.weight", q, s.hidden),
                    self._tensor(prefix + "attn_k.weight", kv, s.hidden),
                    self._tensor(prefix + "attn_v.weight", kv, s.hidden),
                ]
            ),
            proj=self._pack([self._tensor(prefix + "attn_output.weight", s.hidden, q)]),
            ffn_norm=self._vector(prefix + "ffn_norm.weight", s.hidden),
            gate_up=self._pack(
                [
                    self._tensor(prefix + "ffn_gate.weight", s.ffn, s.hidden),
                    self._tensor(prefix + "ffn_up.weight", s.ffn, s.hidden),
                ],
                interleave=True,
            ),
            down=self._pack([self._tensor(prefix + "ffn_down.weight", s.hidden, s.ffn)]),
        )

    def _rope(self, s: LlamaShape, n_positions: int) -> tuple[Float32, Float32]:
        factors: npt.NDArray[np.floating] | None = None
        if "rope_freqs.weight" in self._file.tensors:
            factors = self._vector("rope_freqs.weight", s.head_dim // 2)
        if self._file.text("llama.rope.scaling.type", "none") == "linear":
            scale = np.float64(self._file.f32("llama.rope.scaling.factor"))
            if not scale > 0:
                raise ModelFileError("the rope scaling factor is not positive")
            factors = (np.ones(s.head_dim // 2) if factors is None else factors) * scale
        return kernels.rope_tables(n_positions, s.head_dim, s.rope_base, factors)

    def _rows(self, name: str, shape: LlamaShape) -> Tensor:
        """The rows of the vocabulary, without padding."""
        info = self._file.tensor(name)
        whole = self._tensor(name, info.shape[0], shape.hidden)
        if whole.n_rows < shape.vocab:
            raise ModelFileError(f"tensor {name!r} has {whole.n_rows} rows for {shape.vocab} tokens")
        row_bytes = len(whole.data) // whole.n_rows
        return Tensor(info.ggml_type, whole.data[: shape.vocab * row_bytes], shape.vocab, shape.hidden)

    def _tensor(self, name: str, n_rows: int, k: int) -> Tensor:
        info = self._file.tensor(name)
        if info.shape != (n_rows, k):
            raise ModelFileError(f"tensor {name!r} has shape {info.shape}, not {(n_rows, k)}")
        self._taken.add(name)
        return Tensor(info.ggml_type, self._file.data(name), n_rows, k)

    def _vector(self, name: str, size: int) -> Float32:
        info = self._file.tensor(name)
        if info.shape != (size,) or info.ggml_type != 0:
            raise ModelFileError(f"tensor {name!r} is not a vector of {size} float32 values")
        self._taken.add(name)
        return self._file.data(name).view(np.float32).copy()

    def _pack(self, tensors: list[Tensor], *, interleave: bool = False) -> PackedMatrix:
        try:
            return kernels.pack_matrix(self._pool, tensors, interleave=interleave, activations=self._activations)
        except ValueError as e:
            raise ModelFileError(str(e)) from e
