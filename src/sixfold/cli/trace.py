"""`sixfold trace`: what a running server just did, as a file for https://ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click
import msgspec
from click.core import ParameterSource

from sixfold.cli.output_file import check_output, output_error
from sixfold.cli.remote import get, server_options
from sixfold.cli.standard_streams import complain

__all__ = ["trace"]

TIMEOUT_S = 60.0


@click.command(short_help="Write what a server just did as a trace for Perfetto.")
@server_options
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60, min_open=True),
    default=5.0,
    show_default=True,
    help="How far back the trace reaches.",
)
@click.option("--request", "request_id", default="", help="Only this request, by its X-Request-Id.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("trace.json"),
    show_default=True,
    help="File to write.",
)
def trace(url: str, api_key: str, seconds: float, request_id: str, output: Path) -> int:
    """Write what a running server did in the last seconds, or in one request, as a Chrome trace.

    Open the file at https://ui.perfetto.dev or in chrome://tracing. It holds no prompts and no answers.
    """
    from sixfold.observability.trace_check import check_trace

    seconds_given = click.get_current_context().get_parameter_source("seconds") is not ParameterSource.DEFAULT
    if request_id and seconds_given:
        raise click.UsageError("--seconds has no place with --request, which is shown from its beginning to its end.")
    check_output(output)
    path = f"/debug/timeline/{quote(request_id, safe='')}" if request_id else f"/debug/trace?seconds={seconds:g}"
    body = get(url.rstrip("/"), path, api_key, timeout_s=TIMEOUT_S)
    document = msgspec.json.decode(body)
    for fault in check_trace(document)[:3]:
        complain(f"sixfold: the trace is odd: {fault}")
    try:
        output.write_bytes(body)
    except OSError as error:
        raise output_error(output, error) from None
    n_slices = sum(event.get("ph") == "X" for event in document["traceEvents"])
    click.echo(f"{output}: {n_slices} slices; open it at https://ui.perfetto.dev")
    return 0
