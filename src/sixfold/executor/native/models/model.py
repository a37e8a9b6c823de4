"""A loaded model: packed weights, and the program that is recorded from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.errors import ModelFileError
from sixfold.executor.native.kernels import Embedding, KVCache, PackedMatrix, Program, ThreadPool
from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer
from sixfold.executor.native.supported import check_supported
from sixfold.model_file import ModelConfig, ModelFile

__all__ = ["Family", "Model"]

Family = Callable[[Loader, int], Layer]
"""A family's description: the layer of an index, asked of the loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Packed weights; programs are recorded from them."""

    config: ModelConfig
    pool: ThreadPool
    file: ModelFile
    """The embedding is read in place: its map must stay."""
    embedding: Embedding
    layers: list[Layer]
    output_norm: npt.NDArray[np.float32]
    head: PackedMatrix

    @classmethod
    def of(
        cls, file: ModelFile, family: Family, pool: ThreadPool, *, activations: str = "int8", max_positions: int = 0
    ) -> Model:
        """Pack a file's weights with the pool's threads.

        Args:
            max_positions: rows of the rope tables; 0: the model's context.

        Raises:
            ModelFileError: numbers that the kernels cannot compute with; a tensor is missing, of a type or shape that
                is not supported, or has no meaning in this family.
        """
        with file.naming_faults():
            check_supported(file.config)
        loader = Loader(file, pool, activations, max_positions or file.config.context)
        embedding, head = loader.embedding_and_head()
        file.release()
        layers = []
        for i in range(file.config.n_layers):
            layers.append(family(loader, i))
            file.release()
        output_norm = loader.output_norm()
        if unused := file.unused():
            raise ModelFileError(
                f"{file.name}: tensor {unused[0]!r} has no meaning in a model of architecture"
                f" {file.config.architecture}"
            )
        return cls(
            config=file.config,
            pool=pool,
            file=file,
            embedding=embedding,
            layers=layers,
            output_norm=output_norm,
            head=head,
        )

    @property
    def vocab(self) -> int:
        """Tokens that can be drawn."""
        return self.head.n

    @property
    def bytes_weights(self) -> int:
        """Bytes of packed matrices."""
        return self.head.n_bytes + sum(la.attention.n_bytes + la.feed_forward.n_bytes for la in self.layers)

    def kv_cache(self, n_blocks: int, dtype: str = "bfloat16") -> KVCache:
        """KV memory of `n_blocks` blocks; pages are taken from the system when they are first written."""
        c = self.config
        return KVCache(c.n_layers, c.n_kv_heads, c.head_dim, n_blocks, dtype == "float32")

    def program(self, kv: KVCache, max_tokens: int) -> Program:
        """Record the forward pass for steps of at most `max_tokens` tokens."""
        c = self.config
        p = Program(self.pool, kv, max_tokens, c.hidden)
        p.embed(self.embedding, c.embedding_scale)
        for i, layer in enumerate(self.layers):
            layer.attention.record(p, i)
            layer.feed_forward.record(p)
        p.final_norm_head(self.output_norm, self.head, c.eps, softcap=c.final_softcap)
        p.finalize()
        return p
