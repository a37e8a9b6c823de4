"""Qwen 2 and 2.5: a Llama with biases of q, k and v."""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i, bias=True), model.dense(i))
