"""Names for the integers that cross borders, so that they cannot be mixed up."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", int)
"""Server-made, 63 random bits. What a client calls its request is a label and never a key."""

TokenId = NewType("TokenId", int)
BlockId = NewType("BlockId", int)
SlotIndex = NewType("SlotIndex", int)
StepId = NewType("StepId", int)
EngineEpoch = NewType("EngineEpoch", int)
