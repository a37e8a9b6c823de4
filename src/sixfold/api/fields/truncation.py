"""`truncate_prompt_tokens`: a prompt that its caller wants shortened. Without the field nothing is ever cut.

Usage, `prompt_token_ids`, `echo` and log-probabilities are those of the tokens that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sixfold.errors import InvalidRequest
from sixfold.sampling_params import MAX_TOKENS
from sixfold.text import Tokenizer

__all__ = ["Truncation"]


class _Asking(Protocol):
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None


@dataclass(frozen=True)
class Truncation:
    """How long a prompt may be, and which of its ends goes.

    Args:
        n_tokens: kept at most.
        from_left: the last tokens are kept, otherwise the first.
    """

    n_tokens: int
    from_left: bool = True

    @classmethod
    def of(
        cls, request: _Asking, *, max_model_len: int, max_tokens: int | None, is_answered: bool = True
    ) -> Truncation | None:
        """What the request asks for; None: nothing.

        Args:
            max_tokens: of the answer, as far as the caller said.
            is_answered: the context must have room for an answer, of one token at least.

        Raises:
            InvalidRequest: out of range, or a side without a length.
        """
        asked = request.truncate_prompt_tokens
        if asked is None:
            if request.truncation_side is not None:
                raise InvalidRequest("truncation_side needs truncate_prompt_tokens", param="truncation_side")
            return None
        if asked != -1 and not 1 <= asked <= MAX_TOKENS:
            raise InvalidRequest(
                f"truncate_prompt_tokens must be -1 or between 1 and {MAX_TOKENS}, not {asked}",
                param="truncate_prompt_tokens",
            )
        n_tokens = asked if asked != -1 else max_model_len - max(int(is_answered), max_tokens or 0)
        if n_tokens < 1:
            raise InvalidRequest(
                f"truncate_prompt_tokens: the context, {max_model_len} tokens, has no room for a prompt",
                param="truncate_prompt_tokens",
            )
        return cls(n_tokens, request.truncation_side != "right")

    def apply(self, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
        """The tokens that are left. A BOS that the model wants stays in front, and counts."""
        if len(ids) <= self.n_tokens:
            return list(ids)
        if not self.from_left:
            return list(ids[: self.n_tokens])
        keeps_bos = tokenizer.adds_bos and ids[0] == tokenizer.bos_id
        n_last = self.n_tokens - keeps_bos
        return [*ids[:keeps_bos], *(ids[-n_last:] if n_last else ())]
