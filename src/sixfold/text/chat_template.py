"""Messages to the token ids of a prompt, by the template that a model file carries.

The template is a Jinja program in the model file; the messages come from whoever calls. Neither is trusted:

- The program runs in Jinja's immutable sandbox, with bounds on its size, its output, its loops and its time.
- Control tokens come from the template alone. Whatever in the messages could be read as the literal of a control token
  is covered by a placeholder while the template runs (`user_text.py`) and encoded as ordinary text afterwards:

      messages --cover--> template --text--> split at control literals --uncover--> ids
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sixfold.errors import InvalidRequest, ModelFileError, SixfoldError
from sixfold.model_file import GGUFFile
from sixfold.text.folder_files import read_json_object, read_text
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
_OUTPUT_CHARS_MAX = 16 << 20
"""Four times the largest body that is accepted by default."""
_STEPS_MAX = 1_000_000
"""Turns of all loops and calls of all macros in one rendering."""
_RENDER_S_MAX = 2.0
_STEPS_PER_CLOCK = 64
_REASON_CHARS_MAX = 200
_INTEGER_BITS_MAX = 4096

_TICK = "sixfold_tick"
_JOIN = "sixfold_join"

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


class _LimitReached(Exception):
    """A bound of this file."""


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
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[str | int]:
        """The prompt before it is tokenized: ordinary text, and ids of control tokens between; without a BOS that the
        template does not write. For `Tokenizer.encode_parts`; the arguments and errors are those of `render`.
        """
        text, users = self._render(messages, tools, add_generation_prompt, template_variables or {})
        parts = self._tokenizer.control_literals.split(text)
        return [users.uncover(part) if isinstance(part, str) else part for part in parts]

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, for people: control tokens and texts that look like them cannot be told apart in it."""
        text, users = self._render(messages, tools, add_generation_prompt, kwargs)
        return users.uncover(text)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
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
            text = self._run({**covered, **self._own_variables(add_generation_prompt)})
            check_text(text)
        except _Refusal as error:
            reason = _reason(users.uncover(str(error)))
            raise InvalidRequest(f"the chat template refuses these messages: {reason}", param="messages") from error
        except _LimitReached as error:
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
            _TICK: _stopwatch(),
        }

    def _run(self, variables: dict[str, Any]) -> str:
        assert self._template is not None
        pieces: list[str] = []
        n_chars = 0
        for piece in self._template.generate(variables):
            n_chars += len(piece)
            if n_chars > _OUTPUT_CHARS_MAX:
                raise _LimitReached(f"more than {_OUTPUT_CHARS_MAX} characters")
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


def _raise_exception(reason: object) -> NoReturn:
    raise _Refusal(str(reason))


def _reason(text: str) -> str:
    """Cut to what an error message may echo."""
    return text[:_REASON_CHARS_MAX].encode("utf-8", "replace").decode()


def _stopwatch() -> Callable[[], bool]:
    """A function for the template to call at every step; it gives True until a limit is reached, then it raises."""
    n_steps, until_s = 0, time.monotonic() + _RENDER_S_MAX

    def tick() -> bool:
        nonlocal n_steps
        n_steps += 1
        if n_steps > _STEPS_MAX:
            raise _LimitReached(f"more than {_STEPS_MAX} loop turns")
        if n_steps % _STEPS_PER_CLOCK == 0 and time.monotonic() > until_s:
            raise _LimitReached(f"longer than {_RENDER_S_MAX:g} seconds")
        return True

    return tick


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with operators that cannot make one huge value out of two."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_size(_size(left) * _repeats(right) + _size(right) * _repeats(left))
        elif operator == "+":
            _check_size(_size(left) + _size(right))
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _INTEGER_BITS_MAX:
            raise _LimitReached("a number that is too large")
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _repeats(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _check_size(size: int) -> None:
    if size > _OUTPUT_CHARS_MAX:
        raise _LimitReached(f"a value of more than {_OUTPUT_CHARS_MAX} elements")


def _join(*values: Any) -> str:
    """Jinja's `~`."""
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Templates expect plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _compile(source: str) -> jinja2.Template:
    """Raise ModelFileError when the program is too long or wrong."""
    if len(source) > _SOURCE_CHARS_MAX:
        raise ModelFileError(f"the chat template is longer than {_SOURCE_CHARS_MAX} characters")
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals[_JOIN] = _join
    try:
        tree = _with_bounds(environment.parse(source), environment)
        return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise ModelFileError(f"the chat template does not compile: {_reason(str(error))}") from error


def _with_bounds(tree: nodes.Template, environment: jinja2.Environment) -> nodes.Template:
    """Make every turn of a loop and every call of a macro tick, and every `~` check its size."""
    if any(name.name in (_TICK, _JOIN) for name in tree.find_all(nodes.Name)):
        raise ValueError(f"{_TICK} and {_JOIN} are reserved names")
    for block in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        assert isinstance(block, nodes.For | nodes.Macro | nodes.CallBlock)
        block.body.insert(0, nodes.ExprStmt(_call(_TICK, [], block.lineno), lineno=block.lineno))
        if isinstance(block, nodes.For) and block.test is not None:
            block.test = nodes.And(_call(_TICK, [], block.lineno), block.test, lineno=block.lineno)
    _replace_joins(tree)
    tree.set_environment(environment)
    return tree


def _call(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=lineno), arguments, [], None, None, lineno=lineno)


def _replace_joins(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, nodes.Node):
                continue
            _replace_joins(child)
            if isinstance(child, nodes.Concat):
                call = _call(_JOIN, child.nodes, child.lineno)
                if isinstance(value, list):
                    value[i] = call
                else:
                    setattr(node, field, call)
