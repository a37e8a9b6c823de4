"""The command group, and the boundary where errors become one sentence and an exit code.

Exit codes: 0 done; 1 it failed, or the model does not fit into memory; 2 the command, a flag or a setting is wrong;
4 a child of `serve` or `batch` died; 130 stopped by Ctrl-C.
"""

# ruff: noqa: E402
from __future__ import annotations

import signal

# Ctrl-C while the imports below run ends the process without a word; then Python's handler comes back.
_on_interrupt = signal.getsignal(signal.SIGINT)
if _on_interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import importlib
import sys
import traceback
from collections.abc import Sequence

import click

from sixfold import __version__
from sixfold.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from sixfold.cli.standard_streams import complain, output_fault, prepare_streams, silence
from sixfold.errors import ConfigError, DoesNotFit, SixfoldError

__all__ = ["cli", "main"]


_COMMANDS = {
    "serve": "serve:serve",
    "top": "top:top",
    "chat": "chat:chat",
    "run": "chat:run",
    "batch": "batch:batch",
    "pull": "models:pull",
    "list": "models:list_command",
    "show": "show:show",
    "rm": "models:rm",
    "key": "key:key",
    "bench": "bench:bench",
    "waits": "waits:waits",
    "trace": "trace:trace",
    "doctor": "doctor:doctor",
}
"""Name -> module of this package and its attribute, in the order in which a newcomer meets them."""


class Commands(click.Group):
    """Imports a command when it is asked for: `serve` waits for no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _COMMANDS:
            module, _, attribute = _COMMANDS[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(f"sixfold.cli.{module}"), attribute), cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and not args[0].startswith("-"):
                import difflib

                if near := difflib.get_close_matches(args[0], _COMMANDS, n=1):
                    raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"sixfold {__version__}")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option("--traceback", is_flag=True, help="Show where an unexpected error came from.")
def cli(traceback: bool) -> None:
    """Sixfold serves a language model on this machine.

    \b
    sixfold chat                          talk to the default model, here
    sixfold run "What is a CPU?"          one answer
    sixfold serve                         OpenAI and Anthropic APIs on port 8000
    sixfold batch in.jsonl -o out.jsonl   a file of requests, answered

    A setting comes from its default, the file given with --config, an environment variable (SIXFOLD_MAX_NUM_SEQS for
    --max-num-seqs) or the flag; the later one wins. `sixfold doctor` shows each value and where it came from.
    """


if _on_interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, _on_interrupt)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(_run(_normal(arguments)))


def _normal(arguments: list[str]) -> list[str]:
    """What people type, as click knows it: `help`, `help serve`, `version`, and `--traceback` behind the command."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    if arguments == ["version"]:
        return ["--version"]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--traceback" in arguments[:end]:
        arguments.remove("--traceback")
        return ["--traceback", *arguments]
    return arguments


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="sixfold", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        complain(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)  # the reader (head, less) went away: it wants to hear no more
        return EXIT_FAILED
    except SixfoldError as error:
        complain(f"sixfold: {error.message}")
        is_usage = isinstance(error, ConfigError) and not isinstance(error, DoesNotFit)
        return EXIT_USAGE if is_usage else EXIT_FAILED
    except Exception as error:  # noqa: BLE001  the last boundary: whatever it is, the user gets a sentence
        fault = output_fault(error) if isinstance(error, OSError) else None
        if arguments[:1] == ["--traceback"]:
            complain(traceback.format_exc())
        elif fault is not None:
            complain(f"sixfold: {fault}")
        else:
            complain(
                f"sixfold: unexpected {type(error).__name__}: {error}\n"
                "         The same command with --traceback shows where it came from."
            )
        if fault is not None:
            silence(sys.stdout)
        return EXIT_FAILED
