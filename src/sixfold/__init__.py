"""Sixfold: an LLM inference server made of six components.

In the order in which a request meets them: `api`, `scheduler`, `kv_cache`, `executor`, `sampler`, `detokenizer`.

    from sixfold import LLM, SamplingParams
    LLM("smollm2").generate(["Hello"], SamplingParams(max_tokens=8))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sixfold.llm import LLM
    from sixfold.sampling_params import SamplingParams
    from sixfold.structured import StructuredOutputs

__all__ = ["LLM", "SamplingParams", "StructuredOutputs", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the public classes on first use: `sixfold --help` and the engine process need neither."""
    if name == "LLM":
        from sixfold.llm import LLM

        return LLM
    if name == "SamplingParams":
        from sixfold.sampling_params import SamplingParams

        return SamplingParams
    if name == "StructuredOutputs":
        from sixfold.structured import StructuredOutputs

        return StructuredOutputs
    raise AttributeError(f"module 'sixfold' has no attribute {name!r}")
