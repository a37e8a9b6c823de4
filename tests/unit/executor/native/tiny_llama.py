"""A tiny random llama for differential tests: the same tensors as a native program and as the NumPy reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import KVCache, Matrix, PackedMatrix, Program, ThreadPool
from sixfold.executor.native.reference import ReferenceMatrix, ReferenceProgram
from sixfold.executor.native.reference_types import quantize_weights

EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    attn_norm: npt.NDArray[np.float32]
    qkv: list[Matrix]
    proj: Matrix
    ffn_norm: npt.NDArray[np.float32]
    gate_up: list[Matrix]
    down: Matrix


class TinyLlama:
    """Two layers, 70 tokens of vocabulary (not a multiple of 16)."""

    def __init__(
        self,
        ggml_type: int,
        *,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 32,
        style: str = "interleaved",
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.hidden, self.ffn, self.vocab = 64, 96, 70
        self.heads, self.kv_heads, self.head_dim, self.style = heads, kv_heads, head_dim, style

        def matrix(n: int, k: int, scale: float = 1.0) -> Matrix:
            return quantize_weights(ggml_type, rng.standard_normal((n, k)).astype(np.float32) * scale * k**-0.5)

        def norm() -> npt.NDArray[np.float32]:
            return rng.uniform(0.5, 1.5, self.hidden).astype(np.float32)

        q, kv = heads * head_dim, kv_heads * head_dim
        self.embedding = self.head = matrix(self.vocab, self.hidden, 8.0)
        self.layers = [
            Layer(
                norm(),
                [matrix(q, self.hidden), matrix(kv, self.hidden), matrix(kv, self.hidden)],
                matrix(self.hidden, q),
                norm(),
                [matrix(self.ffn, self.hidden), matrix(self.ffn, self.hidden)],
                matrix(self.hidden, self.ffn),
            )
            for _ in range(2)
        ]
        self.output_norm = norm()
        self.frequencies = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
        self.rope = kernels.rope_table(1024, self.frequencies, style)

    def kv_cache(self, n_blocks: int = 80, dtype: str = "bfloat16") -> KVCache:
        return KVCache(len(self.layers), self.kv_heads, self.head_dim, n_blocks, dtype == "float32")

    def program(self, pool: ThreadPool, kv: KVCache, *, activations: str = "int8", max_tokens: int = 64) -> Program:
        def pack(tensors: Sequence[Matrix], interleave: bool = False) -> PackedMatrix:
            return kernels.pack_matrix(pool, tensors, interleave=interleave, activations=activations)

        p = Program(pool, kv, max_tokens, self.hidden)
        p.embed(kernels.pack_embedding(self.embedding, finite=True))  # a test may want it otherwise
        for i, layer in enumerate(self.layers):
            p.norm_qkv_rope_write(
                i,
                layer.attn_norm,
                pack(layer.qkv),
                self.heads,
                self.kv_heads,
                self.head_dim,
                self.rope,
                EPS,
            )
            p.attention(i, self.head_dim**-0.5)
            p.proj_residual(pack([layer.proj]))
            p.norm_gateup_act(layer.ffn_norm, pack(layer.gate_up, True), "silu", EPS)
            p.down_residual(pack([layer.down]))
        p.final_norm_head(self.output_norm, pack([self.head]), EPS)
        p.finalize()
        return p

    def reference(
        self, token_ids: Sequence[int], *, activations: str = "int8", bfloat16: bool = True
    ) -> npt.NDArray[np.float64]:
        """Logits [tokens, vocabulary] of one sequence."""
        r = self.run_reference(token_ids, activations=activations, bfloat16=bfloat16)
        head = ReferenceMatrix.of([self.embedding], activations=activations)
        return r.final_norm_head(self.output_norm, head, EPS)

    def run_reference(self, token_ids: Sequence[int], *, activations: str, bfloat16: bool) -> ReferenceProgram:
        """All layers over one sequence."""
        r = ReferenceProgram()
        angle = np.arange(len(token_ids))[:, None] * self.frequencies
        r.embed(self.embedding, token_ids)

        def of(tensors: Sequence[Matrix], interleave: bool = False) -> ReferenceMatrix:
            return ReferenceMatrix.of(tensors, interleave=interleave, activations=activations)

        for layer in self.layers:
            r.norm_qkv_rope_write(
                layer.attn_norm,
                of(layer.qkv),
                self.heads,
                self.kv_heads,
                np.cos(angle).astype(np.float32),
                np.sin(angle).astype(np.float32),
                self.style,
                EPS,
                bfloat16=bfloat16,
            )
            r.attention(self.head_dim**-0.5)
            r.proj_residual(of([layer.proj]))
            r.norm_gateup_act(layer.ffn_norm, of(layer.gate_up, True), EPS)
            r.down_residual(of([layer.down]))
        return r


@dataclass
class Row:
    """A sequence's part of a step: tokens `ids` at positions from `start`, over the block table `slot`."""

    ids: Sequence[int]
    start: int
    slot: int


def run(
    program: Program,
    tables: npt.NDArray[np.int32],
    rows: Sequence[Row],
    *,
    greedy: bool = False,
    hidden: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """One step over `rows`; logits (or argmax alone) of every token: logits, ids, NaN flags. `hidden` [tokens, hidden]
    gets every token's hidden state."""
    token_ids = np.array([t for r in rows for t in r.ids], np.int32)
    positions = np.array([r.start + i for r in rows for i in range(len(r.ids))], np.int32)
    row_of_token = np.array([i for i, r in enumerate(rows) for _ in r.ids], np.int32)
    n = len(token_ids)
    ids, nan = np.zeros(n, np.int32), np.zeros(n, np.uint8)
    logits = np.full((0 if greedy else n, program.vocab), 7.0, np.float32)
    program.run(
        token_ids,
        positions,
        row_of_token,
        np.array([r.slot for r in rows], np.int32),
        tables,
        np.arange(n, dtype=np.int32),
        np.full(n, greedy, np.uint8),
        ids,
        nan,
        logits,
        None if hidden is None else np.arange(n, dtype=np.int32),
        hidden,
    )
    return logits, ids, nan


def block_tables(n_slots: int, per_slot: int, seed: int = 1) -> npt.NDArray[np.int32]:
    """[slots, blocks] of distinct block ids in random order."""
    order = np.random.default_rng(seed).permutation(n_slots * per_slot)
    return order.reshape(n_slots, per_slot).astype(np.int32)
