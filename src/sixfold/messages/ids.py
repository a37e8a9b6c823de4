"""Names for the integers that cross borders, so that they cannot be mixed up.

Those that a process writes into shared memory as they come have bounds, which the decoders keep: what does not fit
there is no message, and must not end whoever reads it.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

RequestId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Server-made, 63 random bits. What a client calls its request is a label and never a key."""

TokenId = NewType("TokenId", int)
BlockId = NewType("BlockId", int)
SlotIndex = NewType("SlotIndex", int)
StepId = Annotated[int, Meta(ge=0, le=(1 << 48) - 1)]
"""Rises by 1 within an epoch."""
EngineEpoch = NewType("EngineEpoch", int)
