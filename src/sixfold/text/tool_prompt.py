"""Tools for templates that do not show them: described in the system message, calls and results written as text.

system: ... Functions: {"name": ...}          assistant: <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>
user: <tool_response>\\n...\\n</tool_response>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_plain_chat", "without_system", "written_call"]

_INTRODUCTION = """\
You can call functions. Each line below describes one, its parameters by a JSON schema:

{functions}

To call a function, write its name and a JSON object with its arguments between <tool_call> and </tool_call>:

<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>

Several calls are written one after the other. Their results come between <tool_response> and </tool_response>. \
Where no function helps, answer without a call."""


def as_plain_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
        out = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = [written_call(call["function"]) for call in message.get("tool_calls", ())]
        out["content"] = "\n".join(filter(None, [message["content"], *calls]))
        plain.append(out)
    for message in plain:
        message.pop("results", None)
    if tools:
        functions = "\n".join(_json(tool["function"]) for tool in tools)
        _add_to_system(plain, _INTRODUCTION.format(functions=functions))
    return plain


def without_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For templates that refuse a system message: the first one's text goes in front of the first user's."""
    first, *others = (dict(message) for message in messages)
    if first["role"] != "system":
        return [first, *others]
    if others and others[0]["role"] == "user":
        others[0]["content"] = f"{first['content']}\n\n{others[0]['content']}"
        return others
    return [{**first, "role": "user"}, *others]


def written_call(function: Mapping[str, Any]) -> str:
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
