"""The scripted executor's file (docs/scripted.md), and the backend that is made of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sixfold.config import SCRIPTED_MODEL, Config
from sixfold.errors import ConfigError, SixfoldError

if TYPE_CHECKING:
    from sixfold.executor.scripted import ScriptedBackend
    from sixfold.text import Tokenizer

__all__ = ["Script", "check_script", "load_script", "scripted_backend"]


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scripted executor's file: extra tokens, the default answer, and how long loading and a step take."""

    tokens: list[str] = []
    script: list[str | int] = []
    step_ms: float = 0.0
    load_ms: float = 0.0
    load_while: str = ""
    """A file: loading goes on as long as it is there."""


def load_script(path: str) -> Script:
    """Raises: ConfigError: the file cannot be read or is not a script."""
    if not path:
        return Script()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Script)
    except OSError as e:
        raise ConfigError(f"--script {path}: {e.strerror or e}", param="--script") from e
    except msgspec.MsgspecError as e:
        raise ConfigError(f"--script {path}: {e}", param="--script") from e


def check_script(config: Config) -> None:
    """Look at the scripted executor's file before anything is started. With a model's vocabulary, whether its entries
    have tokens is seen by the worker.

    Raises:
        ConfigError: it cannot be read, is not a script, or has an entry without a token.
    """
    path = config.executor.script
    script = load_script(path)
    if not path or config.model.model != SCRIPTED_MODEL:
        return
    from sixfold.text import byte_tokenizer
    from sixfold.text.script import script_ids

    try:
        script_ids(script.script, byte_tokenizer(script.tokens))
    except SixfoldError as e:
        raise ConfigError(f"--script {path}: {e.message}", param="--script") from e


def scripted_backend(config: Config, tokenizer: Tokenizer) -> ScriptedBackend:
    """The scripted executor's backend; returns when it has "loaded" for as long as the file says."""
    from sixfold.executor.grammar_vocabulary import vocabulary_of
    from sixfold.executor.scripted import ScriptedBackend
    from sixfold.structured import MatcherFactory
    from sixfold.text.script import script_ids

    script = load_script(config.executor.script)
    time.sleep(script.load_ms / 1e3)
    while script.load_while and os.path.exists(script.load_while):
        time.sleep(0.02)
    ordinary = [i for i, b in enumerate(tokenizer.token_bytes) if b.isascii() and b.decode().isprintable() and b]
    return ScriptedBackend(
        n_vocab=tokenizer.n_vocab,
        printable=[i for i in ordinary if not tokenizer.is_control(i)],
        end_id=min(tokenizer.end_ids),
        num_blocks=config.cache.num_kv_blocks,
        max_slots=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        script=script_ids(script.script, tokenizer),
        step_s=script.step_ms / 1e3,
        grammars=MatcherFactory(lambda: vocabulary_of(tokenizer, tokenizer.n_vocab)),
    )
