"""Stop strings against a search that looks at the whole text after every character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.detokenizer import StopFilter

LETTERS = st.text("ab\U0001fae0", min_size=0, max_size=40)
STOPS = st.lists(st.text("ab\U0001fae0", min_size=1, max_size=5), min_size=1, max_size=4)


def search(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The match that is complete first, the longest of several; and the text before it."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stop: list[str]) -> int:
    """Length of the longest end of the text that is a proper beginning of a stop string."""
    tails = [n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])]
    return max(tails, default=0)


@given(LETTERS, STOPS, st.data())
@settings(max_examples=400, deadline=None)
def test_equals_search_for_any_cut(text: str, stop: list[str], data: st.DataObject) -> None:
    expected, expected_match = search(text, stop)
    stop_filter = StopFilter(stop)
    sent, at = "", 0
    while at < len(text):
        step = data.draw(st.integers(1, 6))
        sendable, match = stop_filter.push(text[at : at + step])
        at += step
        sent += sendable
        if match is not None:
            assert (sent, match) == (expected, expected_match)
            return
        assert len(sent) == len(text[:at]) - held_back(text[:at], stop)
    assert expected_match is None
    assert sent + stop_filter.flush() == text


@given(LETTERS, STOPS)
@settings(max_examples=200, deadline=None)
def test_include_stop_keeps_the_match(text: str, stop: list[str]) -> None:
    before, match = search(text, stop)
    sent, found = StopFilter(stop, include_stop=True).push(text)
    if match is not None:
        assert (sent, found) == (before + match, match)


def test_longest_of_matches_that_end_together() -> None:
    assert StopFilter(["cd", "abcd", "d"]).push("xabcd") == ("x", "abcd")


def test_match_that_is_complete_first_wins() -> None:
    assert StopFilter(["abcd", "b"]).push("xabcd") == ("xa", "b")


def test_suffix_of_a_failed_match_is_followed() -> None:
    stop_filter = StopFilter(["aab"])
    assert stop_filter.push("aaa") == ("a", None)
    assert stop_filter.push("b") == ("", "aab")


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopFilter(["x", ""])
