"""Llama, Mistral, Mixtral and what follows them: a norm before attention and before feed-forward, SwiGLU.

Biases (some descendants), windows (Mistral) and experts (Mixtral) are there when the file has them. In GGUF the rows of
q and k are permuted so that rotation pairs are neighbours.
"""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    c = model.config
    return Layer(
        model.attention(i, bias=c.qkv_bias, output_bias=c.output_bias),
        model.experts(i) if c.n_experts else model.dense(i),
    )
