"""Answers taken apart, however their text is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sixfold.text.answer_parser import PartsParser, Thinking
from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Part, Reasoning
from sixfold.text.call_format import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat
from sixfold.text.call_syntax import HEAD_CHARS_MAX

Joined = tuple[str, str, list[tuple[str, str]]]

NAMES = frozenset({"f", "g"})


def joined(parts: Sequence[Part]) -> Joined:
    content = reasoning = ""
    calls: list[list[str]] = []
    for part in parts:
        match part:
            case Content():
                assert part.text
                content += part.text
            case Reasoning():
                assert part.text
                reasoning += part.text
            case CallBegin():
                assert part.index == len(calls)
                calls.append([part.name, ""])
            case CallArguments():
                assert part.index == len(calls) - 1
                assert part.text
                calls[-1][1] += part.text
    return content, reasoning, [(name, arguments) for name, arguments in calls]


def parsed(calls: CallFormat | None, pieces: Sequence[str], thinking: Thinking = "no", **options: bool) -> Joined:
    parser = PartsParser(calls, NAMES, thinking=thinking, **options)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    found = joined(parts)
    assert parser.n_calls == len(found[2])
    return found


CASES: list[tuple[CallFormat | None, str, Joined]] = [
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"tz": "CET", "h": 24}}\n</tool_call>\n\nDone.',
        ("Let me see.\nDone.", "", [("f", '{"city": "Oslo"}'), ("g", '{"tz": "CET", "h": 24}')]),
    ),
    (
        HERMES,
        '<tool_call>nope</tool_call> x <tool_call>{"arguments": {"a": "}"}, "name": "g"}</tool_call>',
        ("<tool_call>nope</tool_call> x", "", [("g", '{"a": "}"}')]),
    ),
    (HERMES, 'a <tool_call>{"name": "f", "argu', ("a ", "", [])),
    (HERMES, 'a <tool_call>{"name": "f", "arguments": {"x": "', ("a", "", [("f", '{"x": "')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}', ('<tool_call>{"name": "f", "arguments": [1]}', "", [])),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud800\\"}"}',
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud800\\"}"}', "", []),
    ),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', ("", "", [("f", "{}")])),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "\\\\\\"}<"}, "id": {"x": 1}}</tool_call>!',
        ("!", "", [("f", '{"a": "\\\\\\"}<"}')]),
    ),
    (HERMES, '{"name": "f", "arguments": {}}', ('{"name": "f", "arguments": {}}', "", [])),
    (HERMES, " a <tool <b> \n", (" a <tool <b> \n", "", [])),
    (
        LLAMA,
        '<|python_tag|>{"name": "f", "parameters": {"a": [1, {"b": 2}]}}; {"name": "g", "parameters": {}}',
        ("", "", [("f", '{"a": [1, {"b": 2}]}'), ("g", "{}")]),
    ),
    (LLAMA, '{"name": "Bob", "parameters": {}}', ('{"name": "Bob", "parameters": {}}', "", [])),
    (LLAMA, '{"n": 1}', ('{"n": 1}', "", [])),
    (LLAMA, 'It is {"name": "f", "parameters": {}}', ('It is {"name": "f", "parameters": {}}', "", [])),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        ("", "", [("f", '{"x": 1}'), ("g", "{}")]),
    ),
    (
        MISTRAL_NAMED,
        'ok [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{"y": {}}',
        ("ok", "", [("f", '{"x": 1}'), ("g", '{"y": {}}')]),
    ),
    (GENERIC, '```json\n{"name": "f", "arguments": {"x": 1}}\n```', ("", "", [("f", '{"x": 1}')])),
    (GENERIC, 'Sure:\n```json\n{"x": 1}\n```\n', ('Sure:\n```json\n{"x": 1}\n```\n', "", [])),
    (GENERIC, ' [{"name": "f", "arguments": null}]', ("", "", [("f", "{}")])),
    (GENERIC, "[1] is a reference", ("[1] is a reference", "", [])),
    (GENERIC, '{"type": "function", "name": "f", "parameters": {}} more', ("more", "", [("f", "{}")])),
    (None, " <tool_call> \n", (" <tool_call> \n", "", [])),
]


@pytest.mark.parametrize(("calls", "text", "expected"), CASES)
@pytest.mark.parametrize(
    ("thinking", "thought"),
    [
        ("no", ""),
        ("maybe", ""),
        ("maybe", "\n<think>\nhm <b> </thin \n</think>\n\n"),
        ("open", "hm <b> </thin</think>"),
    ],
)
def test_O27_the_parts_do_not_depend_on_the_pieces(
    calls: CallFormat | None, text: str, expected: Joined, thinking: Thinking, thought: str
) -> None:
    whole = thought + text
    content, _, found = expected
    reasoning = "hm <b> </thin" if thought else ""
    if thought:
        content = content.lstrip()
    assert parsed(calls, [whole], thinking) == (content, reasoning, found)
    dice = random.Random(len(whole))
    for cut in range(len(whole) + 1):
        assert parsed(calls, [whole[:cut], whole[cut:]], thinking) == (content, reasoning, found)
    for _ in range(50):
        pieces, place = [], 0
        while place < len(whole):
            size = dice.randint(1, dice.choice([1, 2, 5, 20]))
            pieces.append(whole[place : place + size])
            place += size
        assert parsed(calls, pieces, thinking) == (content, reasoning, found)


def test_arguments_go_out_as_they_come() -> None:
    parser = PartsParser(HERMES, NAMES)
    assert parser.push('<tool_call>{"name": "f", ') == []
    assert parser.push('"arguments": ') == []
    assert parser.push('{"a') == [CallBegin(0, "f"), CallArguments(0, '{"a')]
    assert parser.push('": 1') == [CallArguments(0, '": 1')]
    assert parser.push("}}</tool_call>") == [CallArguments(0, "}")]
    assert parser.finish() == []


def test_a_head_is_bounded() -> None:
    long = '<tool_call>{"x": "' + "a" * HEAD_CHARS_MAX + '", "name": "f", "arguments": {}}</tool_call>'
    for pieces in ([long], list(long)):
        assert parsed(HERMES, pieces) == (long, "", [])
    nested = '<tool_call>{"name": "f", "arguments": "' + "[" * (HEAD_CHARS_MAX - 100) + '"}'
    assert parsed(HERMES, [nested]) == (nested, "", [])


def test_one_call_and_sure_calls() -> None:
    two = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}'
    assert parsed(LLAMA, [two], one_call=True) == ("", "", [("f", "{}")])
    assert parsed(LLAMA, ['{"name": "f'], sure=True) == ("", "", [])
    assert parsed(LLAMA, ['{"name": "f']) == ('{"name": "f', "", [])
