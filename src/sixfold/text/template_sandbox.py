"""Running the Jinja program of a model file, which may be hostile, within bounds of time and memory.

Jinja's sandbox keeps a program from the rest of the process. It does not keep it from taking forever or all memory:
one operation can make one huge value out of two small ones (`'a'.center(10 ** 10)`), print a small one that holds
itself a million times, or keep many copies. So, while a program runs,

- every turn of a loop, call, filter, slice and binary operation is a step on a `Meter`, which looks at the clock and at
  the process's memory now and then;
- what makes a value larger than its parts is looked at first;
- what becomes text, or is compared, is weighed first: all that it holds;
- nothing is computed when the program is compiled.

Filters and methods that no template needs and that cannot be bounded easily do not exist.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from typing import Any

import jinja2
from jinja2 import filters, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["LENGTH_MAX", "METER", "LimitReached", "Meter", "compile_program"]

LENGTH_MAX = 16 << 20
"""Of the output, and of any value: characters or elements. Four times the largest body that is accepted by default."""
_PIECES_MAX = 1 << 20
"""Of a text that is cut, each of which costs far more than its characters."""
_STEPS_MAX = 1_000_000
_RENDER_S_MAX = 2.0
_GROWTH_BYTES_MAX = 512 << 20
"""Of the process during one rendering: several values of the greatest length."""
_STEPS_PER_LOOK = 16
_INTEGER_BITS_MAX = 4096
_INDENT_MAX = 16
_DIGITS_MAX = 20

METER = "sixfold_meter"
"""The name under which a program's variables must hold its `Meter`."""
_JOIN, _STEP, _WEIGH = "sixfold_join", "sixfold_step", "sixfold_weigh"
_RESERVED = frozenset({METER, _JOIN, _STEP, _WEIGH})

_ABSENT_FILTERS = ("batch", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
_TEXT_FILTERS = (
    "capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags", "title", "trim", "truncate",
    "upper", "urlencode", "wordcount",
)  # fmt: skip
"""They make a text of whatever they are given."""
_COMPARING_FILTERS = ("dictsort", "groupby", "max", "min", "sort", "unique")
_COMPARING_TESTS = (
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne",
)  # fmt: skip
_ABSENT_METHODS = frozenset({"encode", "translate"})
_PERCENT_WIDTH = re.compile(r"%(\([^)]*\))?[-+ #0]*(\*|\d{4}|\d*\.(\*|\d{4}))")
_BRACES_WIDTH = re.compile(r":[^{}]*(\d{4}|\{)")


class LimitReached(Exception):
    """A bound of this file."""


class Meter:
    """What one rendering uses up."""

    def __init__(self) -> None:
        self._n_steps = 0
        self._until_s = time.monotonic() + _RENDER_S_MAX
        self._bytes_at_start = _resident_bytes()

    def step(self) -> bool:
        """True until a limit is reached, then it raises `LimitReached`."""
        self.spend(1)
        if self._n_steps % _STEPS_PER_LOOK == 0:
            if time.monotonic() > self._until_s:
                raise LimitReached(f"longer than {_RENDER_S_MAX:g} seconds")
            if _resident_bytes() - self._bytes_at_start > _GROWTH_BYTES_MAX:
                raise LimitReached(f"more than {_GROWTH_BYTES_MAX >> 20} MB of memory")
        return True

    def spend(self, n_steps: int) -> None:
        self._n_steps += n_steps
        if self._n_steps > _STEPS_MAX:
            raise LimitReached(f"more than {_STEPS_MAX} steps")

    def weigh(self, value: Any) -> None:
        """Count all that a value holds: a small list may hold another a million times."""
        n_characters = 0
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, str):
                n_characters += len(one)
                _check_length(n_characters)
            elif isinstance(one, dict | list | tuple | set | frozenset | ValuesView | ItemsView | KeysView):
                self.spend(len(one))
                left += one
                left += one.values() if isinstance(one, dict) else ()
            elif isinstance(one, Namespace):
                raise LimitReached("a namespace as a whole")


def compile_program(source: str) -> jinja2.Template:
    """
    Raises:
        jinja2.TemplateError, RecursionError, SyntaxError, ValueError: it is wrong.
    """
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=["jinja2.ext.loopcontrols"],
        optimized=False,
        finalize=_finalize,
    )
    environment.globals |= {_JOIN: _join, _STEP: _step, _WEIGH: _weigh}
    del environment.globals["lipsum"]
    environment.filters = _bounded_filters(environment.filters)
    tests: dict[str, Any] = environment.tests
    tests |= {name: _guarded(tests[name], _guard_all) for name in _COMPARING_TESTS}
    tree = _with_steps(environment.parse(source), environment)
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check_length(length: int) -> None:
    if length > LENGTH_MAX:
        raise LimitReached(f"a value of more than {LENGTH_MAX} elements")


# --- operators, calls, output -----------------------------------------------------------------------------------------


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context[METER]
        meter.step()
        if operator == "%":
            if isinstance(left, str):
                _check_percent(meter, left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _INTEGER_BITS_MAX:
                raise LimitReached("a number that is too large")
        elif operator == "*":
            _check_length(_length(left) * _repeats(right) + _length(right) * _repeats(left))
        elif operator == "+":
            _check_length(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _ABSENT_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _BRACES_WIDTH.search(value.__self__):
            raise LimitReached("a format that is too wide")
        if wrapped is not None:
            wrapped.makes_text_of_arguments = True  # type: ignore[attr-defined]
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = __context[METER]
        meter.step()
        owner = getattr(__obj, "__self__", None)
        if getattr(__obj, "makes_text_of_arguments", False):
            meter.weigh([*args, *kwargs.values()])
        elif isinstance(owner, dict | list | tuple):
            meter.weigh(args)
        elif isinstance(owner, str):
            args = _checked_method(meter, owner, getattr(__obj, "__name__", ""), args)
        return super().call(__context, __obj, *args, **kwargs)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _repeats(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _check_percent(meter: Meter, layout: str, values: Any) -> None:
    if _PERCENT_WIDTH.search(layout):
        raise LimitReached("a format that is too wide")
    meter.weigh(values)


def _checked_method(meter: Meter, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method of a text, when the result will not be too large."""
    match name, args:
        case (("ljust" | "rjust" | "center" | "zfill"), (int() as width, *_)):
            _check_length(width)
        case "expandtabs", _:
            _check_length(len(owner) * max([8, *(n for n in args if isinstance(n, int))]))
        case "replace", (str() as old, str() as new, *_):
            _check_replaced(owner, old, new)
        case "join", (values,):
            return (_checked_parts(meter, owner, values),)
        case (("split" | "rsplit" | "splitlines"), _):
            mark = args[0] if args and isinstance(args[0], str) and args[0] else None
            n_pieces = owner.count(mark) if mark else sum(map(owner.count, " \t\n\r\f\v"))
            if n_pieces > _PIECES_MAX:
                raise LimitReached(f"a text of more than {_PIECES_MAX} pieces")
    return args


def _check_replaced(text: str, old: str, new: str) -> None:
    _check_length(len(text) + text.count(old) * len(new))


def _checked_parts(meter: Meter, between: str, values: Iterable[Any]) -> list[Any]:
    parts = []
    for value in values:
        meter.step()
        parts.append(value)
    meter.weigh(parts)
    _check_length(sum(map(_length, parts)) + len(parts) * len(between))
    return parts


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """What is put out."""
    if not isinstance(value, str):
        context[METER].weigh(value)
    return value


@pass_context
def _join(context: Context, *values: Any) -> str:
    """Jinja's `~`."""
    meter: Meter = context[METER]
    meter.step()
    meter.weigh(values)
    return "".join(map(str, values))


@pass_context
def _step(context: Context, value: Any) -> Any:
    """The same value."""
    context[METER].step()
    return value


@pass_context
def _weigh(context: Context, value: Any) -> Any:
    """The same value."""
    if not isinstance(value, str):
        context[METER].weigh(value)
    return value


# --- filters ----------------------------------------------------------------------------------------------------------

Guard = Callable[..., Any]


def _bounded_filters(known: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
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
    _check_length(width)


def _guard_format(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> None:
    _check_percent(meter, str(value), [*args, *kwargs.values()])


def _guard_indent(meter: Meter, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> None:
    meter.weigh(value)
    text = str(value)
    _check_length(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width))


def _guard_list(_meter: Meter, value: Any) -> None:
    if isinstance(value, str) and len(value) > _PIECES_MAX:
        raise LimitReached(f"a text of more than {_PIECES_MAX} pieces")


def _guard_replace(meter: Meter, value: Any, old: Any, new: Any, count: int | None = None) -> None:
    meter.weigh([value, old, new])
    _check_replaced(str(value), str(old), str(new))


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
    return str(d).join(map(str, _checked_parts(context[METER], str(d), value)))


# --- the program ------------------------------------------------------------------------------------------------------


def _with_steps(tree: nodes.Template, environment: jinja2.Environment) -> nodes.Template:
    """Turns of loops, macros and slices are steps, `~` calls `_join`, and what is compared or hashed is weighed."""
    if any(name.name in _RESERVED for name in tree.find_all(nodes.Name)):
        raise ValueError(f"{', '.join(sorted(_RESERVED))} are reserved names")
    for block in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        assert isinstance(block, nodes.For | nodes.Macro | nodes.CallBlock)
        turn = _call(_STEP, [nodes.Const(True, lineno=block.lineno)], block.lineno)
        block.body.insert(0, nodes.ExprStmt(turn, lineno=block.lineno))
        if isinstance(block, nodes.For) and block.test is not None:
            block.test = nodes.And(turn, block.test, lineno=block.lineno)
    _replace(tree)
    tree.set_environment(environment)
    return tree


def _call(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=lineno), arguments, [], None, None, lineno=lineno)


def _weighed(expression: nodes.Expr) -> nodes.Expr:
    return expression if isinstance(expression, nodes.Const) else _call(_WEIGH, [expression], expression.lineno)


def _replace(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, nodes.Node):
                continue
            _replace(child)
            if isinstance(child, nodes.Getitem) and isinstance(child.arg, nodes.Slice):
                child.node = _call(_STEP, [child.node], child.lineno)
            elif isinstance(child, nodes.Getitem):
                child.arg = _weighed(child.arg)
            if isinstance(child, nodes.Compare):
                child.expr = _weighed(child.expr)
            if isinstance(child, nodes.Operand):
                child.expr = _weighed(child.expr)
            if isinstance(child, nodes.Pair):
                child.key = _weighed(child.key)
            if isinstance(child, nodes.Concat):
                call = _call(_JOIN, child.nodes, child.lineno)
                if isinstance(value, list):
                    value[i] = call
                else:
                    setattr(node, field, call)
