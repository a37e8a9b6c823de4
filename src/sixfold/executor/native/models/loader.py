"""Takes a model's tensors out of its file and packs them into the parts that a family asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sixfold.errors import ModelFileError
from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import PackedMatrix, RopeTable, ThreadPool
from sixfold.executor.native.models.parts import Attention, Dense, Experts
from sixfold.model_file import Matrix, ModelFile, RopeScaling

__all__ = ["Loader"]

Float32 = npt.NDArray[np.float32]


class Loader:
    """One model's file while it is loaded. Errors are `ModelFileError`s that name the file and the tensor."""

    def __init__(self, file: ModelFile, pool: ThreadPool, activations: str, n_positions: int) -> None:
        """
        Args:
            activations: `int8`, or `float32` for reference checks.
            n_positions: rows of the rope tables.
        """
        self.file, self.pool, self.config = file, pool, file.config
        self._activations, self._n_positions = activations, n_positions
        self._ropes: list[tuple[RopeScaling | None, RopeTable]] = []

    def attention(
        self,
        i: int,
        *,
        norm: bool = True,
        bias: bool = False,
        qk_norm: bool = False,
        output_bias: bool = False,
        post_norm: bool = False,
    ) -> Attention:
        """A layer's attention. Flags: which parts the family has; `qk_norm`'s extent is the configuration's."""
        c, prefix = self.config, f"blk.{i}."
        q, kv = c.q_size, c.kv_size
        names = [prefix + name for name in ("attn_q", "attn_k", "attn_v")]
        whole = c.qk_norm == "projection"
        return Attention(
            norm=self._vector(prefix + "attn_norm.weight", c.hidden) if norm else None,
            qkv=self._pack(
                [self.file.matrix(f"{n}.weight", r, c.hidden) for n, r in zip(names, (q, kv, kv), strict=True)]
            ),
            bias=np.concatenate([self._vector(f"{n}.bias", r) for n, r in zip(names, (q, kv, kv), strict=True)])
            if bias
            else None,
            q_norm=self._vector(prefix + "attn_q_norm.weight", q if whole else c.head_dim) if qk_norm else None,
            k_norm=self._vector(prefix + "attn_k_norm.weight", kv if whole else c.head_dim) if qk_norm else None,
            rope=self._rope(i),
            n_heads=c.n_heads,
            n_kv_heads=c.n_kv_heads,
            head_dim=c.head_dim,
            scale=c.attention_scale,
            window=c.windows[i],
            softcap=c.attention_softcap,
            proj=self._pack([self.file.matrix(prefix + "attn_output.weight", c.hidden, q)]),
            proj_bias=self._vector(prefix + "attn_output.bias", c.hidden) if output_bias else None,
            post_norm=self._vector(prefix + "post_attention_norm.weight", c.hidden) if post_norm else None,
            eps=c.eps,
        )

    def dense(self, i: int, *, norm: bool = True, post_norm: bool = False) -> Dense:
        """A layer's feed-forward part."""
        c, prefix = self.config, f"blk.{i}."
        return Dense(
            norm=self._vector(prefix + "ffn_norm.weight", c.hidden) if norm else None,
            gate_up=self._pack(
                [self.file.matrix(f"{prefix}ffn_{kind}.weight", c.ffn, c.hidden) for kind in ("gate", "up")],
                interleave=True,
            ),
            down=self._pack([self.file.matrix(prefix + "ffn_down.weight", c.hidden, c.ffn)]),
            post_norm=self._vector(prefix + "post_ffw_norm.weight", c.hidden) if post_norm else None,
            activation=c.activation,
            eps=c.eps,
        )

    def experts(self, i: int) -> Experts:
        """A layer's feed-forward part where it has experts."""
        c, prefix = self.config, f"blk.{i}."

        def each(kind: str, n_rows: int, k: int) -> list[Matrix]:
            return self.file.expert_matrices(f"{prefix}ffn_{kind}_exps.weight", c.n_experts, n_rows, k)

        gates, ups = each("gate", c.expert_ffn, c.hidden), each("up", c.expert_ffn, c.hidden)
        return Experts(
            norm=self._vector(prefix + "ffn_norm.weight", c.hidden),
            router=self._pack([self.file.matrix(prefix + "ffn_gate_inp.weight", c.n_experts, c.hidden)], plain=True),
            experts=[
                (self._pack([gate, up], interleave=True), self._pack([down]))
                for gate, up, down in zip(gates, ups, each("down", c.hidden, c.expert_ffn), strict=True)
            ],
            n_used=c.n_experts_used,
            renormalize=c.renormalize_experts,
            activation=c.activation,
            eps=c.eps,
        )

    def output_norm(self) -> Float32:
        return self._vector("output_norm.weight", self.config.hidden)

    def embedding_and_head(self) -> tuple[kernels.Embedding, PackedMatrix]:
        c = self.config
        table = self.file.matrix("token_embd.weight", c.vocab, c.hidden)
        head = self._pack([table if c.tied else self.file.matrix("output.weight", c.vocab, c.hidden)])
        try:
            return kernels.pack_embedding(table, finite=c.tied), head
        except ValueError as e:
            raise ModelFileError(f"{self.file.name}: {e}") from e

    def _rope(self, i: int) -> RopeTable:
        """A layer's rotation; layers with equal ones share a table."""
        c = self.config
        scaling = (c.rope_local if c.windows[i] else c.rope) if c.rotated[i] else None
        for known, table in self._ropes:
            if known == scaling:
                return table
        # Without positions one pair is rotated by nothing, which changes no bit.
        with self.file.naming_faults():
            frequencies = scaling.inverse_frequencies(c.rope_dims, self._n_positions) if scaling else np.zeros(1)
        factor = scaling.attention_factor if scaling else 1.0
        table = kernels.rope_table(self._n_positions, frequencies, c.rope_style, factor=factor)
        self._ropes.append((scaling, table))
        return table

    def _vector(self, name: str, size: int) -> Float32:
        return self.file.vector(name, size)

    def _pack(self, matrices: Sequence[Matrix], *, interleave: bool = False, plain: bool = False) -> PackedMatrix:
        try:
            return kernels.pack_matrix(
                self.pool, matrices, interleave=interleave, activations="float32" if plain else self._activations
            )
        except ValueError as e:
            raise ModelFileError(f"{self.file.name}: {e}") from e
