"""Finding control literals, against a plain regular expression."""

from __future__ import annotations

import random
import re
from typing import Any

from sixfold.text.literals import UNICODE_BLANKS, LiteralSplitter

LITERALS = {"<a>": 1, "<ab>": 2, "<a><b>": 3, "[X]": 4, "<": 5, "ab<": 6}


def test_leftmost_then_longest() -> None:
    splitter = LiteralSplitter(LITERALS)
    assert splitter.split("x<a><b>y") == ["x", 3, "y"]
    assert splitter.split("<a><c>") == [1, 5, "c>"]
    assert splitter.split("ab<a>") == [6, "a>"]
    assert splitter.split("[X][X]") == [4, 4]
    assert splitter.split("") == []


def test_no_literals() -> None:
    splitter = LiteralSplitter({"": 3})
    assert splitter.split("<a>") == [splitter.replace("<a>", str.upper)] == ["<a>"]
    assert splitter.head_at_end("<") == splitter.tail_at_start(">") == 0


def test_equals_a_regular_expression() -> None:
    splitter = LiteralSplitter(LITERALS)
    pattern = re.compile("|".join(re.escape(text) for text in sorted(LITERALS, key=len, reverse=True)))
    rng = random.Random(3)
    for _ in range(2000):
        text = "".join(rng.choice("<>abX[] ") for _ in range(rng.randint(0, 30)))
        assert splitter.find(text) == [(match.start(), match.group()) for match in pattern.finditer(text)]
        parts = splitter.split(text)
        names = {token: literal for literal, token in LITERALS.items()}
        assert "".join(part if isinstance(part, str) else names[part] for part in parts) == text


def test_equals_a_regular_expression_for_any_literals() -> None:
    rng = random.Random(4)
    for _ in range(300):
        deep = ["<" * n + rng.choice(["", ">"]) for n in range(1, rng.randint(2, 20))]
        some = ["".join(rng.choice("<|a>.") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(0, 8))]
        literals = dict.fromkeys([*some, *deep], 1)
        pattern = re.compile("|".join(re.escape(text) for text in sorted(literals, key=len, reverse=True)))
        splitter = LiteralSplitter(literals)
        for _ in range(20):
            text = "".join(rng.choice("<<<|a>.") for _ in range(rng.randint(0, 60)))
            assert splitter.find(text) == [(match.start(), match.group()) for match in pattern.finditer(text)]
            assert splitter.replace(text, lambda literal: f"({literal})") == pattern.sub(r"(\g<0>)", text)


def test_beginnings_of_literals_cost_little() -> None:
    """What is not linear does not come to an end."""
    literals = {f"<|{name}|>": 1 for name in ("im_start", "im_end", "endoftext", "fim", "x")}
    splitter = LiteralSplitter(literals, strips_before=literals, strips_after=literals)
    for begin in ("<", "<|", "<|im_en", "<|im_end|", " ", "\n<"):
        assert splitter.find(begin * (1_000_000 // len(begin))) == []
    assert splitter.split("<|x|> " * 200_000) == [1] * 200_000
    assert splitter.split(" <|x|>" * 200_000) == [1] * 200_000


def test_literals_swallow_blanks() -> None:
    def split(text: str, **options: Any) -> list[str | int]:
        return LiteralSplitter({"<a>": 1, "<b>": 2}, **options).split(text)

    assert split("x <a> \n\u00a0y", strips_after={"<a>"}) == ["x ", 1, "\u00a0y"]
    assert split("x <a> \n\u00a0y", strips_after={"<a>"}, blanks=UNICODE_BLANKS) == ["x ", 1, "y"]
    assert split("x\u2003 <a> y", strips_before={"<a>"}, blanks=UNICODE_BLANKS) == ["x", 1, " y"]
    assert split(" <a>  <b> <a> ", strips_before={"<a>"}) == [1, "  ", 2, 1, " "]
    assert split(" <a>  <b> <a> ", strips_before={"<b>"}, strips_after={"<a>"}) == [" ", 1, 2, " ", 1]


def test_fragments() -> None:
    splitter = LiteralSplitter({"<|end|>": 1, "<|start|>": 2})
    assert splitter.head_at_end("text <|st") == 4
    assert splitter.head_at_end("text <") == 1
    assert splitter.head_at_end("text <|end|>") == 0
    assert splitter.tail_at_start("|> text") == 2
    assert splitter.tail_at_start("rt|> text") == 4
    assert splitter.tail_at_start("text") == 0


def test_thousands_of_literals_cost_no_more() -> None:
    splitter = LiteralSplitter({f"<unused{i}>": i for i in range(6000)})
    text = "<unused17>" + "<nothing of the kind " * 5000
    assert splitter.split(text)[0] == 17
