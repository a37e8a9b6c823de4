"""What a model's makers recommend for generation: generation_config.json of a Hugging Face folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sixfold.errors import ModelFileError
from sixfold.text.folder_files import read_json_object

__all__ = ["GenerationConfig"]

_FILE = "generation_config.json"
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1 << 30),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
"""Fields of sampling, each with the range in which it has a meaning."""


@dataclass(frozen=True)
class GenerationConfig:
    """Empty for a model that recommends nothing."""

    eos_ids: frozenset[int] = frozenset()
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Field of the sampling parameters -> value. `do_sample: false` is a temperature of 0."""

    @classmethod
    def of_folder(cls, folder: Path) -> GenerationConfig:
        """
        Raises:
            ModelFileError: the file is broken, or a field has a value without a meaning.
        """
        content = read_json_object(folder / _FILE)
        eos = content.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise ModelFileError(f"{_FILE}: eos_token_id is not an id or a list of ids")
        sampling = {name: _number(name, content[name]) for name in _RANGES if content.get(name) is not None}
        if content.get("do_sample") is False:
            sampling = {name: value for name, value in sampling.items() if name == "repetition_penalty"}
            sampling["temperature"] = 0.0
        return cls(frozenset(ids), sampling)


def _number(name: str, value: Any) -> float:
    low, high = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelFileError(f"{_FILE}: {name} is not a number")
    if not low <= value <= high:
        raise ModelFileError(f"{_FILE}: {name} is {value}; it must be in [{low}, {high}]")
    return value
