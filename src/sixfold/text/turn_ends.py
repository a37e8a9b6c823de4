"""Marks that end a turn, by their text: what files do not declare, or declare wrongly."""

from __future__ import annotations

__all__ = ["ALWAYS_CONTROL", "END_MARKS"]

END_MARKS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endofturn|>", "<|end_of_text|>")
"""Chat templates close a turn with these. One that the model's own template writes ends a turn, declared or not."""

ALWAYS_CONTROL = frozenset({*END_MARKS, "</s>", "<eos>", "<|endoftext|>"})
"""Of these a text never makes a token by itself, even where a file calls them user defined."""
