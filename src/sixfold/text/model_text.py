"""The text side of a model on disk, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sixfold.model_file import GGUFFile
from sixfold.text.chat_template import ChatTemplate, folder_template
from sixfold.text.folder_vocabulary import folder_tokenizer
from sixfold.text.gguf_vocabulary import gguf_tokenizer
from sixfold.text.tokenizer import Tokenizer

__all__ = ["TextFiles", "load_text_files"]


@dataclass(frozen=True)
class TextFiles:
    """What the files of a model say about text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model."""
    file: GGUFFile | None = None
    """None for a folder."""


def load_text_files(path: Path, *, n_rows: int | None = None) -> TextFiles:
    """Read a GGUF file or a Hugging Face folder.

    Args:
        n_rows: ids that the model of a folder knows; None: all of its tokenizer. (A GGUF file has one table.)

    Raises:
        ModelFileError: a part is missing, broken, or of a kind that is not supported.
    """
    if path.is_dir():
        tokenizer = folder_tokenizer(path, folder_template(path) or "", n_rows=n_rows)
        return TextFiles(tokenizer, ChatTemplate.of_folder(path, tokenizer))
    file = GGUFFile.open(path)
    tokenizer = gguf_tokenizer(file)
    return TextFiles(tokenizer, ChatTemplate.of_file(file, tokenizer), file)
