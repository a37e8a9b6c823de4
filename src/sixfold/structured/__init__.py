"""Structured output: what a caller asks for -> a grammar text; a grammar text -> which tokens may come next.

    response_format, structured_outputs --(grammars.py, schema.py)--> grammar text --(check.py)--> accepted or refused
    grammar text, vocabulary --(vocabulary.py, matcher.py)--> masks, in the worker's slot

A grammar text is what the llguidance library reads. It travels in `Sampling.grammar`; the state that it has reached
lives in the worker alone and is rebuilt from the tokens. The only package that knows the library, which is loaded with
the first grammar.

Runs in: API process (texts, check), worker (matcher). Owns: nothing that lasts. May import: errors.
Start reading at: grammars.py, then schema.py, check.py; matcher.py for the worker's half.
"""

from sixfold.structured.check import check_grammar
from sixfold.structured.grammars import (
    choice_grammar,
    embedded_schema,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
)
from sixfold.structured.matcher import GrammarError, Matcher, MatcherFactory
from sixfold.structured.outputs import StructuredOutputs
from sixfold.structured.vocabulary import Vocabulary

__all__ = [
    "GrammarError",
    "Matcher",
    "MatcherFactory",
    "StructuredOutputs",
    "Vocabulary",
    "check_grammar",
    "choice_grammar",
    "embedded_schema",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
    "schema_grammar",
]
