"""What a log line can hold."""

from __future__ import annotations

import logging
import sys

import pytest

from sixfold.api.keys import new_key
from sixfold.api.logs import SafeFormatter, safe


def test_threat_15_a_line_is_one_line() -> None:
    assert safe("a\r\nFORGED\x1b[2J\x00\u2028b\x9d") == "a\\r\\nFORGED\\x1b[2J\\x00\\u2028b\\x9d"
    assert safe("grüße 世界 😀") == "grüße 世界 😀"


def test_threat_15_keys_are_cut_out() -> None:
    key, _ = new_key()
    assert safe(f"x {key} y") == "x [API key] y"
    assert safe("authorization: Bearer abc.def-123456 y") == "authorization: [API key] y"


@pytest.mark.parametrize("messages", [False, True])
def test_threat_15_an_unexpected_error_shows_its_place_and_no_text(messages: bool) -> None:
    formatter = SafeFormatter("%(levelname)s %(message)s", messages=messages)
    text = "a prompt\nof somebody"
    try:
        raise KeyError(text)
    except KeyError:
        record = logging.LogRecord("n", logging.ERROR, __file__, 1, "request %s failed", ("r\n1",), sys.exc_info())
    text = formatter.format(record)
    assert text.startswith("ERROR request r\\n1 failed\n") and "test_logs.py" in text
    assert text.splitlines()[-1].startswith("KeyError") and ("a prompt" in text) == messages
