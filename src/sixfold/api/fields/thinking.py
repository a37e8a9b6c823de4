"""How much a model is to think before it answers -> variables of its chat template.

OpenAI's `reasoning_effort` and `reasoning.effort`, and Anthropic's `thinking`, ask for the same thing. Templates have a
scale for it, a switch, or nothing. What a template cannot be told is refused: it would do nothing.
"""

from __future__ import annotations

from typing import Any

from sixfold.api.http.errors import clip
from sixfold.errors import InvalidRequest
from sixfold.text.template_traits import THINKING_SCALE, THINKING_SWITCH, TemplateTraits

__all__ = ["EFFORTS", "SOME", "check_effort", "thinking_variables"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
SOME = "some"
"""Thinking, of no certain length: not on the wire."""


def check_effort(effort: str | None, field: str) -> None:
    """Raises: InvalidRequest: there is no such effort."""
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest(f"{field} must be one of {', '.join(EFFORTS)}, not {clip(effort, 64)}", param=field)


def thinking_variables(traits: TemplateTraits, effort: str | None, field: str) -> dict[str, Any]:
    """
    Args:
        effort: one of `EFFORTS`, or `SOME`; None: whatever the template does by itself.
        field: what the caller calls it.

    Raises:
        InvalidRequest: the template cannot be told.
    """
    if effort is None:
        return {}
    thinks = effort != "none"
    if traits.has_scale and thinks and effort != SOME:
        return {THINKING_SCALE: effort}
    if traits.has_switch:
        return {THINKING_SWITCH: thinks}
    if effort in ("none", SOME) and thinks == (traits.thinks or traits.has_scale):
        return {}
    lacks = f"has no switch for {effort}" if traits.thinks or traits.has_scale else "knows no thinking"
    raise InvalidRequest(f"{field}: the chat template of this model {lacks}", param=field, code="unsupported_field")
