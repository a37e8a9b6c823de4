"""What the scheduler counts. Nothing here ever falls but what tells of the newest step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Totals since the engine's start; their meaning is told in `messages.EngineStats`."""

    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    wasted_rows: int = 0
    mixed_steps: int = 0
    prefilled_tokens: int = 0
    decode_rows: int = 0
    step_prefill_tokens: int = 0
    step_decode_rows: int = 0
    finished: Counter[str] = field(default_factory=Counter)
