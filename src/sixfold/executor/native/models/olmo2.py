"""OLMo 2 and 3: norms only behind attention and feed-forward, and one norm over all of q and all of k.

OLMo 3 has windows in three layers of four.
"""

from __future__ import annotations

from sixfold.executor.native.models.loader import Loader
from sixfold.executor.native.models.parts import Layer

__all__ = ["layer"]


def layer(model: Loader, i: int) -> Layer:
    return Layer(
        model.attention(i, norm=False, qk_norm=True, post_norm=True),
        model.dense(i, norm=False, post_norm=True),
    )
