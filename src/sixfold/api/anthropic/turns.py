"""Messages of Anthropic's shape -> the messages that a chat template sees.

    user       text, tool_result (first)        ->  tool messages, then a user message
    assistant  thinking, text, tool_use         ->  one assistant message
    system     text                             ->  a system message; the field `system` is the first of all

Consecutive messages of one role are one turn: their blocks count as if they stood in one message. Texts of a turn are
joined by newlines. Every rule that a list of messages can break is checked here, whatever the template would say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sixfold.api.anthropic.wire import (
    UNSUPPORTED,
    Block,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from sixfold.api.http.errors import clip
from sixfold.api.http.refusals import refuse_unsupported
from sixfold.api.openai.chat_messages import MAX_CALLS
from sixfold.api.openai.schemas import MAX_MESSAGES
from sixfold.errors import InvalidRequest

__all__ = ["Turns", "template_messages"]

ERROR_MARK = "Error: "
"""Leads the text of a result with `is_error`: templates have no other place for it."""


class Turns(NamedTuple):
    """A request's messages, for the template."""

    messages: list[dict[str, Any]]
    prefill: bool
    """The last message is the beginning of the answer."""


class _Turn(NamedTuple):
    role: str
    where: str
    """The content of its first message."""
    blocks: list[tuple[str, Block]]
    """Each with its place."""


def template_messages(system: str | list[Block] | None, messages: list[InputMessage]) -> Turns:
    """Convert.

    Raises:
        InvalidRequest: `param` is `messages`, `system`, or names the message and its content.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has more than {MAX_MESSAGES} entries", param="messages")
    out: list[dict[str, Any]] = []
    if system:
        out.append({"role": "system", "content": _joined(_texts("system", "system", _placed("system", system)))})
    turns = _turns(messages)
    called: dict[str, str] = {}
    for turn in turns:
        called = _CONVERT[turn.role](turn, called, out)
    last = turns[-1]
    if called:
        raise _unanswered(last, called)
    if last.role == "assistant" and not out[-1]["content"]:
        raise _wrong(last.where, f"{last.where}: the answer would continue its text, and there is none")
    return Turns(out, prefill=last.role == "assistant")


def _turns(messages: list[InputMessage]) -> list[_Turn]:
    turns: list[_Turn] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}].content"
        if message.role not in _CONVERT:
            param = f"messages[{i}].role"
            raise InvalidRequest(f"{param} must be one of {', '.join(_CONVERT)}", param=param)
        if not message.content:
            if i == len(messages) - 1 and i and message.role == "assistant":
                break  # the beginning of an answer, of no length
            raise _wrong(where, f"{where} is empty")
        blocks = _placed(where, message.content)
        if turns and turns[-1].role == message.role:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(_Turn(message.role, where, blocks))
    return turns


def _placed(where: str, content: str | list[Block]) -> list[tuple[str, Block]]:
    """The blocks with their places, as errors name them."""
    if isinstance(content, str):
        return [(where, TextBlock(text=content))]
    for i, block in enumerate(content):
        refuse_unsupported(block, UNSUPPORTED, where=f"{where}[{i}].")
    return [(f"{where}[{i}]", block) for i, block in enumerate(content)]


def _texts(whose: str, where: str, blocks: list[tuple[str, Block]]) -> list[str]:
    """Texts of blocks that must all be texts, none of them empty."""
    texts = []
    for place, block in blocks:
        if not isinstance(block, TextBlock):
            raise _misplaced(where, place, block, whose)
        if not block.text:
            raise _wrong(where, f"{place}: the text is empty")
        texts.append(block.text)
    return texts


def _joined(texts: list[str]) -> str:
    return "\n".join(texts)


def _user(turn: _Turn, called: dict[str, str], out: list[dict[str, Any]]) -> dict[str, str]:
    """Results of the calls before, then what the user says."""
    called = dict(called)
    n_results = 0
    for place, block in turn.blocks:
        if not isinstance(block, ToolResultBlock):
            break
        n_results += 1
        name = called.pop(block.tool_use_id, None)
        if name is None:
            id_ = clip(block.tool_use_id, 64)
            raise _wrong(turn.where, f"{place}.tool_use_id: no tool_use in the message before has the id {id_}")
        out.append({"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": _result(place, block)})
    for place, block in turn.blocks[n_results:]:
        if isinstance(block, ToolResultBlock):
            raise _wrong(turn.where, f"{place}: tool_result blocks come before everything else in a message")
    if called:
        raise _unanswered(turn, called)
    texts = _texts("user", turn.where, turn.blocks[n_results:])
    if texts:
        out.append({"role": "user", "content": _joined(texts)})
    return {}


def _result(place: str, block: ToolResultBlock) -> str:
    where = f"{place}.content"
    text = _joined(_texts("tool_result", where, _placed(where, block.content))) if block.content else ""
    return ERROR_MARK + text if block.is_error else text


def _assistant(turn: _Turn, called: dict[str, str], out: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the calls that want a result: id -> name."""
    texts: list[tuple[str, Block]] = []
    thoughts: list[str] = []
    calls: dict[str, str] = {}
    tool_calls: list[dict[str, Any]] = []
    for place, block in turn.blocks:
        if isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            if block.id in calls:
                raise _wrong(turn.where, f"{place}.id is the id of another tool_use")
            calls[block.id] = block.name
            function = {"name": block.name, "arguments": block.input}
            tool_calls.append({"id": block.id, "type": "function", "function": function})
        elif not isinstance(block, RedactedThinkingBlock):
            texts.append((place, block))
    if len(calls) > MAX_CALLS:
        raise _wrong(turn.where, f"{turn.where}: more than {MAX_CALLS} blocks of type tool_use in one turn")
    message: dict[str, Any] = {"role": "assistant", "content": _joined(_texts("assistant", turn.where, texts))}
    if thoughts:
        message["reasoning_content"] = _joined(thoughts)
    if tool_calls:
        message["tool_calls"] = tool_calls
    out.append(message)
    return calls


def _system(turn: _Turn, called: dict[str, str], out: list[dict[str, Any]]) -> dict[str, str]:
    if called:
        raise _unanswered(turn, called)
    out.append({"role": "system", "content": _joined(_texts("system", turn.where, turn.blocks))})
    return {}


_CONVERT: dict[str, Callable[[_Turn, dict[str, str], list[dict[str, Any]]], dict[str, str]]] = {
    "user": _user,
    "assistant": _assistant,
    "system": _system,
}
"""Role -> turn, calls that wait for their results, and the list to be added to -> calls that wait now."""


def _misplaced(where: str, place: str, block: Block, whose: str) -> InvalidRequest:
    kind = type(block).__struct_config__.tag
    return _wrong(where, f"{place}: blocks of type {kind} have no place in {whose}")


def _unanswered(turn: _Turn, called: dict[str, str]) -> InvalidRequest:
    ids = clip(", ".join(called))
    return _wrong(turn.where, f"{turn.where}: each tool_use needs a tool_result in the next message; none for {ids}")


def _wrong(where: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=where)
