"""Finds the places in a source where one part waits for another: a lint, in one pass over the syntax tree.

What counts: `await` of anything but a coroutine of ours (whose own body is looked at), `async with`, `async for`, calls
of what blocks (`wait`, `join`, `acquire`, `select`, `poll`, `accept`, `recv`, `sendall`, `sleep`, `result`, `flock`
...), sending with `block=True`, reading a pipe, and `with` a lock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Wait", "coroutines", "waits"]

BLOCKING = frozenset(
    {
        "accept",
        "acquire",
        "check_call",
        "check_output",
        "communicate",
        "connect",
        "fetch",
        "flock",
        "poll",
        "receive_one",
        "recv",
        "recv_into",
        "run_in_executor",
        "select",
        "sendall",
        "sleep",
        "to_thread",
        "urlopen",
        "wait",
        "wait_for",
    }
)
"""Names of functions and methods that may block."""

ARGUMENTLESS = frozenset({"join", "result"})
"""The same, of objects that wait; with other arguments than a time they are something else (`str.join`)."""

NO_WAIT = frozenset({"timeout", "timeout_at"})
"""`async with` one of these only bounds what is waited for inside."""


class Wait(NamedTuple):
    """One place."""

    file: str
    function: str
    line: int
    what: str

    @property
    def where(self) -> str:
        return f"{self.file}: {self.function}"


def coroutines(trees: Iterable[ast.AST]) -> frozenset[str]:
    """Names of all `async def`."""
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))


def waits(file: str, tree: ast.AST, own: frozenset[str]) -> list[Wait]:
    """The waits of one source.

    Args:
        own: names of coroutines, awaiting which is no wait by itself.
    """
    finder = _Finder(file, own)
    finder.visit(tree)
    return finder.found


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_time(node: ast.expr) -> bool:
    """Whether an argument is a number of seconds, and not what `str.join` takes."""
    return (isinstance(node, ast.Constant) and isinstance(node.value, int | float)) or _name(node).lower().endswith(
        "_s"
    )


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, own: frozenset[str]) -> None:
        self._file = file
        self._own = own
        self._functions = ["<module>"]
        self.found: list[Wait] = []

    def _note(self, node: ast.AST, what: str) -> None:
        line = getattr(node, "lineno", 0)
        if not self.found or self.found[-1].line != line:
            self.found.append(Wait(self._file, self._functions[-1], line, what))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Await(self, node: ast.Await) -> None:
        if not isinstance(node.value, ast.Call) or _name(node.value) not in self._own:
            self._note(node, f"await {ast.unparse(node.value)}")
        self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            if _name(item.context_expr) not in NO_WAIT:
                self._note(node, f"async with {ast.unparse(item.context_expr)}")
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._note(node, f"async for {ast.unparse(node.iter)}")
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if "lock" in _name(item.context_expr).lower():
                self._note(node, f"with {ast.unparse(item.context_expr)}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        blocks = any(k.arg == "block" and getattr(k.value, "value", True) for k in node.keywords)
        is_pipe = isinstance(node.func, ast.Attribute) and ast.unparse(node.func) in ("os.read", "subprocess.run")
        is_patient = name in ARGUMENTLESS and (not node.args or _is_time(node.args[0]))
        if name in BLOCKING or is_patient or blocks or is_pipe:
            self._note(node, ast.unparse(node))
        self.generic_visit(node)
