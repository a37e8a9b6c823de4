"""Models described with the kernels' operations: one short file for each family, chosen by architecture.

Runs in: worker process (in-process for `LLM`); the numbers of a model also where the configuration is resolved.
Owns: packed weights.
May import: executor.native.kernels, model_file, errors.
Start reading at: llama.py (a family), then parts.py (what a layer is made of), registry.py (who is chosen).
"""

from sixfold.executor.native.models.model import Model
from sixfold.executor.native.models.registry import FAMILIES, load

__all__ = ["FAMILIES", "Model", "load"]
