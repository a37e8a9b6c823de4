"""Debian's Chromium under Playwright, and requests that keep a server busy while somebody looks."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.serving import Server

__all__ = ["CHROMIUM", "busy", "chromium", "why_not"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def why_not() -> str:
    """Why the page cannot be driven here; empty where it can."""
    if CHROMIUM is None:
        return "Debian's package chromium is not installed"
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "the Python package playwright is not installed"
    return ""


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser (`playwright.sync_api.Browser`)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def busy(server: Server, bodies: list[dict[str, Any]], path: str = "/v1/chat/completions") -> Iterator[None]:
    """One stream for each body, read until the end; those that are not done are hung up at the end."""
    connections = []
    threads = []

    def read(connection: Any, body: dict[str, Any]) -> None:
        try:
            sent = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps({**body, "stream": True}), sent)
            connection.getresponse().read()
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # hung up below

    for body in bodies:
        connection = server.connection()
        thread = threading.Thread(target=read, args=(connection, body), daemon=True)
        connections.append(connection)
        threads.append(thread)
        thread.start()
    try:
        yield
    finally:
        for connection in connections:
            if connection.sock is not None:
                connection.sock.shutdown(2)
        for thread in threads:
            thread.join(10)
        for connection in connections:
            connection.close()
