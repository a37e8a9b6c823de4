"""What must be there before a model can run: the compiled kernels and the model's file."""

from __future__ import annotations

import logging

import click

from sixfold.config import Config
from sixfold.errors import ModelNotFound
from sixfold.sizes import size_text

__all__ = ["prepare"]

_WORTH_A_WORD = 100_000_000
"""Bytes that take more than a moment to write."""


def prepare(config: Config) -> None:
    """Check the kernels, and fetch a model that is not here yet.

    Raises:
        ConfigError: the scripted executor's file cannot be used.
        ConfigError: the kernels cannot be loaded, or not in the build that SIXFOLD_ISA asks for.
        ConfigError, ModelFileError: a synthetic model that is not here yet does not fit, or cannot be used.
        ModelNotFound: neither a name that is known, synthetic or on the hub nor a path.
        DownloadError: the model could not be fetched.
    """
    if config.executor.executor == "scripted":
        from sixfold.engine.script_file import check_script

        check_script(config)
        return
    from sixfold import model_store
    from sixfold.engine.resolve import check_kernels, model_path

    check_kernels()
    name = config.model.model

    def announce(n_bytes: int) -> None:
        if n_bytes > _WORTH_A_WORD:
            text = f"writing {name} ({size_text(n_bytes)}) to the cache ..."
            if config.api.log_format == "json":
                logging.getLogger(__name__).warning("%s", text)
            else:
                click.echo(text, err=True)

    try:
        model_path(config, announce)
    except ModelNotFound:
        if not model_store.can_pull(name):
            raise
        if config.api.log_format == "json":
            logging.getLogger(__name__).warning("fetching %(model)s", {"model": name})
            model_store.pull(name, progress=False)
        else:
            model_store.pull(name)
