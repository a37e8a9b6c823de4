"""`sixfold serve`: settings, then the model, then the supervisor takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sixfold.cli.prepare import prepare
from sixfold.cli.settings import LOCAL, SettingsCommand, resolve, setting_options
from sixfold.cli.standard_streams import discard_missing_output

__all__ = ["serve"]


@click.command(cls=SettingsCommand, short_help="Serve a model over the OpenAI and Anthropic APIs.")
@click.argument("model", required=False)
@setting_options(*LOCAL, "api")
def serve(model: str | None, config_file: Path | None, **flags: Any) -> int:
    """Serve MODEL (default: smollm2) over the OpenAI and Anthropic APIs until Ctrl-C.

    MODEL is a known name (`sixfold list`) or org/name on the Hugging Face hub, which are fetched when they are not
    here, or the path of a .gguf file or of a folder with safetensors.

    Ctrl-C ends what is in flight with an error event; SIGTERM lets it finish first (--drain-timeout-s).
    SIGUSR1 replaces the engine process while streams go on.
    """
    discard_missing_output()
    config = resolve({"model": model, **flags}, config_file).config
    from sixfold.api.access.exposure import check_exposure
    from sixfold.logs import set_up_logging
    from sixfold.roles import SUPERVISOR

    set_up_logging(SUPERVISOR, config.api.log_level, config.api.log_format)
    cautions = check_exposure(config.api)
    prepare(config)
    from sixfold.engine.supervisor import serve as supervise

    return supervise(config, warnings=cautions)
