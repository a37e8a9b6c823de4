"""The page against whoever means ill, or has bad luck: hostile words, refusals, other tabs, a reload, no mouse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

from sixfold.api.access.keys import new_key

from .test_chat import HOSTILE, OpenPage, Scripted, answer, ask, titles

FOCUSED = "document.activeElement.id || document.activeElement.textContent"


def fulfil(page: Any, events: list[Any], status: int = 200) -> None:
    """The next answers are these events, whoever would have sent them."""
    body = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    page.unroute_all()
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=status, body=body, headers={"content-type": "text/event-stream"}),
    )


def delta(text: str) -> dict[str, Any]:
    known = {"token": text, "bytes": list(text.encode()), "logprob": -0.5}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{**known, "top_logprobs": [known]}]}}
    return {"id": "chatcmpl-x", "choices": [choice]}


def kept(page: Any) -> list[list[str]]:
    """Texts of the conversations that the browser keeps."""
    found = json.loads(page.evaluate("localStorage.getItem('sixfold.conversations')"))
    return [[message["content"] for message in conversation["messages"]] for conversation in found]


def test_nobody_is_asked_but_the_server(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    urls: list[str] = []
    page.context.on("request", lambda request: urls.append(request.url))
    scripted(page, ["one ", "![x](https://example.invalid/a.png) <img src=https://example.invalid/b.png>\n"])
    ask(page)
    answer(page)
    for view in ("anatomy", "health", "chat"):
        page.goto(f"{server.url}/#{view}")
        page.locator(f"#{view}:not([hidden])").wait_for()
        page.reload()
        page.locator("#state", has_text="ready").wait_for()
    assert len(urls) > 30 and [url for url in urls if not url.startswith(f"{server.url}/")] == []


@pytest.mark.parametrize("width", [360, 1280])
def test_words_that_would_break_a_page_stay_in_their_place(server: Server, open_page: OpenPage, width: int) -> None:
    page = open_page(server.url)
    page.set_viewport_size({"width": width, "height": 740})
    page.on("dialog", lambda dialog: pytest.fail("a script of the model ran"))
    words = ["\u202eoverridden ", "\u05e9\u05dc\u05d5\u05dd ", "\x00\x1b[31m\x07", "[x](javascript:alert(1)) ", HOSTILE]
    words += ["a" * 20_000, "\n```html\n", HOSTILE + "y" * 5000, "\n```\n", "\u0301" * 2000, "</p></article></main>"]
    fulfil(page, [*map(delta, words), "[DONE]"])
    ask(page, f"\u202e{HOSTILE}{'t' * 3000}")
    answer(page)
    assert page.locator("main").count() == 1 and page.locator(".message img, .message a").count() == 0
    for element in ("document.documentElement", "document.querySelector('.log')"):
        assert page.evaluate(f"{element}.scrollWidth - {element}.clientWidth") <= 0, element
    assert page.locator("#send").is_visible() and page.locator("#message").is_visible()


def test_an_answer_of_many_thousand_tokens(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    fulfil(page, [*(delta(f"w{i} ") for i in range(20_000)), "[DONE]"])
    ask(page)
    assert answer(page).rstrip().endswith("w19999")
    assert page.locator(".token").count() == 0
    page.get_by_role("button", name="Show tokens").click()
    assert page.locator(".token").count() == 20_000


@pytest.mark.parametrize(
    ("status", "body", "shown"),
    [
        (429, '{"error": {"message": "the queue is full", "code": "queue_full"}}', "The queue is full."),
        (503, '{"error": {"message": "the engine restarts."}}', "The engine restarts."),
        (400, '{"error": {"message": "top_p is 7", "param": "top_p"}}', "Top_p is 7."),
        (502, "<html><script>alert(1)</script>", "The server answered 502."),
        (400, "null", "The server answered 400."),
        (400, '{"error": "plain"}', "The server answered 400."),
    ],
)
def test_a_refusal_is_told_in_its_words(
    server: Server, open_page: OpenPage, status: int, body: str, shown: str
) -> None:
    page = open_page(server.url)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, body=body))
    message = ask(page)
    message.get_by_text(shown, exact=True).wait_for()
    page.locator("#regenerate").wait_for()


def test_a_schema_that_is_no_json_is_told_where_the_answer_would_be(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_label("Answer with JSON of this schema").check()
    page.get_by_label("JSON schema").fill("{")
    page.set_viewport_size({"width": 360, "height": 740})
    page.get_by_text("How to answer").click()  # closed, as it is on a phone
    message = ask(page)
    message.get_by_text("Not sent: the schema is not JSON").wait_for()
    page.locator("#regenerate").wait_for()


def two_tabs(server: Server, open_page: OpenPage) -> tuple[Any, Any]:
    """Of one browser; the first has got the answer A to what it asked."""
    one = open_page(server.url)
    fulfil(one, [delta("A"), "[DONE]"])
    ask(one, "first")
    answer(one)
    other = one.context.new_page()
    other.goto(server.url)
    return one, other


def test_two_tabs_go_on_with_one_conversation(server: Server, open_page: OpenPage) -> None:
    one, other = two_tabs(server, open_page)
    fulfil(other, [delta("B"), "[DONE]"])
    ask(other, "second")
    answer(other)
    one.get_by_text("second", exact=True).wait_for()  # it is seen here, too
    ask(one, "third")
    answer(one)
    assert kept(one) == [["first", "A", "second", "B", "third", "A"]]
    other.get_by_text("third", exact=True).wait_for()
    other.get_by_role("button", name="Delete").click()
    one.get_by_text("Nothing has been said yet.").wait_for()
    assert kept(one) == []


def test_two_tabs_that_answer_in_one_conversation_at_once_keep_both(
    server: Server, open_page: OpenPage, scripted: Scripted
) -> None:
    one, other = two_tabs(server, open_page)
    scripted(one, ["one "] * 1500)
    ask(one, "slow").locator(".token").nth(3).wait_for()
    other.locator(".message", has_text="slow").wait_for()
    fulfil(other, [delta("B"), "[DONE]"])
    ask(other, "quick")
    answer(other)
    one.locator("#stop").click()
    one.locator("#regenerate").wait_for()
    texts = kept(one)
    assert len(texts) == 2 and {text for found in texts for text in found} >= {"slow", "quick", "B"}


def test_a_reload_in_the_middle_keeps_what_has_come(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one "] * 1500)
    ask(page).locator(".token").nth(5).wait_for()
    page.reload()
    message = page.locator(".message.assistant")
    message.get_by_text("Cut off here").wait_for()
    assert "one one one " in message.locator(".body").inner_text()
    server.wait_idle()


def test_what_another_version_kept_does_no_harm(server: Server, open_page: OpenPage) -> None:
    words = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x", "tokens": "abc", "usage": 3}]
    good = {"id": "1", "title": "t", "system": "", "messages": words, "colour": "red"}
    page = open_page(server.url)
    page.evaluate("kept => localStorage.setItem('sixfold.conversations', kept)", json.dumps([good]))
    page.evaluate('localStorage.setItem(\'sixfold.settings\', \'{"values": {"seed": {}}, "stop": {}, "schema": 7}\')')
    page.reload()
    page.locator("#state", has_text="ready").wait_for()
    assert page.locator(".message .body").all_inner_texts() == ["hi", "x"]
    assert page.get_by_label("Stop at").input_value() == "" and page.get_by_label("Seed").input_value() == ""


def test_a_browser_without_room_keeps_nothing_and_chats(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.evaluate(
        """() => { for (let size = 1 << 20; size; size >>= 1) {
            try { for (let i = 0; ; i++) localStorage.setItem(`${size}.${i}`, 'x'.repeat(size)); } catch {}
        } }"""
    )
    fulfil(page, [delta("A"), "[DONE]"])
    ask(page, "first")
    assert answer(page) == "A"


def test_all_can_be_done_without_a_mouse(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one "] * 1500)
    ask(page).locator(".token").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("#regenerate").wait_for()
    page.locator("#regenerate").press("Enter")
    page.locator("#stop").wait_for()
    assert page.evaluate(FOCUSED) == "message", "what had the focus is gone"
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == "stop"
    page.keyboard.press("Enter")
    page.locator("#regenerate").wait_for()
    assert page.evaluate(FOCUSED) == "message"
    page.get_by_role("button", name="Edit").press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == "Edit" and page.locator(".editor").count() == 0
    fulfil(page, [delta("B"), "[DONE]"])
    page.get_by_role("button", name="Edit").press("Enter")
    page.keyboard.type("!")
    page.keyboard.press("Control+Enter")
    assert answer(page) == "B"
    page.get_by_role("button", name="Delete").press("Enter")
    assert page.evaluate(FOCUSED) == "New chat" and titles(page) == []


def test_keys_are_checked_told_and_sent_to_nobody_else(open_page: OpenPage, tmp_path: Path) -> None:
    keys = {scope: new_key() for scope in ("user", "admin")}
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[{s}]\nsha256 = "{d}"\nscope = "{s}"\n' for s, (_, d) in keys.items()))
    os.chmod(file, 0o600)
    script = tmp_path / "script.json"  # an answer that is still there when it is followed
    script.write_text(json.dumps({"tokens": ["one "], "step_ms": 10}))
    flags = ("--script", str(script), "--api-key-file", str(file), "--api-server-count", "2")
    with Server("scripted", *flags) as guarded:
        page = open_page(f"{guarded.url}/#anatomy")
        sent: list[tuple[str, str | None]] = []
        page.context.on("request", lambda one: sent.append((one.url, one.headers.get("authorization"))))

        def use(key: str) -> None:
            if not page.locator("#key-dialog").is_visible():
                page.locator("#key-button").click()
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Use this key").click()

        use("\u043a\u043b\u044e\u0447")
        page.locator("#key-why", has_text="This is no key").wait_for()
        use("wrong")
        page.locator("#key-why", has_text="not valid").wait_for()
        use(keys["user"][0])
        page.locator("#key-why", has_text="admin key").wait_for()
        assert page.get_by_text("No request is here now").is_hidden(), "nobody knows"
        page.get_by_role("button", name="Cancel").click()
        page.locator("#chat").wait_for()
        page.get_by_role("link", name="Anatomy").click()
        page.locator("#key-why", has_text="admin key").wait_for()
        use(keys["admin"][0])
        page.locator("#state", has_text="ready").wait_for()
        assert page.locator("#anatomy .banner").is_hidden()
        assert keys["admin"][0] not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
        follow_from_the_chat(page, 4)
        assert {url.startswith(f"{guarded.url}/") for url, _ in sent} == {True}
        assert {url for url, key in sent if key is None and "/page/" not in url} <= {f"{guarded.url}/readyz"}


def follow_from_the_chat(page: Any, times: int) -> None:
    """Whichever API process answers the chat, and whichever one is watched."""
    for _ in range(times):
        page.get_by_role("link", name="Chat").click()
        page.locator("#new-chat").click()
        ask(page, "Go on.").locator(".token").first.wait_for()
        page.get_by_role("link", name="Follow this request").click()
        page.locator("section.follow", has_text="written").locator("li[aria-current]").wait_for()
        page.get_by_role("link", name="Chat").click()
        page.locator("#stop").click()
        page.locator("#send").wait_for()
