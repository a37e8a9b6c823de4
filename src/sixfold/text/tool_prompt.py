"""Messages with tools and calls, in the form that a model's chat template takes.

Templates that do not show tools get a description in the system message, and calls and results written as text:

system: ... Functions: {"name": ...}          assistant: <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>
user: <tool_response>\\n...\\n</tool_response>
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sixfold.text.template_traits import TemplateTraits

__all__ = ["messages_and_tools"]

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")

Messages = Sequence[Mapping[str, Any]]

_INTRODUCTION = """\
You can call functions. Each line below describes one, its parameters by a JSON schema:

{functions}

To call a function, write its name and a JSON object with its arguments between <tool_call> and </tool_call>:

<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>

Several calls are written one after the other. Their results come between <tool_response> and </tool_response>. \
Where no function helps, answer without a call."""


def messages_and_tools(traits: TemplateTraits, messages: Messages, tools: Messages) -> tuple[Messages, Messages]:
    """What to render.

    Args:
        traits: the template's.
        messages: `role` and `content` (text) each; `tool_calls` of an assistant as OpenAI writes them, but with an
            object as `arguments`; `tool_call_id` of a result.
        tools: as OpenAI writes them.
    """
    has_calls = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
    if not tools and not has_calls:
        return messages, tools
    if traits.calls.in_template:
        if has_calls:
            text = not traits.takes_argument_objects
            messages = [_with_calls(message, traits.calls.short_ids, text) for message in messages]
        return messages, tools
    messages = _as_plain_chat(messages, tools)
    if messages[0]["role"] == "system" and not traits.takes_system:
        messages = _without_system(messages)
    return messages, ()


def _as_plain_chat(messages: Messages, tools: Messages) -> list[dict[str, Any]]:
    """Messages with tools, calls and results -> messages that have only a role and text.

    Args:
        messages: as a template takes them; the arguments of calls are objects.
        tools: as OpenAI writes them.
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("results"):
                plain[-1]["content"] += "\n" + text
            else:
                plain.append({"role": "user", "content": text, "results": True})
            continue
        if message["role"] == "user" and plain and plain[-1].get("results"):
            plain[-1]["content"] += "\n\n" + message["content"]  # templates that want turns to alternate
            continue
        out = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = [_written_call(call["function"]) for call in message.get("tool_calls", ())]
        out["content"] = "\n".join(filter(None, [message["content"], *calls]))
        plain.append(out)
    for message in plain:
        message.pop("results", None)
    if tools:
        functions = "\n".join(_json(tool["function"]) for tool in tools)
        _add_to_system(plain, _INTRODUCTION.format(functions=functions))
    return plain


def _without_system(messages: Messages) -> list[dict[str, Any]]:
    """For templates that refuse a system message: the first one's text goes in front of the first user's."""
    first, *others = (dict(message) for message in messages)
    if first["role"] != "system":
        return [first, *others]
    if others and others[0]["role"] == "user":
        others[0]["content"] = f"{first['content']}\n\n{others[0]['content']}"
        return others
    return [{**first, "role": "user"}, *others]


def _written_call(function: Mapping[str, Any]) -> str:
    """One call as the model is asked to write it."""
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{_json(call)}\n</tool_call>"


def _add_to_system(messages: list[dict[str, Any]], text: str) -> None:
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] = "\n\n".join(filter(None, [messages[0]["content"], text]))
    else:
        messages.insert(0, {"role": "system", "content": text})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_calls(message: Mapping[str, Any], short_ids: bool, text_arguments: bool) -> Mapping[str, Any]:
    """The message as this template takes calls."""
    out = dict(message)
    if short_ids and "tool_call_id" in out:
        out["tool_call_id"] = _short_id(out["tool_call_id"])
    if "tool_calls" in out:
        out["tool_calls"] = [
            {
                **call,
                "id": _short_id(call["id"]) if short_ids else call["id"],
                "function": {
                    **call["function"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)
                    if text_arguments
                    else call["function"]["arguments"],
                },
            }
            for call in out["tool_calls"]
        ]
    return out


def _short_id(call_id: str) -> str:
    """Nine letters and digits, as Mistral's templates want them; equal ids stay equal."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
