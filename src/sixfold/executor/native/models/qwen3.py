"""Qwen 3: a Llama with a norm of each head of q and k."""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i, qk_norm=True, bias=model.config.qkv_bias), model.dense(i))
