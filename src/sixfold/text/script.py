"""What a script of the scripted executor says: texts, token ids, and where to fail."""

from __future__ import annotations

from collections.abc import Sequence

from sixfold.errors import InvalidRequest
from sixfold.text.tokenizer import Tokenizer

__all__ = ["ENGINE_CRASH", "FAULT", "WORKER_CRASH", "WORKER_HANG", "script_ids"]

FAULT = -1
"""In a script: the model produces no usable logits here."""
WORKER_CRASH = -2
"""In a script: the worker process fails here."""
ENGINE_CRASH = -3
"""In a script: the worker answers here with what it must never answer, and the engine process fails over it."""
WORKER_HANG = -4
"""In a script: the worker process does nothing more from here on."""
_FAULTS = (FAULT, WORKER_CRASH, ENGINE_CRASH, WORKER_HANG)


def script_ids(script: Sequence[str | int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of a script: a text stands for its tokens (control tokens by their literal), a number for itself.

    Raises:
        InvalidRequest: a text has no token, or a number is neither a token id nor one of the faults above.
    """
    ids: list[int] = []
    for i, entry in enumerate(script):
        found = [entry] if isinstance(entry, int) else tokenizer.encode(entry, parse_control=True, add_bos=False)
        if not found or (found[0] not in _FAULTS and tokenizer.first_unknown(found) is not None):
            raise InvalidRequest(f"script[{i}] has no token in this vocabulary", param=f"script[{i}]")
        ids += found
    return tuple(ids)
