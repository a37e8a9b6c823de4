"""A schema is refused, or whatever follows it is valid: schemas at random."""

from __future__ import annotations

import json

import jsonschema
import pytest

from sixfold.errors import InvalidRequest
from sixfold.structured import check_grammar, json_schema_grammar

from .random_schemas import random_schema
from .walker import Walker

pytestmark = pytest.mark.model

FORMATS = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
N_SCHEMAS, N_PARTS = 400, 8


@pytest.mark.parametrize("part", range(N_PARTS))
def test_O22_a_schema_is_refused_or_holds(walker: Walker, part: int) -> None:
    n_ended = 0
    for seed in range(part, N_SCHEMAS, N_PARTS):
        schema = random_schema(seed)
        try:
            grammar = json_schema_grammar(json.dumps(schema), param="x")
            check_grammar(grammar, param="x")
        except InvalidRequest as error:
            assert error.message.startswith("x: ")
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        for walk in range(2):
            ids = walker.walk(grammar, walk, max_tokens=300)
            if ids is not None:
                n_ended += 1
                validator.validate(json.loads(walker.text(ids)))
    assert n_ended > 20
