"""A browser for each file, and one scripted server for all tests of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.serving import Server

from .browser import chromium, why_not

REASON = why_not()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if REASON:
        for item in items:
            if item.path.parent.name == "page":
                item.add_marker(pytest.mark.skip(reason=f"the page cannot be driven: {REASON}"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not of the session: as long as it is there, no event loop but its own runs in this process."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Steps of ten milliseconds: an answer can be watched."""
    script = tmp_path_factory.mktemp("page") / "script.json"
    words = ["one ", "two ", "three ", "<b>bold</b><img src=x onerror=alert(1)>", '{"answer":"yes","sure":true}']
    script.write_text(json.dumps({"tokens": words, "step_ms": 10}))
    with Server("scripted", "--script", str(script), "--num-kv-blocks", "1024", "--max-num-seqs", "12") as running:
        yield running


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a fresh profile; at the end it must not have failed anywhere."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_(url: str, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if "Content Security" in message.text else None)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def scripted() -> Callable[[Any, list[Any]], None]:
    """`scripted(page, tokens)`: the next answers are these."""

    def use(page: Any, tokens: list[Any]) -> None:
        def add(route: Any) -> None:
            body = {**json.loads(route.request.post_data), "script": tokens}
            route.continue_(post_data=json.dumps(body))

        page.unroute_all()
        page.route("**/v1/chat/completions", add)

    return use
