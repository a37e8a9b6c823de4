"""docs/models.md lists what there is: families, shapes, numbers and types."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sixfold.model_file.architectures import ARCHITECTURES
from sixfold.model_file.quantize import QUANTIZED_TYPES
from sixfold.model_file.random_blocks import RANDOM_TYPES
from sixfold.model_file.synthetic import SHAPES, Shape

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_everything_is_named() -> None:
    names = [*ARCHITECTURES, *SHAPES, *RANDOM_TYPES, *QUANTIZED_TYPES]
    names += [model_type for entry in ARCHITECTURES.values() for model_type in entry.folders]
    names += [field.name for field in dataclasses.fields(Shape) if field.name != "architecture"]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
