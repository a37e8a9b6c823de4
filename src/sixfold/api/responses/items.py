"""Items: what a conversation consists of in this API. The same types are read, stored, listed and answered with.

wire JSON --read_items--> items --template_messages--> what the chat template sees
parts of an answer --output.py--> items
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from sixfold.api.http.decoding import convert
from sixfold.api.http.refusals import not_served
from sixfold.api.openai.chat_messages import arguments_object, match_results
from sixfold.api.openai.logprobs import ChatEntry
from sixfold.api.openai.schemas import MAX_MESSAGES
from sixfold.api.responses.schemas import (
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemPart,
    MessageItem,
    ReasoningItem,
)
from sixfold.errors import InvalidRequest

__all__ = [
    "FunctionCall",
    "FunctionCallOutput",
    "InputText",
    "Item",
    "Message",
    "OutputText",
    "Reasoning",
    "ReasoningText",
    "check_count",
    "decode_items",
    "decode_output",
    "new_id",
    "read_items",
    "template_messages",
]

ROLES = ("user", "assistant", "system", "developer")
PART_TYPES = ("input_text", "output_text")
MAX_ID_CHARS = 256

COMPLETED, IN_PROGRESS, INCOMPLETE = "completed", "in_progress", "incomplete"


class InputText(msgspec.Struct, tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatEntry] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    text: str


class Message(msgspec.Struct, tag="message"):
    """Somebody's words."""

    id: str
    role: str
    content: list[InputText | OutputText]
    status: str = COMPLETED


class FunctionCall(msgspec.Struct, tag="function_call"):
    """The model calls a function. `arguments` is a JSON object's text, unless it is incomplete."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = COMPLETED


class FunctionCallOutput(msgspec.Struct, tag="function_call_output"):
    """What the function answered."""

    id: str
    call_id: str
    output: str
    status: str = COMPLETED


class Reasoning(msgspec.Struct, tag="reasoning"):
    """What the model thought before it answered, in full: there are no summaries here."""

    id: str
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: None = None
    status: str = COMPLETED


Item = Message | FunctionCall | FunctionCallOutput | Reasoning


class _StoredOutput(msgspec.Struct):
    """Of a stored document, what is needed to continue it."""

    output: list[Item]


_inputs = msgspec.json.Decoder(list[Item])
_outputs = msgspec.json.Decoder(_StoredOutput)


def decode_items(document: bytes) -> list[Item]:
    """Items as they were stored."""
    return _inputs.decode(document)


def decode_output(document: bytes) -> list[Item]:
    """The output items of a stored response."""
    return _outputs.decode(document).output


def new_id(prefix: str) -> str:
    """`msg_`, `fc_`, `fco_`, `rs_`, `call_`, `resp_` and a random number."""
    return prefix + secrets.token_hex(24)


def read_items(input: str | list[dict[str, Any]], ignored: list[str] | None) -> list[Item]:
    """A request's `input`.

    Args:
        ignored: gets the names of unknown fields; None refuses them.

    Raises:
        InvalidRequest: names the item and the field.
    """
    if isinstance(input, str):
        return [Message(new_id("msg_"), "user", [InputText(input)])]
    if not input:
        raise InvalidRequest("input is an empty list", param="input")
    check_count(len(input))
    return [_read_item(f"input[{i}]", item, ignored) for i, item in enumerate(input)]


def check_count(n_items: int) -> None:
    """Raises: InvalidRequest: a conversation has too many items."""
    if n_items > MAX_MESSAGES:
        raise InvalidRequest(f"input: a conversation has at most {MAX_MESSAGES} items", param="input")


def _read_item(where: str, item: dict[str, Any], ignored: list[str] | None) -> Item:
    kind = item.get("type", "message")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise not_served(f"{where}.type", kind, list(_READERS))
    return reader(where, item, ignored)


def _read_message(where: str, document: dict[str, Any], ignored: list[str] | None) -> Item:
    item = convert(MessageItem, document, where, ignored)
    if item.role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")
    texts = _texts(f"{where}.content", item.content, ignored)
    kind = OutputText if item.role == "assistant" else InputText
    return Message(_id(where, item.id, "msg_"), item.role, [kind(text) for text in texts])


def _read_call(where: str, document: dict[str, Any], ignored: list[str] | None) -> Item:
    item = convert(FunctionCallItem, document, where, ignored)
    return FunctionCall(_id(where, item.id, "fc_"), _call_id(where, item.call_id), item.name, item.arguments)


def _read_call_output(where: str, document: dict[str, Any], ignored: list[str] | None) -> Item:
    item = convert(FunctionCallOutputItem, document, where, ignored)
    output = "\n".join(_texts(f"{where}.output", item.output, ignored))
    return FunctionCallOutput(_id(where, item.id, "fco_"), _call_id(where, item.call_id), output)


def _read_reasoning(where: str, document: dict[str, Any], ignored: list[str] | None) -> Item:
    item = convert(ReasoningItem, document, where, ignored)
    if item.encrypted_content is not None:
        raise InvalidRequest(
            f"{where}.encrypted_content cannot be read by this server; reasoning comes as text in content",
            param=f"{where}.encrypted_content",
            code="unsupported_field",
        )
    texts = [ReasoningText(part.text) for part in item.content or item.summary or []]
    return Reasoning(_id(where, item.id, "rs_"), texts)


_READERS = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_call_output,
    "reasoning": _read_reasoning,
}


def _texts(where: str, content: str | list[dict[str, Any]], ignored: list[str] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not content:
        raise InvalidRequest(f"{where} must be text or a list of text parts", param=where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type")
        if kind not in PART_TYPES:
            raise not_served(f"{where}[{i}].type", kind, PART_TYPES)
        texts.append(convert(ItemPart, part, f"{where}[{i}]", ignored).text)
    return texts


def _id(where: str, id: str | None, prefix: str) -> str:
    if id is None:
        return new_id(prefix)
    return _short(f"{where}.id", id)


def _call_id(where: str, id: str) -> str:
    return _short(f"{where}.call_id", id)


def _short(where: str, id: str) -> str:
    if not 1 <= len(id) <= MAX_ID_CHARS:
        raise InvalidRequest(f"{where} must have 1 to {MAX_ID_CHARS} characters", param=where)
    return id


def template_messages(instructions: str | None, before: list[Item], new: list[Item]) -> list[dict[str, Any]]:
    """What the chat template sees of a conversation. What the model did in one turn becomes one message.

    Args:
        before: items of the stored responses that are continued.
        new: items of this request.

    Raises:
        InvalidRequest: the output of a call that is not there, or that has one.
    """
    out: list[dict[str, Any]] = []
    if instructions is not None:
        out.append({"role": "system", "content": instructions})
    places = ["instructions"] * len(out)  # of each message, the id of its call, for errors
    turn: dict[str, Any] | None = None  # the model's, as long as more may belong to it
    for i, item in enumerate([*before, *new]):
        where = f"input[{i - len(before)}]" if i >= len(before) else "previous_response_id"
        if isinstance(item, FunctionCallOutput):
            out.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
            turn = None
        elif isinstance(item, Message) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            out.append({"role": role, "content": _joined(item)})
            turn = None
        else:
            if turn is None or not _belongs(item, turn):
                turn = {"role": "assistant", "content": ""}
                out.append(turn)
            _add(item, turn)
        if len(out) > len(places):
            places.append(f"{where}.call_id")
    match_results(out, places)
    return out


def _belongs(item: Item, turn: dict[str, Any]) -> bool:
    """Within a turn: reasoning, then words, then calls."""
    if isinstance(item, FunctionCall):
        return True
    if "tool_calls" in turn or turn["content"]:
        return False
    return isinstance(item, Message) or "reasoning_content" not in turn


def _add(item: Item, turn: dict[str, Any]) -> None:
    if isinstance(item, Reasoning):
        turn["reasoning_content"] = "\n".join(part.text for part in item.content)
    elif isinstance(item, Message):
        turn["content"] = _joined(item)
    elif isinstance(item, FunctionCall):
        function = {"name": item.name, "arguments": arguments_object(item.arguments)}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def _joined(item: Message) -> str:
    return "\n".join(part.text for part in item.content)
