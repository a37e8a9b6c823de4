"""How models write calls of functions: the format is chosen by the text of the model's chat template.

| format  | looks like | templates |
|---|---|---|
| hermes  | `<tool_call>{"name": "f", "arguments": {}}</tool_call>` | Qwen 2.5 and 3, SmolLM3, Hermes |
| llama   | `{"name": "f", "parameters": {}}`, maybe behind `<|python_tag|>`; `;` between several | Llama 3.1 to 3.3 |
| mistral | `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, newer `[TOOL_CALLS]f[ARGS]{}` | Mistral |
| generic | as hermes | those that do not show tools, or in a way that is not known here (Gemma, SmolLM2) |

A template of the last kind never sees the tools: a text of ours describes them (`tool_prompt.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jinja2
from jinja2 import meta

__all__ = ["GENERIC", "HERMES", "LLAMA", "MISTRAL", "MISTRAL_NAMED", "CallFormat", "call_format_of"]


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """What calls look like in an answer's text."""

    name: str
    openers: Mapping[str, str] = field(default_factory=dict)
    """Text that begins a call -> text that ends it ("": nothing does). None begins with another."""
    bare: bool = False
    """At the answer's start, and right behind a call, a JSON object may be a call by itself."""
    named: bool = False
    """Behind an opener the function's name may stand by itself, in front of its arguments."""
    arguments: str = "arguments"
    """Key of the arguments in what a grammar makes the model write. A parser takes `parameters` too."""
    in_template: bool = True
    """The model's own template shows tools, calls and results."""
    short_ids: bool = False
    """The template refuses ids of calls that are not nine letters and digits."""
    inner_marks: tuple[str, ...] = ()
    """Other markup, which may be control tokens of the model."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All markup."""
        return (*self.openers, *filter(None, self.openers.values()), *self.inner_marks)


HERMES = CallFormat(name="hermes", openers={"<tool_call>": "</tool_call>"})
LLAMA = CallFormat(name="llama", openers={"<|python_tag|>": ""}, bare=True, arguments="parameters")
MISTRAL = CallFormat(name="mistral", openers={"[TOOL_CALLS]": ""}, named=True, short_ids=True)
MISTRAL_NAMED = CallFormat(
    name="mistral named",
    openers={"[TOOL_CALLS]": ""},
    named=True,
    short_ids=True,
    inner_marks=("[ARGS]", "[CALL_ID]"),
)
GENERIC = CallFormat(
    name="generic",
    openers={"<tool_call>": "</tool_call>", "```json": "```", "```tool_call": "```", "```tool_code": "```"},
    bare=True,
    in_template=False,
)


def call_format_of(source: str | None) -> CallFormat:
    """The format that a chat template's text speaks of.

    Args:
        source: a Jinja program that compiles; None for none.
    """
    if source is None or not _shows_tools(source):
        return GENERIC
    if "[TOOL_CALLS]" in source:
        return MISTRAL_NAMED if "[ARGS]" in source else MISTRAL
    if "<tool_call>" in source and "<function=" not in source:
        return HERMES
    if '"parameters"' in source and ("<|python_tag|>" in source or "<|start_header_id|>" in source):
        return LLAMA
    return GENERIC


def _shows_tools(source: str) -> bool:
    tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(source)
    return "tools" in meta.find_undeclared_variables(tree)
