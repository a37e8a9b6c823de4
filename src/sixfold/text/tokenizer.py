"""Text to token ids and back, whatever the vocabulary is made of.

A vocabulary has *control* tokens (`<|im_start|>`) that steer the model, and ordinary ones. Text never becomes a control
token by itself: a `Tokenizer` finds the literals of control tokens only when asked to (`parse_control=True`), and the
encoder of ordinary text below it cannot produce their ids. Whoever passes on text of a user chooses.

Three makers: `gguf_tokenizer` (a model file's vocabulary), `folder_tokenizer` (a Hugging Face folder's) and
`byte_tokenizer` (no file, for tests and the scripted executor).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from sixfold.errors import InvalidRequest
from sixfold.text.literals import LiteralSplitter

__all__ = ["TextEncoder", "Tokenizer"]


class TextEncoder(Protocol):
    """Encodes ordinary text; never gives the id of a control token."""

    def encode_batch(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        """One list of ids per text.

        Args:
            texts: without lone surrogates.
            begins: for each whether it begins a sequence; otherwise it follows a control token.
        """
        ...


class Tokenizer:
    """Immutable; any thread may use it."""

    def __init__(
        self,
        *,
        encoder: TextEncoder,
        token_bytes: Sequence[bytes],
        control: Mapping[str, int],
        end_ids: Iterable[int] = (),
        bos_id: int | None = None,
        adds_bos: bool = False,
        eos_id: int | None = None,
        control_literals: LiteralSplitter | None = None,
        space_after: Iterable[int] | None = None,
        kept_bytes: Iterable[int] = (),
        absent_ids: Iterable[int] = (),
    ) -> None:
        """
        Args:
            encoder: for text without control tokens.
            token_bytes: [n_vocab] what each id stands for; for a control token its literal.
            control: literal -> id. Ids beyond `token_bytes` are found in a text, so that it can be refused.
            end_ids: ids that end a turn.
            bos_id: first id of a sequence, for models that want one.
            adds_bos: whether this model wants it.
            eos_id: the one end id to show where only one can be shown.
            control_literals: finds those of `control`; None: as they stand, without blanks around them.
            space_after: None for most vocabularies. Otherwise the encoder puts a blank in front of a text and behind
                these ids, and decoding takes it away again.
            kept_bytes: values of bytes of a text that always end up in a token, as far as a token has them at all.
                For one below 128 it is enough that it does when the next byte is below 128 too: beside other
                characters, a normalizer may compose it.
            absent_ids: ids in [0, n_vocab) that stand for nothing.
        """
        self.token_bytes = token_bytes
        self.control: Mapping[str, int] = dict(control)
        self.control_ids = frozenset(control.values())
        self.end_ids = frozenset(end_ids)
        self.bos_id = bos_id
        self.adds_bos = adds_bos and bos_id is not None
        self.eos_id = eos_id
        self.kept_bytes = frozenset(kept_bytes)
        self._encoder = encoder
        self._space_after = None if space_after is None else frozenset(space_after)
        self.control_literals = control_literals or LiteralSplitter(self.control)
        self.absent_ids = frozenset(absent_ids)

    @property
    def n_vocab(self) -> int:
        """Ids that can be decoded: [0, n_vocab), without `absent_ids`. A model's head may have more rows."""
        return len(self.token_bytes)

    def first_unknown(self, ids: Collection[int]) -> int | None:
        """The first of the ids that is no token of this model; None: all are."""
        if not ids or (min(ids) >= 0 and max(ids) < self.n_vocab and self.absent_ids.isdisjoint(ids)):
            return None
        return next(i for i in ids if not 0 <= i < self.n_vocab or i in self.absent_ids)

    def encode(self, text: str, *, parse_control: bool, add_bos: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: anything but lone surrogates.
            parse_control: whether the literals of control tokens become control tokens.
            add_bos: put the BOS id in front where the model wants one; it is never doubled.

        Raises:
            InvalidRequest: the text holds a lone surrogate.
        """
        return self.encode_batch([text], parse_control=parse_control, add_bos=add_bos)[0]

    def encode_batch(self, texts: Sequence[str], *, parse_control: bool, add_bos: bool = True) -> list[list[int]]:
        """`encode` of each text, in one call of the library (which lets other threads run meanwhile)."""
        for text in texts:
            check_text(text)
        if not parse_control:
            found = self._encoder.encode_batch(texts, [True] * len(texts))
        else:
            found = self.encode_parts([self.control_literals.split(text) for text in texts])
        if add_bos:
            for ids in found:
                self.lead_with_bos(ids)
        return found

    def encode_parts(self, batch: Sequence[Sequence[str | int]]) -> list[list[int]]:
        """Ids of texts that are already taken apart: strings are ordinary text, integers are ids. No BOS is added."""
        plain = [(part, i == 0) for parts in batch for i, part in enumerate(parts) if isinstance(part, str)]
        texts, begins = [part for part, _ in plain], [begin for _, begin in plain]
        encoded = iter(self._encoder.encode_batch(texts, begins) if plain else ())
        found: list[list[int]] = []
        for parts in batch:
            ids: list[int] = []
            for part in parts:
                if isinstance(part, str):
                    ids.extend(next(encoded))
                else:
                    ids.append(part)
            found.append(ids)
        return found

    def lead_with_bos(self, ids: list[int]) -> None:
        """Put the BOS id in front of `ids` where the model wants one and it is not there yet."""
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The full decode: bytes of all ids joined, invalid UTF-8 replaced by U+FFFD. Ids outside the vocabulary are
        an IndexError: they must have been refused before.

        Args:
            ids: of a whole text, or of a piece that begins where the encoder would begin.
            skip_special: control tokens have no text.
            continues: the ids go on with a text, as a model's output does: all their blanks are their own. Without it
                the blanks that the encoder of some vocabularies adds are taken away, so that this undoes `encode`.
        """
        if self._space_after is not None and not continues:
            pieces = self._without_added_spaces(ids, self._space_after, skip_special=skip_special)
        else:
            table, control = self.token_bytes, self.control_ids if skip_special else frozenset()
            pieces = [table[token] for token in ids if token not in control]
        return b"".join(pieces).decode("utf-8", "replace")

    def _without_added_spaces(
        self, ids: Iterable[int], space_after: frozenset[int], *, skip_special: bool
    ) -> list[bytes]:
        pieces: list[bytes] = []
        added = True
        for token in ids:
            piece, is_control = self.token_bytes[token], token in self.control_ids
            if token in space_after:
                added = True
            elif added and not is_control:
                piece = piece.removeprefix(b" ")
                added = False
            if not (skip_special and is_control):
                pieces.append(piece)
        return pieces

    def is_control(self, token: int) -> bool:
        """Whether the id is a control token."""
        return token in self.control_ids

    def piece(self, token: int) -> str:
        """One token as text, for people; bytes that are no whole character become U+FFFD."""
        return self.token_bytes[token].decode("utf-8", "replace")


def check_text(text: str) -> None:
    """Raise InvalidRequest when the text holds a lone surrogate: it has no UTF-8 form, hence no tokens."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate at character {error.start}; it is not valid Unicode"
        ) from error
