"""The vocabulary of the worker's model, for grammars. Read with the first of them: without, the worker has no text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.config import Config
from sixfold.structured import Vocabulary

if TYPE_CHECKING:
    from sixfold.text import Tokenizer

__all__ = ["read_vocabulary", "vocabulary_of"]


def read_vocabulary(config: Config, n_rows: int) -> Vocabulary:
    """Of the model of a resolved configuration. The API process has read the same files without a fault.

    Args:
        n_rows: width of the logits.
    """
    from sixfold.text import load_text_files

    path = Path(config.model.model)
    return vocabulary_of(load_text_files(path, n_rows=n_rows if path.is_dir() else None).tokenizer, n_rows)


def vocabulary_of(tokenizer: Tokenizer, n_rows: int) -> Vocabulary:
    """Rows without a token, and tokens without a row, can never be chosen."""
    table: list[bytes] = list(tokenizer.token_bytes[:n_rows])
    table += [b""] * (n_rows - len(table))
    for token_id in tokenizer.absent_ids:
        table[token_id] = b""
    return Vocabulary(table, _within(tokenizer.control_ids, n_rows), _within(tokenizer.end_ids, n_rows))


def _within(ids: frozenset[int], n_rows: int) -> Sequence[int]:
    return [i for i in ids if i < n_rows]
