"""The anatomy and the health in a browser: what is shown while sixteen answers are made, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

from .browser import busy

OpenPage = Callable[..., Any]


def stories(n: int, max_tokens: int = 500) -> list[dict[str, Any]]:
    return [
        {
            "messages": [{"role": "user", "content": f"{i} " * (20 + 10 * i)}],
            "max_tokens": max_tokens,
            "request_id": f"r{i}",
        }
        for i in range(n)
    ]


COLOURED = """() => {
    const canvas = document.querySelector('canvas.map'), ratio = canvas.width / canvas.clientWidth;
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; i < data.length; i += 4) {
        const rgb = [data[i], data[i + 1], data[i + 2]];
        if (Math.max(...rgb) - Math.min(...rgb) > 60) {
            return [(i / 4 % canvas.width + 1) / ratio, (Math.floor(i / 4 / canvas.width) + 1) / ratio];
        }
    }
    return null;
}"""
"""Where a canvas shows the first block that somebody holds."""


def colours(page: Any, selector: str) -> int:
    """How many different colours a canvas shows."""
    return int(
        page.evaluate(
            """selector => {
                const canvas = document.querySelector(selector);
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                return new Set(new Uint32Array(data.buffer)).size;
            }""",
            selector,
        )
    )


def test_sixteen_requests_are_seen_and_one_is_followed_to_its_end(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#anatomy")
    page.locator("#state", has_text="ready").wait_for()
    rows = page.locator(".requests tbody tr:not(.ended)")
    with busy(server, stories(16)):
        rows.nth(15).wait_for()
        page.locator(".part.scheduler", has_text="12 run, 4 wait").wait_for()
        assert page.locator(".part.api .figure").inner_text() == "16 requests"
        assert page.locator(".waits .some").first.inner_text().startswith("For a place")
        assert colours(page, "canvas.map") > 12, "a colour for each"
        rows.nth(2).locator("button").click()
        follow = page.locator(".follow")
        follow.get_by_text("writes", exact=True).wait_for()
        assert "#anatomy/chatcmpl-" in page.url
        follow.locator("li[aria-current=step]", has_text="written").wait_for()
        follow.locator("dd", has_text="ended (length)").wait_for(timeout=30_000)
        assert follow.locator("dd", has_text="500").count() >= 1
    page.locator(".part.scheduler", has_text="0 run, 0 wait").wait_for()


def test_a_block_leads_to_its_request(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#anatomy")
    with busy(server, stories(1)):
        page.locator(".requests tbody tr:not(.ended)").first.wait_for()
        page.wait_for_function("document.querySelector('canvas.map').width > 0")
        page.wait_for_function(f"({COLOURED})() !== null")  # free, shared and cached ones are grey
        box = page.locator("canvas.map").bounding_box()
        x, y = page.evaluate(COLOURED)
        page.mouse.click(box["x"] + x, box["y"] + y)
        page.locator(".follow").wait_for()


def test_a_chat_can_be_followed(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_label("Longest answer").fill("250")
    page.get_by_label("Message", exact=True).fill("Tell me.")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Follow this request").click()
    page.locator(".follow", has_text="written").wait_for()
    page.locator(".follow dd", has_text="ended (length)").wait_for()
    page.get_by_role("button", name="Stop following").click()
    page.locator(".follow").wait_for(state="hidden")


def test_a_lost_feed_is_shown_and_comes_back(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#anatomy")
    page.locator("#state", has_text="ready").wait_for()
    page.route("**/debug/live*", lambda route: route.abort())
    api = next(pid for pid, line in server.children().items() if "api 0" in line)
    os.kill(api, 9)
    page.locator("#anatomy .banner", has_text="The connection is lost").wait_for()
    page.locator("#state", has_text="connection lost").wait_for()
    page.unroute_all()
    page.locator("#state", has_text="ready").wait_for()
    page.locator("#anatomy .banner").wait_for(state="hidden")


def test_nobody_watches_while_nobody_looks(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#anatomy")
    page.locator("#state", has_text="ready").wait_for()
    assert frames_seen(server) == 2, "this page, and the question itself"
    page.get_by_role("link", name="Chat").click()
    page.wait_for_function("location.hash === '#chat'")
    while frames_seen(server) != 1:
        page.wait_for_timeout(20)


def frames_seen(server: Server) -> int:
    """Watchers, who asks among them."""
    _, _, data = server.request("GET", "/debug/live?frames=1&interval_ms=16")
    return int(data.split(b'"n_watchers":')[1].split(b",")[0].split(b"}")[0])


def test_what_the_page_holds_is_bounded_however_much_happens(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#anatomy")
    page.locator("#state", has_text="ready").wait_for()
    for _ in range(6):
        with busy(server, stories(12, max_tokens=2)):
            page.locator(".requests tbody tr").nth(11).wait_for()
            page.wait_for_timeout(150)
    server.wait_idle()
    assert page.locator(".requests tbody tr").count() <= 40
    assert page.evaluate("document.querySelectorAll('*').length") < 1100


@pytest.mark.model
def test_the_steps_of_a_model_are_shown_process_by_process(model_path: Path, open_page: OpenPage) -> None:
    with Server(str(model_path), "--num-kv-blocks", "256") as server:
        page = open_page(f"{server.url}/#anatomy")
        page.locator("#state", has_text="ready").wait_for()
        with busy(server, stories(2, max_tokens=200)):
            page.locator(".requests tbody tr:not(.ended)").first.wait_for()
            page.locator(".panel", has_text="The latest steps").get_by_text("Point at a piece").wait_for()
            assert colours(page, "canvas.steps") > 4
            page.locator(".places td", has_text="worker.forward").wait_for()
            page.get_by_role("button", name="Hold still").click()
            page.get_by_role("button", name="Go on").wait_for()


def test_health_shows_what_is_loaded(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#health")
    page.locator("[data-card=Model]", has_text="scripted").wait_for()
    assert "1,024 of 16 tokens" in page.locator("[data-card=Memory]").inner_text()
    assert "none" in page.locator("[data-card=Keys]").inner_text()


@pytest.mark.parametrize("view", ["chat", "anatomy", "health"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_all_of_it_and_nothing_sticks_out(
    server: Server, open_page: OpenPage, view: str, theme: str
) -> None:
    page = open_page(f"{server.url}/#{view}", color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("#state", has_text="ready").wait_for()
    wide = page.evaluate(
        """() => [...document.querySelectorAll('main *, header *')].filter((element) => {
            if (element.closest('.scroll')) return false;
            const box = element.getBoundingClientRect();
            return box.width && (box.right > innerWidth + 1 || box.left < -1);
        }).map((element) => element.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 384) == (theme == "dark")


def test_everything_is_named_and_can_be_reached_by_keyboard(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.locator("#state", has_text="ready").wait_for()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, textarea')].filter((element) =>
            !element.textContent.trim() && !element.getAttribute('aria-label') && !element.closest('label')
        ).map((element) => element.outerHTML)"""
    )
    assert nameless == []
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"))
    assert {"Chat", "Anatomy", "Health", "key-button", "theme"} <= seen
    page.locator("#theme").press("Enter")
    assert "light" in page.locator("#theme").inner_text()
