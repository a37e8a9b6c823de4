"""Model files on disk, read safely and without copying.

Runs in: the API process (vocabulary, chat template) and the worker (weights).
Owns: the memory map of an open model file.
May import: errors.
Start reading at: gguf.py, `GGUFFile.open`.
"""

from sixfold.model_file.gguf import GGUFFile, MetadataValue, StringArray, TensorInfo
from sixfold.model_file.tensor_types import SUPPORTED_TYPES, TENSOR_TYPES, TensorType

__all__ = [
    "SUPPORTED_TYPES",
    "TENSOR_TYPES",
    "GGUFFile",
    "MetadataValue",
    "StringArray",
    "TensorInfo",
    "TensorType",
]
