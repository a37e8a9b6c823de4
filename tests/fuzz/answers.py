"""Answers' texts, cut anywhere: the joined parts are those of the whole, nothing is raised, and the work is linear."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from tests.fuzz import fuzzing
from tests.fuzz.fuzzing import damaged_text, spliced

from sixfold.text.answer_parser import PartsParser, Thinking
from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Part, Reasoning
from sixfold.text.call_format import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat
from sixfold.text.call_syntax import HEAD_CHARS_MAX

Case = tuple[int, Thinking, bool, bool, str, tuple[int, ...]]
"""(format, thinking, one_call, sure, text, places where it is cut)"""

REGRESSIONS: list[Case] = [
    (5, "maybe", False, True, "```json" * 5000, ()),
    # Empty pieces, behind many blanks that are held back.
    (0, "open", False, False, "So it is." + " " * 30_000, (9, *(30_000,) * 30_000)),
]
FORMATS: tuple[CallFormat | None, ...] = (None, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, GENERIC)
NAMES = ("f", "g", "get_weather")

CORPUS = [
    'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>\n\nDone.',
    '<tool_call>{"arguments": {"a": "}\\""}, "name": "g"}</tool_call> x <tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<|python_tag|>{"name": "f", "parameters": {"a": [1, {"b": 2}]}}; {"name": "g", "parameters": {}}',
    '{"type": "function", "name": "f", "parameters": {}} more',
    '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
    'ok [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{"y": {}}',
    'Sure:\n```json\n{"name": "f", "arguments": {"x": 1}}\n```\n```tool_code\n{"x": 1}\n```',
    '[{"name": "f", "arguments": null}]',
    "<think>\nhm <b> </thin \n</think>\n\nSo <tool <b> it is.",
]
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]x")
MARKS += (
    "```json",
    "```",
    '{"name": "f", ',
    '"arguments": {',
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    "\\u",
    "\\ud800",
    ",",
    ";",
)
MARKS += (" ", "\n", "\t", "\x00", "\u2028", "\x1c", "é", "\U0001f600", "null", "1e", " " * 50, "{" * 40, '"a' * 30)


def case(rng: Random) -> Case:
    text = rng.choice(CORPUS)
    for _ in range(rng.randint(0, 2)):
        text = spliced(text, rng.choice(CORPUS), rng) if rng.random() < 0.5 else text + rng.choice(CORPUS)
    text = damaged_text(text, rng, MARKS)
    if rng.random() < 0.02:
        text += rng.choice(MARKS) * rng.choice((500, 5000))
    cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.choice((1, 3, len(text)))))
    thinking: Thinking = rng.choice(("no", "maybe", "open"))
    return rng.randrange(len(FORMATS)), thinking, rng.random() < 0.2, rng.random() < 0.2, text, tuple(cuts)


def _counted(name: str) -> Any:
    def state(self: CountingParser) -> bool:
        self.n_looked_at += len(self._buffer)
        going_on: bool = getattr(PartsParser, name)(self)
        return going_on

    return state


class CountingParser(PartsParser):
    """Counts the characters that its states are given."""

    n_looked_at = 0

    _start, _reasoning, _text, _head = map(_counted, ("_start", "_reasoning", "_text", "_head"))
    _arguments, _rest, _behind = map(_counted, ("_arguments", "_rest", "_behind"))

    def _content(self, text: str) -> None:
        self.n_looked_at += len(text)
        super()._content(text)


def most_looked_at(n_chars: int) -> int:
    """Linear: a head may be read again with each of its characters."""
    return 20 * HEAD_CHARS_MAX + n_chars * (HEAD_CHARS_MAX // 2 + 40)


def check(one: Case) -> None:
    number, thinking, one_call, sure, text, cuts = one

    def parsed(pieces: list[str]) -> tuple[str, str, list[list[str]]]:
        parser = CountingParser(FORMATS[number], NAMES, one_call=one_call, sure=sure, thinking=thinking)
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        assert parser.n_looked_at <= most_looked_at(len(text)), "more than linear work"
        found = joined(parts)
        assert parser.n_calls == len(found[2])
        assert not one_call or len(found[2]) <= 1
        return found

    whole = parsed([text])
    assert parsed([text[a:b] for a, b in zip((0, *cuts), (*cuts, len(text)), strict=True)]) == whole
    content, reasoning, calls = whole
    assert all(name in NAMES for name, _ in calls)
    given = len(content) + len(reasoning) + sum(len(arguments) for _, arguments in calls)
    assert given <= len(text) + 3 * len(calls) + 1, "more came out than went in"


def joined(parts: list[Part]) -> tuple[str, str, list[list[str]]]:
    content = reasoning = ""
    calls: list[list[str]] = []
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallBegin(index, name):
                assert index == len(calls)
                calls.append([name, ""])
            case CallArguments(index, text):
                assert index == len(calls) - 1 and text
                calls[-1][1] += text
    return content, reasoning, calls


if __name__ == "__main__":
    sys.exit(fuzzing.main(sys.modules[__name__]))  # type: ignore[arg-type]
