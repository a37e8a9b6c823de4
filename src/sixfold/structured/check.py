"""Compiles a grammar to see whether it can be used, before anything waits for it.

The check runs against a vocabulary of single bytes: it costs nothing to make, and what can be wrong with a grammar does
not depend on the tokens. (Where a limit is hit later, with the model's own tokens, that request fails.)
"""

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING, Any

from sixfold.errors import InvalidRequest
from sixfold.structured.vocabulary import Vocabulary, make_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

__all__ = ["check_grammar", "limits"]

MAX_REASON_CHARS = 160
COMPILE_S = 0.05
COMPILE_S_PER_CHAR = 1e-6
"""CPU time that a grammar may take here; the worker needs about as long to compile it, and its step waits."""
ATTEMPTS = 3
"""A machine that stands still for a moment, as a virtual one does, counts it as CPU time of whoever ran. No grammar is
refused for that: the quickest of several attempts counts."""
N_STEPS = 32
"""Bytes that the check goes on for: some limits are met only behind the first."""

_EXPRESSION = re.compile(r"invalid regex (?P<quoted>.*) \(in regex\): .*\nerror: (?P<why>[^\n]+)", re.DOTALL)
_SOURCE = re.compile(r"\n *\d+ \| ")
"""The library shows where in the grammar's text it was: of a text of several lines that is one, and of an expression
one that no caller wrote."""

MAX_QUOTED_CHARS = 64

_REASONS = {
    "NoExtension": "nothing fits it",
    "oneOf constraints are not supported": "oneOf is supported where types or constants show that no value fits two",
    "Unable to determine if regex is empty": "its patterns are too complex together",
}


@functools.cache
def limits() -> LLParserLimits:
    """What one grammar may cost, in the library's units. A row has an item for each thing that may come next, and an
    object has several for each optional property."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        step_max_items=6_000,
        max_items_in_row=2_500,
        max_lexer_states=120_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )


@functools.cache
def _bytes_tokenizer() -> Any:
    return make_tokenizer(Vocabulary([*(bytes([value]) for value in range(256)), b"<end>"], {256}, [256]))


def check_grammar(grammar: str, *, param: str) -> None:
    """Compile a grammar and follow it for some bytes. Takes milliseconds; lets other threads run.

    Raises:
        InvalidRequest: the library refuses it, or it is beyond a limit.
    """
    from llguidance import LLMatcher

    tokenizer, bounds = _bytes_tokenizer(), limits()
    for _ in range(ATTEMPTS):
        began = time.thread_time()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=bounds)
        _follow(matcher)
        took = time.thread_time() - began
        if matcher.is_error():
            raise _refusal(matcher.get_error(), param)
        if took <= COMPILE_S + COMPILE_S_PER_CHAR * len(grammar):
            return
    raise InvalidRequest(f"{param}: it takes too long to compile", param=param, code="grammar_too_large")


def _follow(matcher: LLMatcher) -> None:
    """Take bytes that the grammar allows, each time another one of them, until one ends it or there were enough."""
    for step in range(N_STEPS):
        words = int.from_bytes(matcher.compute_bitmask(), "little") & (1 << 256) - 1
        if matcher.is_error() or not words:
            return
        allowed = [value for value in range(256) if words >> value & 1]
        matcher.consume_token(allowed[step * 7 % len(allowed)])


def _refusal(reason: str, param: str) -> InvalidRequest:
    reason = reason.split("<state>")[0]
    if expression := _EXPRESSION.search(reason):
        quoted = expression["quoted"]
        shown = (
            quoted if len(quoted) <= MAX_QUOTED_CHARS else quoted[: MAX_QUOTED_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
        )
        reason = f"the expression {shown} cannot be used: {expression['why']}"
    reason = " ".join(_SOURCE.split(reason)[0].split())
    unsupported = re.search(r"Unimplemented keys|not supported|only supported|not implemented", reason)
    reason = next((ours for theirs, ours in _REASONS.items() if theirs in reason), reason)
    shown = reason if len(reason) <= MAX_REASON_CHARS else reason[: MAX_REASON_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    code = "unsupported_schema" if unsupported else "invalid_schema"
    return InvalidRequest(f"{param}: {shown}", param=param, code=code)
