"""Compiles a grammar to see whether it can be used, before anything waits for it.

The check runs against a vocabulary of single bytes: it costs nothing to make, and what can be wrong with a grammar does
not depend on the tokens. (Where a limit is hit later, with the model's own tokens, that request fails.)
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from sixfold.errors import InvalidRequest
from sixfold.structured.vocabulary import Vocabulary, make_tokenizer

if TYPE_CHECKING:
    from llguidance import LLParserLimits

__all__ = ["check_grammar", "limits"]

MAX_REASON_CHARS = 160


@functools.cache
def limits() -> LLParserLimits:
    """What one grammar may cost, in the library's units. About 50 ms of compiling; 1 ms of one mask's automaton."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        step_max_items=5_000,
        max_items_in_row=200,
        max_lexer_states=5_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )


@functools.cache
def _bytes_tokenizer() -> Any:
    return make_tokenizer(Vocabulary([*(bytes([value]) for value in range(256)), b"<end>"], {256}, [256]))


def check_grammar(grammar: str, *, param: str) -> None:
    """Compile a grammar and ask for its first mask. Takes milliseconds; lets other threads run.

    Raises:
        InvalidRequest: the library refuses it, or it is beyond a limit.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_bytes_tokenizer(), grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise _refusal(matcher.get_error(), param)


def _refusal(reason: str, param: str) -> InvalidRequest:
    reason = " ".join(reason.split("<state>")[0].split())
    unsupported = re.search(r"Unimplemented keys|not supported|only supported|not implemented", reason)
    if "NoExtension" in reason:
        reason = "nothing fits it"
    shown = reason if len(reason) <= MAX_REASON_CHARS else reason[: MAX_REASON_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    code = "unsupported_schema" if unsupported else "invalid_schema"
    return InvalidRequest(f"{param}: {shown}", param=param, code=code)
