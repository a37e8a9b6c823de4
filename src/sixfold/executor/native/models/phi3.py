"""Phi 3 and 4: a Llama whose q, k, v and gate, up are stored fused; long contexts by LongRoPE."""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i), model.dense(i))
