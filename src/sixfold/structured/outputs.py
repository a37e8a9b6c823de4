"""`StructuredOutputs`: the kinds of structure that a caller may ask for, of which one at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from sixfold.errors import InvalidRequest
from sixfold.structured.grammars import (
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
)

__all__ = ["StructuredOutputs"]


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one field is given. As vLLM's object of this name."""

    json: Any = None
    """A JSON schema: an object, or its text."""
    regex: str | None = None
    """The whole answer matches this expression."""
    choice: list[str] | None = None
    """The answer is one of these."""
    grammar: str | None = None
    """The answer follows this grammar, in llguidance's form of Lark."""

    def grammar_text(self, *, param: str = "structured_outputs") -> str:
        """Raises: InvalidRequest: not exactly one kind is given, or what is given cannot be used."""
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "is empty"
            raise InvalidRequest(f"{param} {what}; give exactly one of json, regex, choice and grammar", param=param)
        if self.regex is not None:
            return regex_grammar(self.regex, param=param)
        if self.choice is not None:
            return choice_grammar(self.choice, param=param)
        if self.grammar is not None:
            return lark_grammar(self.grammar, param=param)
        if isinstance(self.json, str):
            return json_schema_grammar(self.json, param=param)
        return schema_grammar(self.json, param=param)
