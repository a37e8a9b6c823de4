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

import re
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sixfold.text.template_filters import bounded_filters, bounded_tests
from sixfold.text.template_meter import (
    METER,
    PIECES_MAX,
    LimitReached,
    Meter,
    check_length,
    check_percent,
    check_replaced,
    checked_parts,
    length_of,
)

__all__ = ["compile_program"]

_INTEGER_BITS_MAX = 4096
_JOIN, _STEP, _WEIGH = "sixfold_join", "sixfold_step", "sixfold_weigh"
_RESERVED = frozenset({METER, _JOIN, _STEP, _WEIGH})
_ABSENT_METHODS = frozenset({"encode", "translate"})
_BRACES_WIDTH = re.compile(r":[^{}]*(\d{4}|\{)")


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
    environment.filters = bounded_filters(environment.filters)
    environment.tests = bounded_tests(environment.tests)
    tree = _with_steps(environment.parse(source), environment)
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


# --- operators, calls, output -----------------------------------------------------------------------------------------


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context[METER]
        meter.step()
        if operator == "%":
            if isinstance(left, str):
                check_percent(meter, left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _INTEGER_BITS_MAX:
                raise LimitReached("a number that is too large")
        elif operator == "*":
            check_length(length_of(left) * _repeats(right) + length_of(right) * _repeats(left))
        elif operator == "+":
            check_length(length_of(left) + length_of(right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _ABSENT_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            if _BRACES_WIDTH.search(value.__self__):
                raise LimitReached("a format that is too wide")
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


def _repeats(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _checked_method(meter: Meter, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method of a text, when the result will not be too large."""
    match name, args:
        case (("ljust" | "rjust" | "center" | "zfill"), (int() as width, *_)):
            check_length(width)
        case "expandtabs", _:
            check_length(len(owner) * max([8, *(n for n in args if isinstance(n, int))]))
        case "replace", (str() as old, str() as new, *_):
            check_replaced(owner, old, new)
        case "join", (values,):
            return (checked_parts(meter, owner, values),)
        case (("split" | "rsplit" | "splitlines"), _):
            mark = args[0] if args and isinstance(args[0], str) and args[0] else None
            n_pieces = owner.count(mark) if mark else sum(map(owner.count, " \t\n\r\f\v"))
            if n_pieces > PIECES_MAX:
                raise LimitReached(f"a text of more than {PIECES_MAX} pieces")
    return args


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
            elif isinstance(child, nodes.Compare | nodes.Operand):
                child.expr = _weighed(child.expr)
            elif isinstance(child, nodes.Pair):
                child.key = _weighed(child.key)
            elif isinstance(child, nodes.Concat):
                call = _call(_JOIN, child.nodes, child.lineno)
                if isinstance(value, list):
                    value[i] = call
                else:
                    setattr(node, field, call)
