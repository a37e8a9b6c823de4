"""Text that is safe to send, for one choice. O-numbers name cases of known server bugs."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.detokenizer import Detokenizer, StopMatch

BYTES = [bytes([i]) for i in range(256)]
END = 256
CONTROL = frozenset({END})


def vocabulary(*tokens: str | bytes) -> list[bytes]:
    """256 single bytes, a control token, then the given tokens from id 257 on."""
    return [*BYTES, b"<|end|>", *(t.encode() if isinstance(t, str) else t for t in tokens)]


def stream(table: list[bytes], ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], StopMatch | None]:
    """One push per token, then the flush."""
    detokenizer = Detokenizer(table, CONTROL, stop=stop)
    deltas: list[str] = []
    for token_id in ids:
        text, match = detokenizer.push([token_id])
        deltas.append(text)
        if match is not None:
            return deltas, match
    return [*deltas, detokenizer.flush()], None


def test_O04_stop_string_over_several_tokens() -> None:
    table = vocabulary("abc", " D", "EF", " G", "HI", " xyz")
    ids = list(range(257, 263))
    deltas, match = stream(table, ids, ("DEF GHI",))
    assert deltas == ["abc", " ", "", "", ""]
    assert match == StopMatch("DEF GHI", 5)
    deltas, match = stream(table, ids, ("DEF GHZ",))
    assert deltas == ["abc", " ", "", "", "DEF GHI", " xyz", ""]
    assert match is None


def test_O05_held_back_tail_is_sent_at_the_end() -> None:
    deltas, match = stream(vocabulary("Is it ok", "?"), [257, 258], ("?\n",))
    assert deltas == ["Is it ok", "", "?"]
    assert match is None


def test_O07_character_over_several_tokens() -> None:
    text = "\U0001fae0\u00e9\u6f22ok"
    deltas, _ = stream(vocabulary(), list(text.encode()))
    assert [d for d in deltas if d] == list(text)


def test_O07_stop_string_straight_after_an_emoji() -> None:
    deltas, match = stream(vocabulary(), list("\U0001fae0END more".encode()), ("END",))
    assert "".join(deltas) == "\U0001fae0"
    assert match == StopMatch("END", 7)


def test_O08_spaces_are_the_tokens_own() -> None:
    deltas, _ = stream(vocabulary(" Hello", " big", " ", "x"), [257, 258, END, 259, 260])
    assert "".join(deltas) == " Hello big x"


def test_stop_string_inside_one_token_drops_the_rest_of_it() -> None:
    deltas, match = stream(vocabulary("one STOP two"), [257, 65], ("STOP",))
    assert deltas == ["one "]
    assert match == StopMatch("STOP", 1)


def test_many_tokens_at_once_stop_at_the_same_token() -> None:
    detokenizer = Detokenizer(vocabulary("ab", "cd", "ef"), CONTROL, stop=("bc",))
    assert detokenizer.push([257, 258, 259]) == ("a", StopMatch("bc", 2))
    assert detokenizer.stopped
    assert detokenizer.n_tokens == 2
    assert detokenizer.push([259]) == ("", None)
    assert detokenizer.flush() == ""


def test_control_tokens_have_no_text_unless_asked_for() -> None:
    table = vocabulary()
    assert Detokenizer(table, CONTROL).push([104, END, 105]) == ("hi", None)
    assert Detokenizer(table, CONTROL, skip_special=False).push([104, END, 105]) == ("h<|end|>i", None)
    assert Detokenizer(table, lambda i: i == END).push([104, END]) == ("h", None)


def test_id_beyond_the_table_has_no_text() -> None:
    assert Detokenizer(BYTES).push([104, 5000, 105]) == ("hi", None)


@given(st.lists(st.integers(0, 259), max_size=60), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_joined_deltas_are_the_full_decode(ids: list[int], step: int) -> None:
    table = vocabulary("\u00e9"[:1], "\U0001fae0".encode()[:2], "\U0001fae0".encode()[2:])
    whole = b"".join(table[i] for i in ids if i != END).decode("utf-8", "replace")
    for stop in ((), ("\x00\x00never",)):
        detokenizer = Detokenizer(table, CONTROL, stop=stop)
        deltas = [detokenizer.push(ids[at : at + step])[0] for at in range(0, len(ids), step)]
        assert "".join(deltas) + detokenizer.flush() == whole


@given(st.text(max_size=30), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_valid_text_never_shows_a_replacement(text: str, step: int) -> None:
    data = list(text.encode("utf-8", "replace"))
    detokenizer = Detokenizer(BYTES)
    deltas = [detokenizer.push(data[at : at + step])[0] for at in range(0, len(data), step)]
    assert "".join(deltas) == bytes(data).decode()
    assert all("\ufffd" not in d for d in deltas) or "\ufffd" in text


def test_invalid_bytes_take_linear_time() -> None:
    def seconds(n: int) -> float:
        detokenizer = Detokenizer(BYTES, stop=("\ufffd" * 200 + "x",))
        start = time.perf_counter()
        for _ in range(n):
            detokenizer.push([0xFF])
        return time.perf_counter() - start

    seconds(1000)
    small, large = min(seconds(2000) for _ in range(3)), min(seconds(20_000) for _ in range(3))
    assert large < 40 * small
