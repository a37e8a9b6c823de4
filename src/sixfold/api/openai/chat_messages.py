"""The messages of a chat -> what the chat template sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sixfold.api.http.refusals import not_served, unsupported, unsupported_part
from sixfold.api.openai.schemas import MAX_MESSAGES, ChatMessage
from sixfold.errors import InvalidRequest
from sixfold.text import ROLES

__all__ = ["MAX_CALLS", "arguments_object", "match_results", "template_messages"]

ECHOED_FIELDS = ("refusal", "annotations", "audio", "function_call")
MAX_CALLS = 128
"""Of one message."""


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Wire messages -> what the template sees, as `Conversation.messages` holds it.

    Text parts are joined by newlines; `developer` is what OpenAI's newer clients call `system`.

    Raises:
        InvalidRequest: `param` is `messages`, or names the message and its field.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has more than {MAX_MESSAGES} entries", param="messages")
    out = [_template_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    match_results(out, [f"messages[{i}].tool_call_id" for i in range(len(out))])
    return out


def match_results(messages: list[dict[str, Any]], fields: Sequence[str]) -> None:
    """Give each tool message the name of the function whose result it is.

    Args:
        messages: as `Conversation.messages` holds them.
        fields: of each, what the caller calls the id of its call.

    Raises:
        InvalidRequest: a result is of no call before it, or the second one of a call.
    """
    open_calls: dict[str, str] = {}
    for i, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            open_calls[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            name = open_calls.pop(message["tool_call_id"], None)
            if name is None:
                raise InvalidRequest(
                    f"{fields[i]}: no call of this id comes before it, or it has its result already", param=fields[i]
                )
            message.setdefault("name", name)


def arguments_object(text: str) -> dict[str, Any]:
    """Arguments of a call in the history. What is no JSON object (an answer was cut short, a model made a mistake)
    counts as an empty one: the conversation must be able to go on."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _template_message(where: str, message: ChatMessage) -> dict[str, Any]:
    role = message.role
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(sorted(ROLES))}", param=f"{where}.role")
    for name in ECHOED_FIELDS:
        if getattr(message, name) not in (None, [], ""):
            raise unsupported(f"{where}.{name}")
    calls = _calls(where, message)
    reasoning = _reasoning(where, message)
    empty = message.content is None and (calls or reasoning is not None)
    content = "" if empty else _text(f"{where}.content", message)
    out: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    if message.name is not None:
        out["name"] = message.name
    if calls:
        out["tool_calls"] = calls
    if message.tool_call_id is not None:
        if role != "tool":
            raise _only(f"{where}.tool_call_id", "tool")
        out["tool_call_id"] = message.tool_call_id
    elif role == "tool":
        raise InvalidRequest(f"{where}.tool_call_id is required", param=f"{where}.tool_call_id", code="missing_field")
    if reasoning is not None:
        out["reasoning_content"] = reasoning
    return out


def _calls(where: str, message: ChatMessage) -> list[dict[str, Any]]:
    calls = message.tool_calls or []
    where += ".tool_calls"
    if calls and message.role != "assistant":
        raise _only(where, "assistant")
    if len(calls) > MAX_CALLS:
        raise InvalidRequest(f"{where} has more than {MAX_CALLS} entries", param=where)
    out: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        if call.type != "function":
            raise not_served(f"{where}[{i}].type", call.type, ("function",))
        if any(call.id == other["id"] for other in out):
            raise InvalidRequest(f"{where}[{i}].id is there twice", param=f"{where}[{i}].id")
        function = {"name": call.function.name, "arguments": arguments_object(call.function.arguments)}
        out.append({"id": call.id, "type": "function", "function": function})
    return out


def _reasoning(where: str, message: ChatMessage) -> str | None:
    """`reasoning` is another name of `reasoning_content`; our answers have both."""
    first, second = message.reasoning_content, message.reasoning
    if first is None and second is None:
        return None
    if message.role != "assistant":
        raise _only(f"{where}.{'reasoning' if first is None else 'reasoning_content'}", "assistant")
    if first is not None and second is not None and first != second:
        raise InvalidRequest(f"{where}.reasoning and reasoning_content differ; give one", param=f"{where}.reasoning")
    return first if first is not None else second


def _only(field: str, role: str) -> InvalidRequest:
    return InvalidRequest(f"{field} belongs to {role} messages", param=field)


def _text(where: str, message: ChatMessage) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{where} must be text or a list of text parts", param=where)
    for index, part in enumerate(content):
        if part.type != "text":
            raise unsupported_part(where, index, part.type)
        if part.text is None:
            raise InvalidRequest(f"{where}: part {index} has no text", param=where)
    return "\n".join([part.text or "" for part in content])
