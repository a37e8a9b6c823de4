"""Which tokens have an entry, and when it is sent: against a plain reading of the definition, on random tokens."""

from __future__ import annotations

import codecs
import random
from typing import Any

from sixfold.api.openai.logprobs import Shown, ShownEntries
from sixfold.detokenizer import OutputProcessor
from sixfold.messages import Finish, TokenDelta, TokenLogprobs
from sixfold.text import byte_tokenizer

TOKENIZER = byte_tokenizer((" D", "EF", "abc", "\u6f22a", b"\xf0\x9f", b"\xabZ"))
IDS = (97, 98, 0xF0, 0x9F, 0xAB, 0xA0, 0xC3, 0xA9, *range(257, 265))
STOPS = ("ab", "b", " DE", "\u6f22", "\ufffd", "F\ufffd", "aZ", "\U0001fae0")


def play(pieces: list[list[int]], *, skip: bool, **options: Any) -> tuple[str, list[int], list[int]]:
    """(text, tokens of the choice, indexes of the tokens that have entries), checked at every delta."""
    table, control = TOKENIZER.token_bytes, TOKENIZER.control_ids
    processor = OutputProcessor(1, 1, table, control, skip_special=skip, prompt_tokens=1, **options)
    entries = ShownEntries(Shown(TOKENIZER, skip_special=skip, n_top=0))
    text, ids, shown = "", [], []
    for piece in pieces:
        # The value of an entry is its index.
        values = [TokenLogprobs(-float(n), 0, [], []) for n in range(len(ids), len(ids) + len(piece))]
        finish = Finish("length") if piece is pieces[-1] else None
        delta = TokenDelta(uid=1, choice=0, first_index=len(ids), token_ids=piece, logprobs=values, finish=finish)
        for out in processor.push([delta])[0]:
            text += out.text
            ids += out.token_ids
            shown += [int(-logprobs.logprob) for _, logprobs in entries.take(out) if logprobs is not None]
            check(text, ids, shown, control if skip else frozenset())
        if processor.done:
            break
    return text, ids, shown


def check(text: str, ids: list[int], shown: list[int], hidden: frozenset[int]) -> None:
    """Exactly the first of the visible tokens have entries; each begins before the end of the text, and of those
    without an entry none begins there."""
    visible = [n for n, token_id in enumerate(ids) if token_id not in hidden]
    assert shown == visible[: len(shown)]
    for k, _ in enumerate(visible):
        before = b"".join(TOKENIZER.token_bytes[ids[n]] for n in visible[:k])
        whole_characters = len(codecs.getincrementaldecoder("utf-8")("replace").decode(before))
        if k < len(shown):
            assert whole_characters < len(text)
        else:
            assert len(before.decode("utf-8", "replace")) >= len(text)


def test_entries_are_those_of_the_text_that_was_sent() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        ids = [rng.choice(IDS) for _ in range(rng.randint(1, 8))]
        options: dict[str, Any] = {
            "stop": tuple({rng.choice(STOPS) for _ in range(rng.randint(0, 2))}),
            "include_stop": rng.random() < 0.3,
            "skip": rng.random() < 0.5,
        }
        assert play([[token_id] for token_id in ids], **options) == play([ids], **options)
