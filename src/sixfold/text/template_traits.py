"""What a chat template can do, found out from its text and by trying it once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sixfold.errors import InvalidRequest
from sixfold.text.answer_parser import THINK_BEGIN, THINK_END
from sixfold.text.call_format import call_format_of

__all__ = ["THINKING_SCALE", "THINKING_SWITCH", "TemplateTraits"]

THINKING_SWITCH, THINKING_SCALE = "enable_thinking", "reasoning_effort"
"""Variables by which templates are told whether to think, and how much."""

_ARGUMENTS = {"probe-key": "probe-value"}
_CALL_ID = "callprobe"

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]


class TemplateTraits:
    """Of one template. What must be tried is tried when it is first asked for, which takes milliseconds.

    Args:
        source: the Jinja program.
        render: renders messages with tools to a text; raises InvalidRequest.
    """

    def __init__(self, source: str | None, render: Render) -> None:
        self.calls = call_format_of(source)
        """How the model writes calls."""
        self.thinks = source is not None and (THINK_BEGIN in source or THINK_END in source)
        """Answers may begin with their reasoning."""
        self.has_switch = source is not None and THINKING_SWITCH in source
        self.has_scale = source is not None and THINKING_SCALE in source
        self._render = render

    @cached_property
    def takes_system(self) -> bool:
        """A system message does not make it refuse."""
        user = {"role": "user", "content": "a"}
        try:
            text = self._render([{"role": "system", "content": "probe-system"}, user], None)
        except InvalidRequest:
            return False
        return "probe-system" in text

    @cached_property
    def takes_argument_objects(self) -> bool:
        """The arguments of a call in the history are to be an object; otherwise they are to be JSON text."""
        as_object, as_text = self._try_call(_ARGUMENTS), self._try_call(json.dumps(_ARGUMENTS))
        if as_object is None or as_text is None:
            return as_text is None
        return '"probe-key"' in as_object or '"probe-key"' not in as_text

    def _try_call(self, arguments: object) -> str | None:
        function = {"name": "probe", "arguments": arguments}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": _CALL_ID, "name": "probe", "content": "a"},
        ]
        parameters = {"type": "object", "properties": {}}
        tools = [{"type": "function", "function": {"name": "probe", "description": "a", "parameters": parameters}}]
        try:
            return self._render(messages, tools)
        except InvalidRequest:
            return None
