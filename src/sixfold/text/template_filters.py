"""Jinja's filters and tests for chat templates: each is a step, and what could grow or take long is looked at first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import filters, pass_context
from jinja2.runtime import Context

from sixfold.text.template_meter import (
    METER,
    PIECES_MAX,
    LimitReached,
    Meter,
    check_length,
    check_percent,
    check_replaced,
    checked_parts,
)

__all__ = ["bounded_filters", "bounded_tests"]

_ABSENT_FILTERS = ("batch", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
"""No template needs them, and they cannot be bounded easily, or give another text each time."""
_TEXT_FILTERS = (
    "capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags", "title", "trim", "truncate",
    "upper", "urlencode", "wordcount",
)  # fmt: skip
"""They make a text of whatever they are given."""
_COMPARING_FILTERS = ("dictsort", "groupby", "max", "min", "sort", "unique")
_COMPARING_TESTS = (
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne",
)  # fmt: skip
_INDENT_MAX = 16
_DIGITS_MAX = 20

Guard = Callable[..., Any]
"""Gets the meter and a filter's arguments; raises `LimitReached` if they are too much."""


def bounded_filters(known: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    guards: dict[str, Guard] = dict.fromkeys(_TEXT_FILTERS, _guard_text) | {
        "center": _guard_center,
        "format": _guard_format,
        "indent": _guard_indent,
        "list": _guard_list,
        "replace": _guard_replace,
        "round": _guard_round,
        "sum": _guard_sum,
        "tojson": _guard_tojson,
    }
    bounded = {name: _guarded(function, guards.get(name)) for name, function in known.items()}
    bounded |= {name: _with_listed(bounded[name]) for name in _COMPARING_FILTERS}
    bounded |= {"join": _join_filter, "tojson": _guarded(_tojson, _guard_tojson)}
    for name in _ABSENT_FILTERS:
        del bounded[name]
    return bounded


def bounded_tests(known: dict[str, Any]) -> dict[str, Any]:
    return known | {name: _guarded(known[name], _guard_all) for name in _COMPARING_TESTS}


def _guarded(function: Callable[..., Any], guard: Guard | None) -> Callable[..., Any]:
    wants = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def bounded(context: Context, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context[METER]
        meter.step()
        if guard is not None:
            guard(meter, *args, **kwargs)
        match wants.name if wants is not None else "":
            case "context":
                return function(context, *args, **kwargs)
            case "eval_context":
                return function(context.eval_ctx, *args, **kwargs)
            case "environment":
                return function(context.environment, *args, **kwargs)
        return function(*args, **kwargs)

    return bounded


def _with_listed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose values are weighed, where they come from another filter too."""

    @pass_context
    def listed(context: Context, values: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(values, dict | str):
            values = list(values)
        context[METER].weigh(values)
        return function(context, values, *args, **kwargs)

    return listed


def _guard_all(meter: Meter, *values: Any) -> None:
    meter.weigh(values)


def _guard_text(meter: Meter, value: Any, *_args: Any, **_kwargs: Any) -> None:
    meter.weigh(value)


def _guard_center(meter: Meter, value: Any, width: int = 80) -> None:
    meter.weigh(value)
    check_length(width)


def _guard_format(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> None:
    check_percent(meter, str(value), [*args, *kwargs.values()])


def _guard_indent(meter: Meter, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> None:
    meter.weigh(value)
    text = str(value)
    check_length(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width))


def _guard_list(_meter: Meter, value: Any) -> None:
    if isinstance(value, str) and len(value) > PIECES_MAX:
        raise LimitReached(f"a text of more than {PIECES_MAX} pieces")


def _guard_replace(meter: Meter, value: Any, old: Any, new: Any, count: int | None = None) -> None:
    meter.weigh([value, old, new])
    check_replaced(str(value), str(old), str(new))


def _guard_round(_meter: Meter, value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > _DIGITS_MAX:
        raise LimitReached("a number that is too large")


def _guard_sum(_meter: Meter, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise LimitReached("a sum of what are no numbers")


def _guard_tojson(
    meter: Meter, value: Any, ensure_ascii: bool = False, indent: Any = None, *_: Any, **_more: Any
) -> None:
    meter.weigh(value)
    if indent is not None and not (isinstance(indent, int) and indent <= _INDENT_MAX):
        raise LimitReached(f"an indentation that is no number up to {_INDENT_MAX}")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Templates expect plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _join_filter(context: Context, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    return str(d).join(map(str, checked_parts(context[METER], str(d), value)))
