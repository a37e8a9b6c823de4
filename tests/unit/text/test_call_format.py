"""Which format a template's text speaks of, and what it can do."""

from __future__ import annotations

import pytest
from tests import chat_templates

from sixfold.text import CHATML, ChatTemplate, byte_tokenizer
from sixfold.text.call_format import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat, call_format_of


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, GENERIC),
        (CHATML, GENERIC),
        (chat_templates.NO_SYSTEM, GENERIC),
        (chat_templates.HERMES, HERMES),
        (chat_templates.THINKING, HERMES),
        (chat_templates.LLAMA, LLAMA),
        (chat_templates.MISTRAL, MISTRAL),
        (chat_templates.MISTRAL + "[ARGS]", MISTRAL_NAMED),
        ("{{ tools }} in a way of its own", GENERIC),
        ("{{ tools }} <tool_call><function=f><parameter=x>", GENERIC),
        ("{# tools #}<tool_call>", GENERIC),
    ],
)
def test_the_format_is_that_of_the_text(source: str | None, expected: CallFormat) -> None:
    assert call_format_of(source) is expected


def test_what_a_template_can_do_is_tried() -> None:
    def traits(source: str):  # type: ignore[no-untyped-def]
        return ChatTemplate(source, byte_tokenizer()).traits

    assert traits(CHATML).takes_system
    assert not traits(chat_templates.NO_SYSTEM).takes_system
    assert traits(chat_templates.HERMES).takes_argument_objects
    assert not traits(chat_templates.HERMES_TEXT_ARGUMENTS).takes_argument_objects
    assert traits(chat_templates.THINKING).thinks
    assert not traits(CHATML).thinks
