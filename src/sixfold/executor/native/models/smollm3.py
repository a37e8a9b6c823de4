"""SmolLM3: a Llama in which every fourth layer has no rotary positions."""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(model.attention(i), model.dense(i))
