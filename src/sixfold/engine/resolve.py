"""A configuration as it was told -> one without defaults, so that all processes see the same figures.

Finds the model, opens it, asks how much memory there is. Builds nothing: that is `launch.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.config import BLOCK_SIZE, SCRIPTED_MODEL, SYNTHETIC_PREFIX, Config, parse_bytes
from sixfold.errors import ConfigError, DownloadError, ModelFileError
from sixfold.sizes import size_text

if TYPE_CHECKING:
    from sixfold.model_file import ModelFile

__all__ = ["cautions", "check_kernels", "model_path", "open_usable", "resolve", "served_context"]

DEFAULT_MODEL_LEN_MAX = 131072
"""Tables grow with the context, and a file may claim any: more than this must be asked for."""

SCRIPTED_CONTEXT = 2048
SCRIPTED_BLOCKS = 4096


def resolve(config: Config) -> Config:
    """Replace every "default" and "automatic" by a figure, so that all processes see the same one.

    Raises:
        ModelNotFound, ModelFileError: no such model, or its file cannot be used.
        ConfigError: a setting does not fit the model, or the compiled part cannot be used.
        DoesNotFit: the machine has too little memory.
    """
    check_kernels()
    if config.api.otlp_traces_endpoint:
        from sixfold.observability.otlp import traces_url

        traces_url(config.api.otlp_traces_endpoint)
    name = config.model.served_model_name or config.model.model
    path = _model_path(config)
    if config.executor.executor == "scripted":
        context = SCRIPTED_CONTEXT
        blocks = config.cache.num_kv_blocks or SCRIPTED_BLOCKS
    else:
        file = open_usable(Path(path), config)
        context = file.config.context
        blocks = _fitting_blocks(config, name, file)
    max_model_len = served_context(config, context)
    scheduler = dataclasses.replace(
        config.scheduler,
        max_queued_requests=config.scheduler.max_queued_requests or 4 * config.scheduler.max_num_seqs,
        max_queued_tokens=config.scheduler.max_queued_tokens or 64 * max_model_len,
    )
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, model=path, served_model_name=name, max_model_len=max_model_len),
        scheduler=scheduler,
        cache=dataclasses.replace(config.cache, num_kv_blocks=blocks),
        executor=dataclasses.replace(config.executor, threads=config.executor.threads or len(os.sched_getaffinity(0))),
        api=dataclasses.replace(config.api, response_store=_response_store(config)),
    ).check()


def served_context(config: Config, context: int) -> int:
    """Tokens of a sequence: as told, or what the model's context allows.

    Raises:
        ConfigError: more was asked for.
    """
    told = config.model.max_model_len
    if told > context:
        raise ConfigError(f"--max-model-len is {told}, and the model's context is {context}", param="--max-model-len")
    return told or min(context, DEFAULT_MODEL_LEN_MAX)


def cautions(config: Config) -> list[str]:
    """What is legal in a resolved configuration, but may surprise: one sentence each."""
    found = []
    pool, longest = config.cache.num_kv_blocks * BLOCK_SIZE, config.model.max_model_len
    if pool < longest:
        found.append(
            f"the KV cache holds {pool} tokens, fewer than the longest request of {longest}: "
            "longer prompts are refused, longer answers end early (--num-kv-blocks, --kv-cache-memory)"
        )
    budget, rows = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    if budget < rows:
        found.append(
            f"a step computes {budget} tokens for up to {rows} running choices: they take turns "
            "(--max-num-batched-tokens, --max-num-seqs)"
        )
    threads, cores = config.executor.threads, len(os.sched_getaffinity(0))
    if threads > cores:
        found.append(f"{threads} threads share {cores} cores: fewer are faster (--threads)")
    return found


def check_kernels() -> None:
    """Import the compiled part, which chooses a build of the kernels.

    Raises:
        ConfigError: it is not there, was built from other sources, or has no build for what SIXFOLD_ISA says.
    """
    try:
        import sixfold._native
    except ModuleNotFoundError:
        raise ConfigError("the compiled part of Sixfold is missing; from a checkout: make install") from None
    except ImportError as error:
        if str(error).startswith("SIXFOLD_ISA: "):
            raise ConfigError(str(error), param="SIXFOLD_ISA") from None
        raise ConfigError(f"the compiled part of Sixfold cannot be loaded: {error}") from None
    interface = Path(sixfold.__file__).with_name("_native.pyi")  # what the rest takes the module for
    wanted = hashlib.sha256(interface.read_bytes()).hexdigest()
    if getattr(sixfold._native, "interface", "") != wanted:
        raise ConfigError("the compiled part of Sixfold was built from other sources; from a checkout: make install")


def open_usable(path: Path, config: Config) -> ModelFile:
    """Open a model that can be computed with, as far as its numbers tell.

    Raises:
        ModelFileError: it cannot; or it is a folder without a tokenizer.
        ConfigError: the compiled part cannot be loaded.
    """
    check_kernels()
    from sixfold.executor.native.supported import check_supported
    from sixfold.model_file import open_model

    file = open_model(path, quantize=config.model.quantization)
    with file.naming_faults():
        check_supported(file.config)
        if path.is_dir() and not os.path.lexists(path / "tokenizer.json"):
            raise ModelFileError("there is no tokenizer.json in this folder")
    return file


def model_path(config: Config, announce: Callable[[int], None] = lambda n_bytes: None) -> Path:
    """The file or folder of a model by name; a synthetic model that is not in the cache is made.

    Args:
        announce: is told the bytes of a synthetic model just before it is written.

    Raises:
        ModelNotFound: no such model, or it is not on this machine.
        ModelFileError: the numbers of a synthetic model do not fit together.
        DownloadError: the cache cannot be written.
        ConfigError: a synthetic model does not fit into memory, or the compiled part cannot be loaded.
    """
    name = config.model.model
    from sixfold import model_store

    if not name.startswith(SYNTHETIC_PREFIX):
        return model_store.resolve(name)
    from sixfold.model_file import synthetic

    def check(outline: Path) -> None:
        _fitting_blocks(config, name, open_usable(outline, config))

    try:
        return synthetic.cached(name, model_store.cache_dir(), check, announce)
    except OSError as e:
        raise DownloadError(f"{name} cannot be written to the cache: {e.strerror or e}") from e


def _model_path(config: Config) -> str:
    if config.model.model == SCRIPTED_MODEL:
        return SCRIPTED_MODEL
    return str(model_path(config))


def _response_store(config: Config) -> str:
    """The file's absolute path, or `off`.

    Raises:
        ConfigError: there can be no such file.
    """
    told = config.api.response_store
    if told == "off":
        return told
    if not told:
        from sixfold import model_store

        return str(model_store.cache_dir() / "responses.sqlite")
    path = Path(told).expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise ConfigError(f"--response-store {told} {what}; it must be a file, or `off`", param="--response-store")
    return str(path)


def _fitting_blocks(config: Config, name: str, file: ModelFile) -> int:
    """Blocks as told, from `kv_cache_memory`, or by default from a quarter of the free memory: at most what the rest
    leaves, and no more than all slots can fill.

    Raises:
        DoesNotFit: the free memory is too little for the model with these blocks.
        ConfigError: `kv_cache_memory` is less than a block.
    """
    from sixfold.engine.free_memory import free_memory
    from sixfold.engine.memory import check_fits, memory_need

    need = memory_need(file, config)
    free = free_memory(file.bytes_mapped, need.processes)
    bytes_per_block = BLOCK_SIZE * need.kv_per_token
    if config.cache.num_kv_blocks:
        blocks = config.cache.num_kv_blocks
    elif config.cache.kv_cache_memory:
        blocks = parse_bytes(config.cache.kv_cache_memory) // bytes_per_block
        if not blocks:
            raise ConfigError(
                f"--kv-cache-memory {config.cache.kv_cache_memory} is less than a block of {BLOCK_SIZE} tokens, which "
                f"is {size_text(bytes_per_block)} with this model",
                param="--kv-cache-memory",
            )
    else:
        left = min(free.n_bytes // 4, free.n_bytes - (need.total - need.kv))
        blocks = min(need.kv, left) // bytes_per_block
    blocks = max(1, blocks)
    check_fits(need.with_blocks(blocks), free, name)
    return blocks
