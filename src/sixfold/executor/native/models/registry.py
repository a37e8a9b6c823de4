"""Architecture -> the family that describes it. A new family is one entry here and one file beside this one."""

from __future__ import annotations

from sixfold.errors import ModelFileError
from sixfold.executor.native.kernels import ThreadPool
from sixfold.executor.native.models import gemma2, gemma3, llama, olmo2, phi3, qwen2, qwen3, qwen3moe, smollm3
from sixfold.executor.native.models.model import Family, Model
from sixfold.model_file import ModelFile

__all__ = ["FAMILIES", "load"]

FAMILIES: dict[str, Family] = {
    "llama": llama.layer,
    "qwen2": qwen2.layer,
    "qwen3": qwen3.layer,
    "qwen3moe": qwen3moe.layer,
    "gemma2": gemma2.layer,
    "gemma3": gemma3.layer,
    "phi3": phi3.layer,
    "olmo2": olmo2.layer,
    "smollm3": smollm3.layer,
}
"""`ModelConfig.architecture` -> the family."""


def load(file: ModelFile, pool: ThreadPool, *, activations: str = "int8", max_positions: int = 0) -> Model:
    """Pack the weights of an open model file with the pool's threads.

    Args:
        activations: `int8`, or `float32` for reference checks.
        max_positions: positions that will be served; 0: the model's context.

    Raises:
        ModelFileError: as `Model.of`; no family of this architecture.
    """
    family = FAMILIES.get(file.config.architecture)
    if family is None:
        raise ModelFileError(f"{file.name}: models of architecture {file.config.architecture!r} cannot be computed")
    return Model.of(file, family, pool, activations=activations, max_positions=max_positions)
