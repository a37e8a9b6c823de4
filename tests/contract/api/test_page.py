"""The web page's files: who gets them, and that nothing in them can be made to run what a model says."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from sixfold.api.access.keys import new_key
from sixfold.api.web import FILES, PAGE_PATHS

from .conftest import Target

FOLDER = Path(str(resources.files("sixfold.api"))) / "page"
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_the_list_of_files_is_what_is_there() -> None:
    assert sorted(FILES) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_files_come_with_their_type_and_are_asked_for_once(target: Target, name: str) -> None:
    answer = target.get(f"/page/{name}")
    assert answer.status == 200 and answer.body == (FOLDER / name).read_bytes()
    kinds = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
    again = target.get(f"/page/{name}", **{"If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert target.get(f"/page/{name}", **{"If-None-Match": '"other"'}).status == 200


def test_the_address_gives_a_browser_the_page_and_others_a_text(target: Target) -> None:
    page = target.get("/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert page.headers["content-type"].startswith("text/html") and page.headers["vary"] == "accept"
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        text = target.get("/", **accept)
        assert text.headers["content-type"].startswith("text/plain") and b"<html" not in text.body


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
def test_threat_23_only_the_pages_own_scripts_run_and_nobody_frames_it(target: Target, path: str) -> None:
    headers = target.get(path, Accept="text/html").headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    for kind in ("script-src", "style-src", "connect-src"):
        assert policy[kind] == "'self'"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", SCRIPTS)
def test_threat_23_text_never_becomes_markup(name: str) -> None:
    text = (FOLDER / name).read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function(",
                 "createContextualFragment", "srcdoc", "setHTML"):  # fmt: skip
        assert word not in text, word


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), name
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    assert set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page)) <= PAGE_PATHS


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_what_is_served(name: str) -> None:
    assert {f"/page/{other}" for other in re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text())} <= PAGE_PATHS


@pytest.mark.parametrize(
    "path", ["/page/", "/page/other.js", "/page/../web.py", "/page/%2e%2e/web.py", "/page/main.js/"]
)
def test_nothing_else_is_served(target: Target, path: str) -> None:
    assert target.get(path).status == 404


def test_with_keys_the_page_is_open_and_everything_that_it_asks_for_is_not(serve: Any, tmp_path: Path) -> None:
    key, digest = new_key()
    file = tmp_path / "keys.toml"
    file.write_text(f'[alice]\nsha256 = "{digest}"\n')
    os.chmod(file, 0o600)
    target, _ = serve(api_key_file=str(file))
    page = target.get("/", Accept="text/html")
    assert page.status == 200 and target.model.encode() not in page.body
    assert all(target.get(path).status == 200 for path in PAGE_PATHS)
    assert target.get("/").status == 401, "the text names the model"
    assert target.get("/page/other.js").status == 401
    assert target.get("/", Authorization=f"Bearer {key}").status == 200
