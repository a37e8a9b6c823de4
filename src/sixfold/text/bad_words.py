"""Words that an answer shall not hold, as sequences of tokens that are never completed.

A word begins a line, follows a blank, or goes on with a word; its tokens differ. So each word is encoded as it stands,
with one blank in front, and as it follows a line's end. Only these sequences are forbidden: a model can still spell the
same letters with other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from sixfold.text.tokenizer import Tokenizer

__all__ = ["bad_word_ids"]

LINE_END = "\n"


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The sequences to forbid, each once, in the order of the words. One call of the library.

    Raises:
        InvalidRequest: a word holds a lone surrogate.
    """
    if not words:
        return ()
    forms = [form for word in words for form in _forms(word)]
    encoded = tokenizer.encode_batch([LINE_END, *forms], parse_control=True, add_bos=False)
    before, found = encoded[0], encoded[1:]
    out: dict[tuple[int, ...], None] = {}
    for form, ids in zip(forms, found, strict=True):
        if form.startswith(LINE_END) and ids[: len(before)] == before:
            ids = ids[len(before) :]
        if ids:
            out[tuple(ids)] = None
    return tuple(out)


def _forms(word: str) -> list[str]:
    bare = word.lstrip()
    return [word, " " + bare, LINE_END + bare] if bare else [word]
