"""What a model's makers recommend for generation: generation_config.json of a Hugging Face folder, or the
`general.sampling.*` keys of a GGUF file.

Only what `SamplingParams` has is taken. Lengths (`max_new_tokens`, `max_length`) are not: a request without a limit
may fill the context, whatever length was usual when the file was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sixfold.errors import InvalidRequest, ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.sampling_params import SamplingParams
from sixfold.text.folder_files import read_json_object

__all__ = ["declared_end_ids", "sampling_defaults"]

_FILE = "generation_config.json"
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Field of the sampling parameters, called the same in generation_config.json -> key of a GGUF file."""


def declared_end_ids(folder: Path) -> frozenset[int]:
    """`eos_token_id` of generation_config.json.

    Raises:
        ModelFileError: the file is broken.
    """
    eos = read_json_object(folder / _FILE).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ModelFileError(f"{_FILE}: eos_token_id is not an id or a list of ids")
    return frozenset(ids)


def sampling_defaults(path: Path, file: GGUFFile | None = None) -> dict[str, Any]:
    """Fields of `SamplingParams` that the files of a model recommend; empty where they recommend nothing.

    Args:
        path: a GGUF file or a Hugging Face folder. Its `do_sample: false` is a temperature of 0.
        file: the GGUF file, where it is open already.

    Raises:
        ModelFileError: a value is out of the range that a request may ask for.
    """
    if path.is_dir():
        content = read_json_object(path / _FILE)
        found = {name: (name, content[name]) for name in _GGUF_KEYS if content.get(name) is not None}
        if content.get("do_sample") is False:
            found = {name: said for name, said in found.items() if name == "repetition_penalty"}
            found["temperature"] = ("do_sample", 0.0)
        return {name: _checked(_FILE, name, *said) for name, said in found.items()}
    metadata = (file or GGUFFile.open(path)).metadata
    return {
        name: _checked(path.name, name, key, _shortest(metadata[key]))
        for name, key in _GGUF_KEYS.items()
        if key in metadata
    }


def _shortest(value: Any) -> Any:
    """A float32 as it was meant: 0.95, not 0.949999988."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _checked(file: str, name: str, key: str, value: Any) -> Any:
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        raise ModelFileError(
            f"{file}: {error.message.replace(name, key, 1)} (--generation-config none leaves it out)"
        ) from error
    return value
