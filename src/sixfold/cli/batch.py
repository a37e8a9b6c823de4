"""`sixfold batch`: a file of requests in, a file of answers out, through the same server as any other call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sixfold.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from sixfold.cli.prepare import prepare
from sixfold.cli.settings import LOCAL, SettingsCommand, resolve, setting_options
from sixfold.cli.standard_streams import complain
from sixfold.errors import ConfigError, InvalidRequest, SixfoldError

if TYPE_CHECKING:
    from rich.progress import Progress

    from sixfold.cli.batch_lines import Index
    from sixfold.cli.batch_run import Batch, Endpoint
    from sixfold.config import Config

__all__ = ["batch"]

CONCURRENCY_ELSEWHERE = 64
"""Of a server given by --url, whose settings nobody here knows."""
NOT_HERE = ("model", "host", "port", "allowed_hosts", "max_connections", "header_timeout_s", "body_timeout_s")
"""Settings of a server for others."""


def _model_and_file(ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> tuple[str | None, Path]:
    """`FILE` or `MODEL FILE` -> (model or None, file)."""
    if len(words) > 2:
        raise click.UsageError("give one file, and before it a model at most.", ctx)
    return (words[0] if len(words) == 2 else None), Path(words[-1])


@click.command(cls=SettingsCommand, short_help="Answer a file of requests.")
@click.argument("words", metavar="[MODEL] FILE", nargs=-1, required=True, callback=_model_and_file)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File of the answers; gone on with if it exists.")
@click.option("--url", help="Use this running server, e.g. http://127.0.0.1:8000, instead of starting one.")
@click.option("--check", "check_only", is_flag=True, help="Only say what is wrong with FILE.")
@click.option("--retry-failed", is_flag=True, help="Do those requests again that failed in an earlier run.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    help="Requests at a time.  [default: twice --max-num-seqs, at most 256; with --url 64]",
)
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Further tries of a request that the server puts off (429, 503).",
)
@setting_options(*LOCAL, "api", skip=NOT_HERE)
def batch(
    words: tuple[str | None, Path],
    output: Path | None,
    url: str | None,
    check_only: bool,
    retry_failed: bool,
    concurrency: int | None,
    max_retries: int,
    config_file: Path | None,
    **flags: Any,
) -> int:
    """Answer the requests of FILE with MODEL (default: smollm2).

    FILE is in OpenAI's batch format: a line of JSON for each request, with `custom_id`, `method`, `url` and `body`. The
    output has a line for each answer, in the order in which they were finished. After Ctrl-C, or a crash, the same
    command goes on where it was. Progress is shown on a terminal.
    """
    model, path = words
    from sixfold.cli.batch_lines import Index, check

    with closing(Index()) as index:
        with _nothing_was_run():
            n, faults = check(path, index, bodies=check_only)
        if faults.count:
            click.echo(faults.text(), err=True)
            return EXIT_USAGE
        if check_only:
            click.echo(f"{path}: {n} requests, nothing wrong with their fields; values are checked when they are sent")
            return 0
        if output is None:
            raise click.UsageError("where shall the answers go? Give a file with -o.")
        if output.exists() and output.samefile(path):
            raise ConfigError("the output must be another file than the input", param="-o")
        if url is None:
            config = _config(model, config_file, flags)
            concurrency = concurrency or min(2 * config.scheduler.max_num_seqs, 256)
            go = partial(_serve_and_run, config)
        else:
            if model is not None or config_file is not None or any(value is not None for value in flags.values()):
                raise click.UsageError("--url is a running server: neither a model nor a setting can be given with it.")
            from sixfold.cli.batch_run import Endpoint

            concurrency = concurrency or CONCURRENCY_ELSEWHERE
            go = partial(_run_elsewhere, Endpoint(url))
        return _answer(path, output, index, n, retry_failed, concurrency, max_retries, go)


@contextmanager
def _nothing_was_run() -> Iterator[None]:
    """Until then, whatever is wrong with a file is a wrong command."""
    try:
        yield
    except InvalidRequest as error:
        raise ConfigError(error.message, param=error.param) from None


def _config(model: str | None, config_file: Path | None, flags: dict[str, Any]) -> Config:
    """A server's, on a free port of this machine, for this command alone."""
    own = {"host": "127.0.0.1", "port": 0, "api_key_file": "", "tls_cert": "", "tls_key": "", "drain_timeout_s": 0.0}
    config = resolve({"model": model, **flags, **own}, config_file).config
    prepare(config)
    return config


def _answer(
    path: Path,
    output: Path,
    index: Index,
    n: int,
    again: bool,
    concurrency: int,
    max_retries: int,
    go: Callable[[Batch], int],
) -> int:
    from sixfold.cli.batch_lines import read_lines
    from sixfold.cli.batch_results import Results
    from sixfold.cli.batch_run import Batch

    with _nothing_was_run():
        opened = Results(output, index, again=again)
    with closing(opened) as results:
        if results.n_before < n:
            with _progress() as bar:
                task = bar.add_task("", total=n, completed=results.n_before, failed=results.n_failed)

                def show() -> None:
                    bar.update(task, completed=results.n_ok + results.n_failed, failed=results.n_failed)

                run = Batch(
                    read_lines(path, index),
                    results,
                    concurrency=min(concurrency, n - results.n_before),
                    max_retries=max_retries,
                    on_answer=show,
                )
                status = go(run)
            if not run.finished:
                done = results.n_ok + results.n_failed
                told = isinstance(run.error, SixfoldError)
                if told:
                    complain(f"sixfold: {run.error}")
                click.echo(f"{output}: {done} of {n} requests are answered; the same command goes on", err=True)
                if told:
                    return status or (EXIT_FAILED if done > results.n_before else EXIT_USAGE)
                if run.error is not None:
                    raise run.error
                return status or EXIT_INTERRUPTED
        failed = f", {results.n_failed} of them failed (--retry-failed does those again)" if results.n_failed else ""
        click.echo(f"{output}: {n} requests are answered{failed}")
        for reason in results.reasons:
            click.echo(f"  {reason}", err=True)
        return EXIT_FAILED if results.n_failed else 0


def _serve_and_run(config: Config, run: Batch) -> int:
    """Start a server for this run alone. Returns: its exit status."""
    from sixfold.cli.batch_run import Endpoint
    from sixfold.engine.supervisor import serve

    try:
        return serve(config, lambda url: run.run(Endpoint(url)))
    finally:
        run.stop()


def _run_elsewhere(endpoint: Endpoint, run: Batch) -> int:
    """In a thread: waiting for it can be interrupted, and waiting for an answer cannot."""
    thread = threading.Thread(target=run.run, args=(endpoint,), name="sf: work", daemon=True)
    try:
        thread.start()
        thread.join()
    except KeyboardInterrupt:
        run.stop()
    return 0


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
