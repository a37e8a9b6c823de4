"""Nothing in the package turns data into code: what comes from sockets, requests, files and templates is data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "sixfold"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code"}
MODULES |= {"multiprocessing", "xmlrpc", "torch"}
"""Loaders that run what they read, and modules that use one underneath."""
CALLS = {"eval", "exec", "compile", "__import__"}
ARGUMENTS = {"allow_pickle"}


def faults(source: str) -> list[str]:
    """What in a module's source could run data, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                names = [module]
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                names = [name]
            case ast.keyword(arg=str(name), value=value) if name in ARGUMENTS:
                names = [] if isinstance(value, ast.Constant) and value.value is False else [name]
        found += [f"line {node.lineno}: {name}" for name in names]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_O46_data_is_never_run(path: Path) -> None:
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal",
        "from pickle import loads",
        "def f():\n    import multiprocessing.reduction",
        "x = eval(y)",
        "numpy.load(f, allow_pickle=True)",
        "numpy.load(f, allow_pickle=flag)",
    ],
)
def test_O46_the_scan_finds_what_it_looks_for(source: str) -> None:
    assert len(faults(source)) == 1


def test_O46_the_scan_lets_data_pass() -> None:
    assert faults("import re, json\nre.compile('x')\nnumpy.load(f, allow_pickle=False)") == []
