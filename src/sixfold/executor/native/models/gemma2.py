"""Gemma 2: norms before and behind attention and feed-forward, GeGLU, soft caps of attention and logits.

Every other layer sees a window; the embedding is scaled by sqrt(hidden).
"""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i, post_norm=True), model.dense(i, post_norm=True))
