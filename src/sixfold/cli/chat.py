"""`sixfold chat` and `sixfold run`: the whole server in this process, answering in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sixfold.cli.prepare import prepare
from sixfold.cli.settings import LOCAL, SettingsCommand, resolve, setting_options
from sixfold.cli.standard_streams import NOT_TEXT, read_input, read_line
from sixfold.errors import ConfigError, ContextLengthExceeded, InvalidRequest, SixfoldError

if TYPE_CHECKING:
    from sixfold.detokenizer import ChoiceDelta
    from sixfold.llm import LLM
    from sixfold.sampling_params import SamplingParams

__all__ = ["chat", "run"]

HELP = "/reset forgets the conversation. Ctrl-C stops an answer. /exit or Ctrl-D leaves."
MAX_TOKENS = 1024
"""Of an answer, unless the user says otherwise: a small model may never find an end."""
CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.95}
"""Where neither the user nor the model says otherwise: a little calmer than the API, for people to read."""
ONE_CHAT = ("served_model_name", "max_num_seqs", "max_queued_requests", "max_queued_tokens", "scheduling_policy")
"""Settings that make no difference to one conversation: accepted, and left out of the help."""

Command = TypeVar("Command", bound=Callable[..., Any])
Message = dict[str, str]


def _unicode(_ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Bytes of the command line that are no text arrive as halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it is not valid UTF-8", param=param) from None
    return value


def _model_and_prompt(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> tuple[str | None, str]:
    """`PROMPT` or `MODEL PROMPT` -> (model or None, prompt)."""
    if not words:
        raise click.UsageError("the prompt is missing; `-` reads it from standard input.", ctx)
    if len(words) > 2:
        raise click.UsageError("the prompt must be one argument: put it in quotes.", ctx)
    prompt = _unicode(ctx, param, words[-1])
    if len(words) == 2:
        return words[0], prompt
    from sixfold.model_store import KNOWN

    if prompt in KNOWN or prompt.endswith(".gguf"):
        raise click.UsageError(f"what shall {prompt} answer? The prompt is missing behind it.", ctx)
    return None, prompt


def _sampling_options(command: Command) -> Command:
    """Decorator: the flags of one answer, not of the server."""
    options: tuple[Callable[[Command], Command], ...] = (
        click.option("--top-k", type=int, help="0 is off.  [default: the model's own, or 0]"),
        click.option("--top-p", type=float, help="Nucleus of the draw.  [default: the model's own, or 0.95]"),
        click.option("--temperature", type=float, help="0 is greedy.  [default: the model's own, or 0.7]"),
        click.option(
            "--max-tokens",
            type=click.IntRange(1),
            default=MAX_TOKENS,
            show_default=True,
            help="Longest answer, in tokens.",
        ),
        click.option("--system", default="", callback=_unicode, help="System message that opens the conversation."),
    )
    for option in options:
        command = option(command)
    return command


@click.command(cls=SettingsCommand, short_help="Talk to a model in the terminal.")
@click.argument("model", required=False)
@_sampling_options
@setting_options(*LOCAL, hide=ONE_CHAT)
def chat(model: str | None, config_file: Path | None, system: str, **options: Any) -> int:
    """Talk to MODEL (default: smollm2) in the terminal.

    /reset forgets the conversation, /exit or Ctrl-D leaves. Ctrl-C stops an answer; at the prompt, twice, it leaves.
    """
    wanted, flags = _split(options)
    typed = sys.stdin.isatty()
    with _loaded(model, config_file, flags, say=typed) as llm:
        _require_template(llm)
        if typed:
            click.echo(HELP)
        _converse(llm, _params(llm, wanted), [{"role": "system", "content": system}] if system else [])
    return 0


@click.command(cls=SettingsCommand, short_help="Answer one prompt and exit.")
@click.argument("words", metavar="[MODEL] PROMPT", nargs=-1, callback=_model_and_prompt)
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the model's chat template.")
@_sampling_options
@setting_options(*LOCAL, hide=ONE_CHAT)
def run(words: tuple[str | None, str], raw: bool, config_file: Path | None, system: str, **options: Any) -> int:
    """Answer PROMPT with MODEL (default: smollm2) and exit. PROMPT `-` reads it from standard input."""
    model, prompt = words
    wanted, flags = _split(options)
    text = read_input() if prompt == "-" else prompt
    if raw and system:
        raise click.UsageError("--system has no place in --raw: put it into the prompt.")
    with _loaded(model, config_file, flags) as llm:
        if not raw:
            _require_template(llm)
        messages = [{"role": "system", "content": system}] if system else []
        asked: str | list[Message] = text if raw else [*messages, {"role": "user", "content": text}]
        _, stopped = _answer(llm, asked, _params(llm, wanted))
    return 130 if stopped else 0


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the user says of the answer, settings)"""
    from sixfold.sampling_params import SamplingParams

    wanted = {name: options.pop(name) for name in ("max_tokens", "temperature", "top_p", "top_k")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    try:
        SamplingParams(**wanted)  # refused before the model is loaded
    except InvalidRequest as error:
        field = str(error.param)
        flag = "--" + field.replace("_", "-")
        raise ConfigError(error.message.replace(field, flag, 1), param=flag) from None
    return wanted, options


def _params(llm: LLM, wanted: dict[str, Any]) -> SamplingParams:
    from sixfold.sampling_params import SamplingParams

    return SamplingParams(**{**CHAT_SAMPLING, **llm.text.sampling_defaults, **wanted})


@contextmanager
def _loaded(model: str | None, config_file: Path | None, flags: dict[str, Any], *, say: bool = False) -> Iterator[LLM]:
    resolved = resolve({"model": model, **flags}, config_file)
    name = resolved.config.model.model
    prepare(resolved.config)
    if say:
        shown = Path(name).name if Path(name).exists() else name
        click.echo(f"{shown} is loading ...")
    from sixfold.engine.resolve import cautions
    from sixfold.llm import LLM

    with LLM(**{**resolved.chosen(), "model": name}) as llm:
        for caution in cautions(llm.config):
            click.echo(f"sixfold: {caution}", err=True)
        if say:
            click.echo(f"You talk to {shown}; the conversation has room for {llm.text.max_model_len} tokens.")
        yield llm


def _require_template(llm: LLM) -> None:
    if llm.text.chat_template is None:
        raise InvalidRequest(
            f"{llm.text.name} has no chat template; `sixfold run --raw` continues a text with it", param="messages"
        )


def _converse(llm: LLM, params: SamplingParams, opening: list[Message]) -> None:
    messages = list(opening)
    interrupted = False
    while True:
        try:
            line = read_line().rstrip("\n")
        except InvalidRequest as error:
            if error.code != NOT_TEXT or not sys.stdin.isatty():
                raise
            click.echo(f"({error.message})", err=True)
            continue
        except EOFError:
            if sys.stdin.isatty():
                click.echo()
            return
        except KeyboardInterrupt:
            if interrupted:
                click.echo()
                return
            click.echo("\n(Ctrl-C again leaves)")
            interrupted = True
            continue
        interrupted = False
        if not line.strip():
            continue
        if line.startswith("/"):
            if line.strip() == "/exit":
                return
            if line.strip() == "/reset":
                messages = list(opening)
                click.echo("(forgotten)")
            elif line.strip() == "/help":
                click.echo(HELP)
            else:
                click.echo(f"(unknown command {_printable(line.strip())})\n{HELP}")
            continue
        messages = _turn(llm, params, messages, line)


def _turn(llm: LLM, params: SamplingParams, messages: list[Message], line: str) -> list[Message]:
    """One question and its answer. Returns the conversation, unchanged when there was no answer."""
    asked = [*messages, {"role": "user", "content": line}]
    try:
        text, _ = _answer(llm, asked, params)
    except ContextLengthExceeded as error:
        click.echo(f"({error.message}; /reset starts a new conversation)", err=True)
        return messages
    except SixfoldError as error:
        click.echo(f"({error.message})", err=True)
        return messages
    return [*asked, {"role": "assistant", "content": text}] if text else messages


def _answer(llm: LLM, asked: str | list[Message], params: SamplingParams) -> tuple[str, bool]:
    """Print the answer as it comes.

    Returns: its text, and whether Ctrl-C stopped it.
    """
    parts: list[str] = []
    n_tokens = 0
    cut = False
    stream = cast("Generator[ChoiceDelta, None, None]", _stream(llm, asked, params))
    with _Interrupt() as interrupt, closing(stream) as deltas:  # closing it aborts the request
        for delta in deltas:
            parts.append(delta.text)
            n_tokens += len(delta.token_ids)
            cut = delta.finish_reason == "length"
            sys.stdout.write(_printable(delta.text))
            sys.stdout.flush()
            if interrupt.seen:
                break
    sys.stdout.write("\n")
    sys.stdout.flush()
    if cut:
        by = "--max-tokens" if n_tokens == params.max_tokens else "the context is full"
        click.echo(f"(cut at {n_tokens} tokens; {by})", err=True)
    return "".join(parts), interrupt.seen


def _stream(llm: LLM, asked: str | list[Message], params: SamplingParams) -> Iterator[ChoiceDelta]:
    """An answer of at most the default length gets what the context leaves, where that is less."""
    try:
        return llm.stream(asked, params)
    except ContextLengthExceeded:
        if params.max_tokens != MAX_TOKENS:
            raise
        import msgspec

        return llm.stream(asked, msgspec.structs.replace(params, max_tokens=None))


def _printable(text: str) -> str:
    """Without control characters: a model's text must not move the cursor or rename the terminal."""
    return "".join(c for c in text if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160))


class _Interrupt:
    """While this is entered, the first Ctrl-C only sets `seen`: an exception amid an engine step would leave the
    engine half done. A second one raises KeyboardInterrupt, for an answer that does not come."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
