"""The chat in a browser: streaming, stopping, changing what was said, a schema, a key, a server that goes away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

from sixfold.api.access.keys import new_key
from sixfold.cli.chat import CHAT_SAMPLING

OpenPage = Callable[..., Any]
Scripted = Callable[[Any, list[Any]], None]
HOSTILE = "<b>bold</b><img src=x onerror=alert(1)>"


def ask(page: Any, text: str = "Count.") -> Any:
    """Send a message; the last answer's element."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    return page.locator(".message.assistant").last


def answer(page: Any) -> str:
    """The text of the answer, once it is complete."""
    page.locator("#regenerate").wait_for()
    return str(page.locator(".message.assistant .body").last.text_content())


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server that asks for a key, and a user's key."""
    key, digest = new_key()
    file = tmp_path / "keys.toml"
    file.write_text(f'[alice]\nsha256 = "{digest}"\n')
    os.chmod(file, 0o600)
    with Server("scripted", "--api-key-file", str(file)) as running:
        yield running, key


def test_an_answer_is_streamed(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one ", "two ", "three "] * 30)
    message = ask(page)
    message.locator(".token").nth(3).wait_for()
    assert message.get_attribute("aria-busy") == "true", "it is not complete yet"
    page.locator("#stop").wait_for()
    assert answer(page) == "one two three " * 30
    assert "91 written" in message.locator(".foot").inner_text()
    message.locator(".token").nth(1).hover()
    page.get_by_role("tooltip").wait_for()
    assert "100 %" in page.get_by_role("tooltip").inner_text()


def test_stop_in_the_middle(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one "] * 1500)
    message = ask(page)
    message.locator(".token").nth(5).wait_for()
    page.locator("#stop").click()
    assert 5 < answer(page).count("one") < 1500
    assert message.get_by_text("Stopped.").is_visible()
    server.wait_idle()


def test_what_a_model_says_is_text(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    page.on("dialog", lambda dialog: pytest.fail("a script of the model ran"))
    page.get_by_label("Show how likely each token was").uncheck()
    scripted(page, [HOSTILE, "\n", "```\n", HOSTILE, "\n", "```\n"])
    ask(page, HOSTILE)
    assert HOSTILE in answer(page)
    assert page.locator(".message img, .message b").count() == 0
    assert page.locator(".message.assistant pre code").inner_text().strip() == HOSTILE


def test_edit_regenerate_and_what_is_kept(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one "])
    ask(page, "first")
    answer(page)
    scripted(page, ["two "])
    page.locator("#regenerate").click()
    page.locator(".message.assistant", has_text="two").wait_for()
    assert page.locator(".message").count() == 2
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Change the message").fill("other")
    page.get_by_role("button", name="Send again").click()
    assert answer(page).strip() == "two"
    page.reload()
    assert page.locator(".message.user .body").all_inner_texts() == ["other"]
    page.locator("#new-chat").click()
    assert page.locator(".message").count() == 0
    page.get_by_role("button", name="other", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save “other” as a file").click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert [one["role"] for one in saved["messages"]] == ["user", "assistant"]


def test_a_first_visit_samples_as_chat_does_and_a_later_one_as_was_chosen(server: Server, open_page: OpenPage) -> None:
    two_are_filled = "() => [...document.querySelectorAll('.numbers input')].filter(one => one.value).length === 2"
    page = open_page(server.url)
    page.wait_for_function(two_are_filled)
    chosen = [page.get_by_label(name, exact=True).input_value() for name in ("Temperature", "Top p")]
    assert [float(one) for one in chosen] == list(CHAT_SAMPLING.values())
    page.get_by_role("button", name="Use the server's defaults").click()
    page.reload()
    page.locator("#state", has_text="ready").wait_for()
    assert page.get_by_label("Temperature").input_value() == ""


def test_settings_reach_the_server_and_empty_ones_do_not(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="Use the server's defaults").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer").fill("3")
    page.get_by_label("Stop at").fill("END\nSTOP")
    with page.expect_request("**/v1/chat/completions") as request:
        message = ask(page, "hi")
    body = json.loads(request.value.post_data)
    assert (body["temperature"], body["max_tokens"], body["stop"]) == (0, 3, ["END", "STOP"])
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert not {"top_p", "top_k", "min_p", "seed", "response_format"} & set(body)
    answer(page)
    assert message.get_by_text("Cut at its longest length.").is_visible()


def test_a_schema_is_held_to_and_a_wrong_one_is_explained(
    server: Server, open_page: OpenPage, scripted: Scripted
) -> None:
    page = open_page(server.url)
    page.get_by_label("Answer with JSON of this schema").check()
    scripted(page, ['{"answer":"yes","sure":true}'])
    ask(page)
    assert json.loads(answer(page)) == {"answer": "yes", "sure": True}
    page.get_by_label("JSON schema").fill('{"type": "object", "minimumm": 3}')
    page.get_by_role("button", name="Check with the server").click()
    page.locator("#schema-state", has_text="minimumm").wait_for()
    page.get_by_label("JSON schema").fill("{")
    page.locator("#schema-state", has_text="Not JSON").wait_for()


def test_the_servers_words_are_shown_where_it_refuses(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_label("Top p").fill("7")
    message = ask(page)
    message.get_by_text("top_p").wait_for()
    page.locator("#regenerate").wait_for()


def test_a_key_is_asked_for_and_sent(open_page: OpenPage, guarded: tuple[Server, str]) -> None:
    server, key = guarded
    page = open_page(server.url)
    page.get_by_label("Longest answer").fill("4")
    ask(page)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    page.locator("#key-why", has_text="not valid").wait_for()
    page.get_by_label("API key").fill(key)
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Use this key").click()
    page.locator(".message.assistant .token").first.wait_for()
    sent = json.loads(asked.value.post_data)
    assert {name: sent[name] for name in CHAT_SAMPLING} == CHAT_SAMPLING, "a first visit, now that there is a key"
    assert page.locator("#key-dialog").is_hidden()
    assert page.evaluate("Object.values(localStorage).join()").find(key) < 0
    page.goto(f"{server.url}/#health")
    page.locator("#key-why", has_text="This view needs an admin key").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.locator("#chat").wait_for()


def test_whoever_cancels_is_told_for_a_person_and_may_think_again(
    open_page: OpenPage, guarded: tuple[Server, str]
) -> None:
    server, key = guarded
    page = open_page(server.url)
    page.get_by_label("Temperature", exact=True).fill("0")
    ask(page)
    page.locator("#key-why", has_text="Whoever runs it gives you one").wait_for()
    assert page.get_by_role("button", name="Forget the key").is_hidden(), "there is none"
    page.get_by_role("button", name="Cancel").click()
    page.locator(".message .hint[data-kind=bad]", has_text="This server asks for a key.").wait_for()
    page.locator("#key-button").click()
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    page.reload()
    with page.expect_request("**/v1/chat/completions") as asked:
        page.locator("#regenerate").click()
    answer(page)
    sent = json.loads(asked.value.post_data)
    assert sent["temperature"] == 0 and "top_p" not in sent, "somebody has chosen"
    page.locator("#key-button").click()
    page.get_by_role("button", name="Forget the key").click()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_lost_connection_is_shown_and_recovered(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    page.locator("#state", has_text="ready").wait_for()
    scripted(page, ["one "] * 1500)
    message = ask(page)
    message.locator(".token").nth(3).wait_for()
    page.route("**/readyz", lambda route: route.abort())
    os.kill(next(pid for pid, line in server.children().items() if "api 0" in line), 9)
    message.get_by_text("The connection was lost here.").wait_for()
    page.locator(".banner", has_text="The connection is lost").wait_for()
    page.unroute_all()
    page.locator(".banner", has_text="Connected again").wait_for()
    scripted(page, ["two "])
    page.locator("#regenerate").click()
    assert answer(page).strip() == "two"


def test_a_restart_of_the_engine_is_a_pause(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    scripted(page, ["one "] * 200 + ["two "])
    message = ask(page)
    message.locator(".token").nth(3).wait_for()
    engine = next(pid for pid, line in server.children().items() if "engine" in line)
    os.kill(engine, 9)
    assert answer(page) == "one " * 200 + "two "


@pytest.mark.parametrize("place", ["toString", "__proto__", "nowhere", "anatomy/%E0%A4%A", "chat/%"])
def test_an_address_that_names_nothing_shows_a_view(server: Server, open_page: OpenPage, place: str) -> None:
    page = open_page(f"{server.url}/#{place}")
    page.locator(".view:not([hidden])").wait_for()
    assert page.locator("#state").inner_text() != "" and page.locator('[aria-current="page"]').count() == 1


def test_a_browser_that_keeps_nothing_can_chat(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    page = open_page(server.url)
    page.add_init_script(
        "for (const name of ['localStorage', 'sessionStorage'])"
        " Object.defineProperty(window, name, {get() { throw new DOMException('denied', 'SecurityError'); }});"
    )
    page.reload()
    scripted(page, ["one "])
    ask(page)
    assert answer(page) == "one "
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme: light").wait_for()


def test_what_is_kept_is_only_believed_where_this_page_wrote_it(server: Server, open_page: OpenPage) -> None:
    good = {"id": "1", "title": HOSTILE, "system": "", "messages": [{"role": "user", "content": HOSTILE}]}
    junk: list[Any] = [None, 3, {"id": "2", "messages": [None]}, {**good, "id": "3", "messages": [{"role": "x"}]}]
    page = open_page(server.url)
    page.evaluate("kept => localStorage.setItem('sixfold.conversations', kept)", json.dumps([*junk, good]))
    page.evaluate(
        "localStorage.setItem('sixfold.settings', '[null'); localStorage.setItem('sixfold.theme', 'toString')"
    )
    page.reload()
    assert page.locator(".message .body").all_inner_texts() == [HOSTILE]
    assert page.locator(".conversations li").count() == 1 and page.locator(".message img").count() == 0
    page.evaluate("localStorage.setItem('sixfold.conversations', 'null')")
    page.reload()
    page.get_by_text("Nothing has been said yet.").wait_for()


def titles(page: Any) -> list[str]:
    return [one["title"] for one in json.loads(page.evaluate("localStorage.getItem('sixfold.conversations')") or "[]")]


def test_two_tabs_keep_each_others_conversations(server: Server, open_page: OpenPage, scripted: Scripted) -> None:
    one = open_page(server.url)
    with one.context.expect_page() as opened:
        one.evaluate("url => { window.open(url); }", server.url)
    other = opened.value
    other.locator("#message").wait_for()
    for page, text in ((one, "first"), (other, "second"), (one, "third")):
        scripted(page, ["one "])
        page.locator("#new-chat").click()
        ask(page, text)
        answer(page)
    assert sorted(titles(one)) == ["first", "second", "third"]
    one.get_by_role("button", name="Delete “second”").click()
    assert sorted(titles(one)) == ["first", "third"]


def test_a_conversation_that_is_too_long_costs_no_other(
    server: Server, open_page: OpenPage, scripted: Scripted
) -> None:
    page = open_page(server.url)
    scripted(page, ["one "])
    ask(page, "short")
    answer(page)
    page.locator("#new-chat").click()
    ask(page, "long " + "x" * 2_000_000)
    page.locator("#regenerate").wait_for()  # the server refuses it
    assert titles(page) == ["short"] and page.locator(".conversations li").count() == 2
    page.get_by_role("button", name="short", exact=True).click()
    assert answer(page) == "one "


def test_another_conversation_chosen_while_an_answer_comes(
    server: Server, open_page: OpenPage, scripted: Scripted
) -> None:
    page = open_page(server.url)
    scripted(page, ["one "])
    ask(page, "before")
    answer(page)
    page.locator("#new-chat").click()
    scripted(page, ["two "] * 1500)
    ask(page, "now").locator(".token").nth(3).wait_for()
    page.get_by_role("button", name="before", exact=True).click()
    page.locator("#regenerate").wait_for()
    page.locator("#send").wait_for()
    scripted(page, ["three "])
    page.locator("#regenerate").click()
    page.get_by_text("three").first.wait_for()
    server.wait_idle()


def test_regenerate_and_stop_as_fast_as_they_can_be_pressed(
    server: Server, open_page: OpenPage, scripted: Scripted
) -> None:
    page = open_page(server.url)
    scripted(page, ["one "] * 500)
    ask(page)
    for _ in range(6):
        page.locator("#stop").click()
        page.locator("#regenerate").click()
    page.locator("#stop").click()
    page.locator("#regenerate").wait_for()
    assert page.locator(".message").count() == 2
    server.wait_idle()
