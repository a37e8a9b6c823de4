"""What the documentation says exists, exists; what exists is said."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from sixfold.api.app import ROUTES
from sixfold.config import settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sixfold"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|sh|cc|h|toml|txt))`")
"""A path in backticks: with a slash, or a bare file name."""
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MADE_LATER = ("build/", "dist/", ".venv/")
"""Folders that a command makes."""


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exists(path: str, page: Path) -> bool:
    """Relative to the page, the repository or the package; a bare file name may lie anywhere in the sources."""
    if any((folder / path).exists() for folder in (page.parent, ROOT, PACKAGE)):
        return True
    return "/" not in path and any(ROOT.glob(f"{top}/**/{path}") for top in ("src", "native", "tests", "scripts"))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_and_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    named = {path for path in PATH.findall(text) if not path.startswith(("/", "v1/", "org/", *MADE_LATER))}
    linked = {link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")}
    missing = sorted(path for path in named | linked if not exists(path, page))
    assert not missing


def test_pages_made_from_the_program_are_fresh() -> None:
    assert load_script("write_docs").stale() == [], "run scripts/write_docs.py"


def test_every_endpoint_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    paths = [re.sub(r":\w+}", "}", path) for _, path, _ in ROUTES]
    assert [path for path in paths if path not in text] == []


def test_every_source_file_has_its_place_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (?:`([\w/]+)/`|itself) \| (.*\.py`.*) \|$", text, re.MULTILINE)
    said = [str(Path(folder, name)) for folder, files in rows for name in re.findall(r"`(\w+\.py)`", files)]
    files = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    assert sorted(said) == sorted(files), "the table in `Where what is` of docs/architecture.md"


def test_every_setting_has_help() -> None:
    for flag, (_, f) in settings().items():
        assert f.metadata["help"], flag


def test_the_configuration_stays_small() -> None:
    assert len(settings()) <= 48


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [(page.parent / link).resolve() for link in LINK.findall(page.read_text()) if link.endswith(".md")]
        todo += [target for target in targets if target.is_file()]
    assert set(PAGES) - seen == set()


def test_the_functions_of_a_requests_way_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("### The same, as functions")[2].partition("\n## ")[0]
    named = {name for row in table.splitlines() if row.startswith("|") for name in re.findall(r"`([\w.]+)`", row)}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, FUNCTION)}
            elif isinstance(node, FUNCTION):
                found.add(node.name)
    assert len(named) > 30 and named - found == set()
