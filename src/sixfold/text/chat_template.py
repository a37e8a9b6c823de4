"""Messages to the token ids of a prompt, by the template that a model file carries.

The template is a Jinja program in the model file; the messages come from whoever calls. Neither is trusted:

- The program runs in a sandbox, with bounds on its size, its output, its work and its time (`template_sandbox.py`).
- Control tokens come from the template alone. Whatever in the messages could be read as the literal of a control token
  is covered by a placeholder while the template runs (`user_text.py`) and encoded as ordinary text afterwards:

      messages --cover--> template --text--> split at control literals --uncover--> ids
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2

from sixfold.errors import InvalidRequest, ModelFileError, SixfoldError
from sixfold.model_file import GGUFFile
from sixfold.text.folder_files import read_json_object, read_text
from sixfold.text.template_meter import LENGTH_MAX, METER, LimitReached, Meter
from sixfold.text.template_sandbox import compile_program
from sixfold.text.template_traits import TemplateTraits
from sixfold.text.tokenizer import Tokenizer, check_text
from sixfold.text.user_text import UserText

__all__ = ["CHATML", "RESERVED_NAMES", "ROLES", "ChatTemplate", "folder_template"]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Who may speak in a conversation. `developer` is a newer word for `system`; templates know the older one."""

CHATML = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""For vocabularies without a template of their own. (`trim_blocks` eats the newline after a block's end.)"""

RESERVED_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"}
    | {"chat_template", "tokenize", "range", "dict", "lipsum", "cycler", "joiner", "namespace"}
)
"""Names that a caller's extra template variables cannot have."""

_SOURCE_CHARS_MAX = 1 << 20
_REASON_CHARS_MAX = 200

_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own code can raise over messages that it does not expect."""


class _Refusal(Exception):
    """The template called `raise_exception`."""


class ChatTemplate:
    """A compiled template. Immutable; any thread may render. Rendering takes milliseconds at least: use a thread."""

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """
        Args:
            source: the Jinja program; None for a model that has none, which refuses every chat.
            tokenizer: of the same model.
            now: what `strftime_now` in a template shows.

        Raises:
            ModelFileError: the program is too long or does not compile.
        """
        self.source = source
        self._tokenizer = tokenizer
        self._now = now
        self._template = None if source is None else _compile(source)

    @classmethod
    def of_file(cls, file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model file; None when it has none (a base model).

        Raises:
            ModelFileError: it does not compile.
        """
        key = "tokenizer.chat_template"
        if key not in file.metadata:
            return None
        with file.naming_faults():
            return cls(file.text(key), tokenizer)

    @classmethod
    def of_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a Hugging Face folder; None when it has none (a base model).

        Raises:
            ModelFileError: a file is broken, or the template does not compile.
        """
        source = folder_template(folder)
        return None if source is None else cls(source, tokenizer)

    @cached_property
    def traits(self) -> TemplateTraits:
        """What it can do."""
        return TemplateTraits(self.source, lambda messages, tools: self.render_text(messages, tools=tools))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of the prompt. At most one BOS id leads it: the template's own, or the one the model wants.

        Args:
            messages: what JSON can hold: dicts, lists, strings, numbers.
            tools: as the template expects them.
            add_generation_prompt: end with the opening of an assistant's turn.
            kwargs: more variables for the template.

        Raises:
            InvalidRequest: the model has no template, or it refuses these messages (`messages`), or a name of `kwargs`
                is taken (`chat_template_kwargs`).
        """
        parts = self.render_parts(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, template_variables=kwargs
        )
        ids = self._tokenizer.encode_parts([parts])[0]
        self._tokenizer.lead_with_bos(ids)
        return ids

    def render_parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[str | int]:
        """The prompt before it is tokenized: ordinary text, and ids of control tokens between; without a BOS that the
        template does not write. For `Tokenizer.encode_parts`; the arguments and errors are those of `render`.

        Args:
            continue_final: the prompt ends where the last message's content ends, so that the answer goes on with it;
                `add_generation_prompt` must be False.
        """
        text, users = self._render(messages, tools, add_generation_prompt, template_variables or {}, continue_final)
        parts = self._tokenizer.control_literals.split(text)
        return [users.uncover(part) if isinstance(part, str) else part for part in parts]

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, for people: control tokens and texts that look like them cannot be told apart in it. The
        arguments and errors are those of `render_parts`; `kwargs` are more `template_variables`."""
        variables = {**(template_variables or {}), **kwargs}
        text, users = self._render(messages, tools, add_generation_prompt, variables, continue_final)
        return users.uncover(text)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        continue_final: bool = False,
    ) -> tuple[str, UserText]:
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if taken := RESERVED_NAMES.intersection(kwargs):
            raise InvalidRequest(f"the name {min(taken)!r} is reserved", param="chat_template_kwargs")
        users = UserText(self._tokenizer.control_literals)
        try:
            covered = users.cover({"messages": messages, "tools": tools, **kwargs})
            mark = _mark_end(covered["messages"], users) if continue_final else ""
            text = self._run({**covered, **self._own_variables(add_generation_prompt)})
            if mark:
                text = _cut_at(mark, text)
            check_text(text)
        except _Refusal as error:
            reason = _reason(users.uncover(str(error)))
            raise InvalidRequest(f"the chat template refuses these messages: {reason}", param="messages") from error
        except LimitReached as error:
            raise InvalidRequest(
                f"the chat template does too much for these messages: {error}", param="messages"
            ) from error
        except SixfoldError as error:
            raise InvalidRequest(error.message, param="messages") from error
        except _FAULTS as error:
            reason = _reason(users.uncover(str(error)))
            raise InvalidRequest(
                f"the chat template cannot render these messages: {reason}", param="messages"
            ) from error
        return text, users

    def _own_variables(self, add_generation_prompt: bool) -> dict[str, Any]:
        pieces = {"bos_token": self._tokenizer.bos_id, "eos_token": self._tokenizer.eos_id}
        return {
            **{name: "" if token is None else self._tokenizer.piece(token) for name, token in pieces.items()},
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: self._now().strftime(layout),
            METER: Meter(),
        }

    def _run(self, variables: dict[str, Any]) -> str:
        assert self._template is not None
        pieces: list[str] = []
        n_chars = 0
        for piece in self._template.generate(variables):
            n_chars += len(piece)
            if n_chars > LENGTH_MAX:
                raise LimitReached(f"more than {LENGTH_MAX} characters")
            pieces.append(piece)
        return "".join(pieces)


def folder_template(folder: Path) -> str | None:
    """Source of the template of a Hugging Face folder: chat_template.jinja, chat_template.json or
    tokenizer_config.json, in this order; of several named ones that called "default".

    Raises:
        ModelFileError: a file is broken.
    """
    if (text := read_text(folder / "chat_template.jinja")) is not None:
        return text
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = read_json_object(folder / name).get("chat_template")
        if isinstance(value, list):
            default = (one.get("template") for one in value if isinstance(one, dict) and one.get("name") == "default")
            value = next(default, None)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ModelFileError(f"{name}: chat_template is not a text")
        return value
    return None


def _mark_end(messages: Any, users: UserText) -> str:
    """Put a character that occurs nowhere else behind the last message's content."""
    mark = users.unused()
    messages[-1]["content"] += mark
    return mark


def _cut_at(mark: str, text: str) -> str:
    if text.count(mark) != 1:
        raise InvalidRequest("the chat template does not write the last message's content as it stands")
    return text[: text.index(mark)]


@jinja2.pass_context
def _raise_exception(context: jinja2.runtime.Context, reason: object) -> NoReturn:
    context[METER].weigh(reason)
    raise _Refusal(str(reason))


def _reason(text: str) -> str:
    """Cut to what an error message may echo."""
    return text[:_REASON_CHARS_MAX].encode("utf-8", "replace").decode()


def _compile(source: str) -> jinja2.Template:
    """Raise ModelFileError when the program is too long or wrong."""
    if len(source) > _SOURCE_CHARS_MAX:
        raise ModelFileError(f"the chat template is longer than {_SOURCE_CHARS_MAX} characters")
    try:
        return compile_program(source)
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise ModelFileError(f"the chat template does not compile: {_reason(str(error))}") from error
