"""The grammar of an answer that must have calls, or whose calls must be right: exactly what the parser reads.

    required, named         [reasoning] call {separator call}
    auto, a strict tool     [reasoning] text {opener call-without-opener text}
    with response_format    [reasoning] (answer | call {separator call})

The arguments follow the tool's JSON schema. What the template of a thinking model lets the model write first is free
text up to `</think>`. A marker that is a control token of the model stands in the grammar by its id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sixfold.errors import InvalidRequest
from sixfold.structured import check_grammar, embedded_schema
from sixfold.text.answer_parser import THINK_BEGIN, THINK_END, Thinking
from sixfold.text.call_format import CallFormat

__all__ = ["MAX_FORCED_CALLS", "EnforcedTool", "answer_grammar", "call_grammar", "strict_grammar"]

MAX_FORCED_CALLS = 16
"""Of one answer that must have calls: a model that is made to call does not always find an end."""

_OWN_KEYS = frozenset({"type", "properties", "required", "$defs", "definitions", "$schema", "title", "description"})
_FREE_TEXT = "/(?s:.*)/"


class EnforcedTool(NamedTuple):
    """A tool in a grammar."""

    name: str
    parameters: Mapping[str, Any] | None
    """JSON schema; None: any object."""
    field: str
    """Of the schema, for errors."""


def call_grammar(
    calls: CallFormat,
    tools: Sequence[EnforcedTool],
    *,
    one: bool,
    thinking: Thinking,
    control: Mapping[str, int],
    or_grammar: str = "",
) -> str:
    """An answer of nothing but calls.

    Args:
        one: a single call.
        control: literals of the model's control tokens -> ids.
        or_grammar: the answer may follow this grammar instead.

    Raises:
        InvalidRequest: a schema cannot be enforced; `param` is the tool's field.
    """

    def rules(marks: _Marks) -> list[str]:
        more = "" if one else f" ({marks.text(_separator(calls))} call){{0,{MAX_FORCED_CALLS - 1}}}"
        begin, end = ("[TOOL_CALLS][", "]") if calls.name == "mistral" else ("", "")
        all_calls = f"{marks.text(begin)} call{more} {marks.text(end)}"
        either = "(@answer | all_calls)" if or_grammar else "all_calls"
        return [
            f"start: {_thought(thinking)} {either}",
            f"all_calls: {all_calls}",
            f"call: {marks.text(_opener(calls))} body",
            *_body(calls, tools, marks),
            *_thought_rules(thinking, marks),
        ]

    return _checked(rules, control, or_grammar)


def strict_grammar(
    calls: CallFormat, tools: Sequence[EnforcedTool], *, thinking: Thinking, control: Mapping[str, int]
) -> str:
    """Any text, in which whatever an opener begins is a call. For formats with one opener, and no bare calls.

    Raises:
        InvalidRequest: see `call_grammar`.
    """
    opener = next(iter(calls.openers))

    def rules(marks: _Marks) -> list[str]:
        if opener in marks.control:
            text = [f"start: {_thought(thinking)} TEXT ({marks.text(opener)} body TEXT)*", f"TEXT: {_FREE_TEXT}"]
        else:
            text = [
                f"start: {_thought(thinking)} (text_before body)* TEXT",
                f"text_before[suffix={json.dumps(opener)}]: {_FREE_TEXT}",
                f"TEXT: {_FREE_TEXT} & ~/(?s:.*){_escaped(opener)}(?s:.*)/",
            ]
        return [*text, *_body(calls, tools, marks), *_thought_rules(thinking, marks)]

    return _checked(rules, control, "")


def answer_grammar(grammar: str, *, thinking: Thinking, control: Mapping[str, int]) -> str:
    """A grammar that holds for what follows the reasoning."""
    if thinking == "no":
        return grammar
    marks = _Marks(control)
    return _assembled([f"start: {_thought(thinking)} @answer", *_thought_rules(thinking, marks)], grammar)


class _Marks:
    """Writes text as terms of a grammar: control tokens by their ids, the rest as literals."""

    def __init__(self, control: Mapping[str, int]) -> None:
        marks = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", THINK_BEGIN, THINK_END)
        self.control = {mark: control[mark] for mark in marks if mark in control}

    def text(self, text: str) -> str:
        """Terms for a text; "" for none."""
        terms = []
        while text:
            place, mark = min(
                ((text.index(mark), mark) for mark in self.control if mark in text), default=(len(text), "")
            )
            if place:
                terms.append(json.dumps(text[:place], ensure_ascii=False))
            if mark:
                terms.append(f"<[{self.control[mark]}]>")
            text = text[place + len(mark) :]
        return " ".join(terms)


def _opener(calls: CallFormat) -> str:
    """What the grammar makes a call begin with."""
    if (calls.bare and calls.in_template) or calls.name == "mistral":
        return ""
    return next(iter(calls.openers))


def _separator(calls: CallFormat) -> str:
    if calls.name == "mistral":
        return ", "
    if calls.name == "mistral named":
        return ""
    return "; " if calls.name == "llama" else "\n"


def _body(calls: CallFormat, tools: Sequence[EnforcedTool], marks: _Marks) -> list[str]:
    """A call behind its opener."""
    if calls.name == "mistral named":
        heads = [f"{tool.name}[ARGS]" for tool in tools]
        before, after = "", ""
    else:
        heads = [f'{tool.name}", "{calls.arguments}": ' for tool in tools]
        closer = calls.openers.get(_opener(calls), "")
        before, after = ('\n{"name": "', "}\n" + closer) if closer else ('{"name": "', "}")
    choices = " | ".join(f"{marks.text(head)} args_{i}" for i, head in enumerate(heads))
    rules = [f"body: {marks.text(before)} ({choices}) {marks.text(after)}"]
    for i, tool in enumerate(tools):
        schema = embedded_schema(_object_schema(tool.parameters), param=tool.field)
        rules.append(f"args_{i}: %json {json.dumps(schema, ensure_ascii=False)}")
    return rules


def _object_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """No schema is a function without parameters; what a plain schema does not name is no parameter."""
    if parameters is None:
        return {"type": "object"}
    schema = {"type": "object", **(parameters or {"properties": {}})}
    properties, required = schema.get("properties"), schema.get("required", [])
    is_plain = _OWN_KEYS.issuperset(schema) and isinstance(properties, dict) and isinstance(required, list)
    if is_plain and set(map(str, required)).issubset(properties or ()):
        schema["additionalProperties"] = False
    return schema


def _thought(thinking: Thinking) -> str:
    return {"no": "", "maybe": "(think_begin thought)?", "open": "thought"}[thinking]


def _thought_rules(thinking: Thinking, marks: _Marks) -> list[str]:
    if thinking == "no":
        return []
    if THINK_END in marks.control:
        rules = [f"thought: {_FREE_TEXT} {marks.text(THINK_END)} BLANKS"]
    else:
        rules = ["thought: thought_text BLANKS", f"thought_text[suffix={json.dumps(THINK_END)}]: {_FREE_TEXT}"]
    rules.append("BLANKS: /[ \\n]{0,4}/")
    if thinking == "maybe":
        rules.append(f"think_begin: {marks.text(THINK_BEGIN)}")
    return rules


def _checked(rules: Any, control: Mapping[str, int], or_grammar: str) -> str:
    """The check knows no control tokens, so it sees their literals instead."""
    try:
        check_grammar(_assembled(rules(_Marks({})), or_grammar), param="tools")
    except InvalidRequest as error:
        if error.param != "tools":
            raise
        raise InvalidRequest(f"the tools' schemas together: {error.message}", param="tools", code=error.code) from None
    return _assembled(rules(_Marks(control)), or_grammar)


def _assembled(rules: Sequence[str], answer: str) -> str:
    grammars: list[dict[str, Any]] = [{"lark_grammar": "\n".join(rules)}]
    if answer:
        first, *others = json.loads(answer)["grammars"]
        grammars += [{**first, "name": "answer"}, *others]
    return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))


def _escaped(literal: str) -> str:
    return "".join(char if char.isalnum() or char in "_<>" else "\\" + char for char in literal)
