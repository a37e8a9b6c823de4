"""Model files on disk, read safely and without copying: GGUF files and Hugging Face folders behind one face.

Runs in: the API process (vocabulary, chat template) and the worker (weights).
Owns: the memory maps of an open model's files.
May import: errors.
Start reading at: model_file.py, `ModelFile`; then opening.py, `open_model`.
"""

from sixfold.model_file.folder_model import FolderModel
from sixfold.model_file.gguf import GGUFFile, MetadataValue, StringArray, TensorInfo
from sixfold.model_file.gguf_model import GGUFModel
from sixfold.model_file.model_config import ModelConfig, RopeScaling
from sixfold.model_file.model_file import Matrix, ModelFile
from sixfold.model_file.opening import open_model
from sixfold.model_file.regular_file import read_whole
from sixfold.model_file.tensor_types import SUPPORTED_TYPES, TENSOR_TYPES, TensorType

__all__ = [
    "SUPPORTED_TYPES",
    "TENSOR_TYPES",
    "FolderModel",
    "GGUFFile",
    "GGUFModel",
    "Matrix",
    "MetadataValue",
    "ModelConfig",
    "ModelFile",
    "RopeScaling",
    "StringArray",
    "TensorInfo",
    "TensorType",
    "open_model",
    "read_whole",
]
