"""The text side of a model on disk, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sixfold.model_file import GGUFFile
from sixfold.text.chat_template import ChatTemplate, folder_template
from sixfold.text.folder_vocabulary import folder_tokenizer
from sixfold.text.generation import GenerationConfig
from sixfold.text.gguf_vocabulary import gguf_tokenizer
from sixfold.text.tokenizer import Tokenizer

__all__ = ["TextFiles", "load_text_files"]


@dataclass(frozen=True)
class TextFiles:
    """What the files of a model say about text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model."""
    generation: GenerationConfig
    """Empty for a GGUF file, which has no such part."""


def load_text_files(path: Path) -> TextFiles:
    """Read a GGUF file or a Hugging Face folder.

    Raises:
        ModelFileError: a part is missing, broken, or of a kind that is not supported.
    """
    if path.is_dir():
        tokenizer = folder_tokenizer(path, folder_template(path) or "")
        return TextFiles(tokenizer, ChatTemplate.of_folder(path, tokenizer), GenerationConfig.of_folder(path))
    file = GGUFFile.open(path)
    tokenizer = gguf_tokenizer(file)
    return TextFiles(tokenizer, ChatTemplate.of_file(file, tokenizer), GenerationConfig())
