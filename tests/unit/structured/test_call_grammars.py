"""Whatever tokens a grammar of calls lets through: the parser of the same format reads them as calls, with arguments
that are valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from sixfold.api.fields.call_grammar import EnforcedTool, call_grammar, strict_grammar
from sixfold.structured import json_schema_grammar
from sixfold.text.answer_parser import PartsParser, Thinking
from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Reasoning
from sixfold.text.call_format import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat

from .schemas import thing
from .walker import Walker

pytestmark = pytest.mark.model

PARAMETERS: dict[str, Any] = {
    "weather": thing({"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "minimum": 0}}),
    "tree": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": {"$ref": "#/$defs/n"}},
        "$defs": {"n": thing({"parameters": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 1}})},
        "required": ["name"],
    },
    "say-it_2": {"type": "object", "additionalProperties": {"enum": ["</tool_call>", "}", "<think>", '"}]', "; "]}},
    "nothing": {},
    "anything": None,
}
TOOLS = [EnforcedTool(name, parameters, "tools") for name, parameters in PARAMETERS.items()]
FORMATS = [HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, GENERIC]
ANSWER = thing({"answer": {"type": "string", "maxLength": 20}})


def read(calls: CallFormat, text: str, piece: int, **how: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and calls as name and arguments, read in pieces of so many characters."""
    parser = PartsParser(calls, PARAMETERS, **how)
    parts = [part for at in range(0, len(text), piece) for part in parser.push(text[at : at + piece])] + parser.finish()
    found: list[tuple[str, str]] = []
    said = {Content: "", Reasoning: ""}
    for part in parts:
        if isinstance(part, CallBegin):
            found.append((part.name, ""))
        elif isinstance(part, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + part.text)
        else:
            said[type(part)] += part.text
    return said[Reasoning], said[Content], found


def encoded(walker: Walker, text: str) -> list[int]:
    return walker.tokenizer.encode(text, parse_control=False, add_bos=False)


def check_calls(found: list[tuple[str, str]]) -> None:
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), PARAMETERS[name] or {"type": "object"})


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
@pytest.mark.parametrize("thinking", ["no", "maybe", "open"])
@pytest.mark.parametrize("one", [False, True])
def test_forced_calls(walker: Walker, calls: CallFormat, thinking: Thinking, one: bool) -> None:
    grammar = call_grammar(calls, TOOLS, one=one, thinking=thinking, control={})
    n_walks = 0
    for seed in range(8):
        thought = {"no": "", "maybe": "<think>hm</think>" if seed % 2 else "", "open": "so</think>"}[thinking]
        ids = walker.walk(grammar, seed, lead=encoded(walker, thought))
        if ids is None:
            continue
        n_walks += 1
        text = walker.text(ids)
        whole = read(calls, text, 1, sure=True, one_call=one, thinking=thinking)
        assert whole == read(calls, text, 7, sure=True, one_call=one, thinking=thinking)
        reasoning, content, found = whole
        assert bool(reasoning) == bool(thought)
        assert found and not content.strip(), text
        assert len(found) == 1 or not one, text
        check_calls(found)
    assert n_walks > 3


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_a_named_call(walker: Walker, calls: CallFormat, tool: EnforcedTool) -> None:
    grammar = call_grammar(calls, [tool], one=True, thinking="no", control={})
    for seed in range(3):
        _, content, found = read(calls, walker.answer(grammar, seed), 3, sure=True, one_call=True)
        assert [name for name, _ in found] == [tool.name] and not content.strip()
        check_calls(found)


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_calls_or_an_answer(walker: Walker, calls: CallFormat) -> None:
    answer = json_schema_grammar(json.dumps(ANSWER), param="x")
    grammar = call_grammar(calls, TOOLS[:1], one=False, thinking="no", control={}, or_grammar=answer)
    kinds = set()
    for seed in range(12):
        _, content, found = read(calls, walker.answer(grammar, seed), 2)
        kinds.add(bool(found))
        check_calls(found)
        if found:
            assert not content.strip()
        else:
            jsonschema.validate(json.loads(content), ANSWER)
    if calls in (LLAMA, GENERIC):
        return  # both begin with the same brace: which one it becomes is up to the walk
    assert kinds == {False, True}


@pytest.mark.parametrize("calls", [HERMES, MISTRAL, MISTRAL_NAMED], ids=lambda calls: calls.name)
@pytest.mark.parametrize("thinking", ["no", "maybe", "open"])
def test_strict_calls_in_text(walker: Walker, calls: CallFormat, thinking: Thinking) -> None:
    """The walk is led to the opener: by itself it hardly ever writes one."""
    grammar = strict_grammar(calls, TOOLS, thinking=thinking, control={})
    opener = next(iter(calls.openers))
    thought = "hm</think>" if thinking == "open" else ""
    lead = encoded(walker, f"{thought}So: <tool_ [TOOL {opener}")
    for seed in range(6):
        ids = walker.walk(grammar, seed, lead=lead)
        if ids is None:
            continue
        _, content, found = read(calls, walker.text(ids), 3, thinking=thinking)
        assert found and content.startswith("So: <tool_ [TOOL")
        check_calls(found)
