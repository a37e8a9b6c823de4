"""One way in: a path becomes an open model, whatever lies there."""

from __future__ import annotations

import os
from pathlib import Path

from sixfold.errors import ModelFileError
from sixfold.model_file.folder_model import FolderModel
from sixfold.model_file.gguf_model import GGUFModel
from sixfold.model_file.model_file import ModelFile

__all__ = ["open_model"]


def open_model(path: str | os.PathLike[str], *, quantize: str | None = None) -> ModelFile:
    """Open a GGUF file (of a split one the first part) or a Hugging Face folder.

    Args:
        quantize: `q8_0` or `q4_1`: float matrices are handed out as that; None: as they are.

    Raises:
        ModelFileError: there is nothing, or it is broken, or not supported; the message names the fault.
    """
    path = Path(path)
    if path.is_dir():
        return FolderModel(path, quantize)
    if path.suffix == ".safetensors":
        raise ModelFileError(f"{path.name}: give the folder that it lies in, with its config.json")
    return GGUFModel.open(path, quantize)
