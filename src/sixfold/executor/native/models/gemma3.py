"""Gemma 3 (text): norms before and behind attention and feed-forward, a norm of each head of q and k, GeGLU.

Five layers of six see a window and have rotary positions of their own; the embedding is scaled by sqrt(hidden).
"""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i, qk_norm=True, post_norm=True), model.dense(i, post_norm=True))
