"""What the kernels can compute with: asked where the configuration is resolved, long before weights are packed."""

from __future__ import annotations

from sixfold.errors import ModelFileError
from sixfold.model_file import ModelConfig

__all__ = ["check_supported"]


def check_supported(config: ModelConfig) -> None:
    """Raises: ModelFileError: the kernels cannot compute with these numbers."""
    if config.n_heads // config.n_kv_heads > 16:
        raise ModelFileError(f"{config.n_heads} heads over {config.n_kv_heads} KV heads are not supported")
    if config.head_dim % 32 or not 32 <= config.head_dim <= 512:
        raise ModelFileError(f"a head dimension of {config.head_dim} is not supported; multiples of 32 up to 512 are")
    for width in (config.hidden, config.expert_ffn if config.n_experts else config.ffn):
        if width % 32:
            raise ModelFileError(f"a width of {width} is not supported; multiples of 32 are")
