"""What chat, messages and responses ask for, free of any wire format. What they answer: `parting.py`.

Conversation --prepare--> Prepared: prompt ids, grammar, a parser per choice
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from sixfold.api.context import ApiContext
from sixfold.api.fields.call_grammar import EnforcedTool, answer_grammar, call_grammar, strict_grammar
from sixfold.api.fields.thinking import thinking_variables
from sixfold.api.threads import LONG_TEXT_CHARS
from sixfold.errors import InvalidRequest
from sixfold.observability.calls import stage
from sixfold.observability.meter import now
from sixfold.observability.sites import API_TEMPLATE, API_TOKENIZE
from sixfold.observability.timeline import State
from sixfold.text import ChatTemplate, Tokenizer
from sixfold.text.answer_parser import THINK_BEGIN, THINK_END, PartsParser, Thinking
from sixfold.text.answer_parts import AnswerParser
from sixfold.text.call_format import CallFormat
from sixfold.text.tool_prompt import messages_and_tools

__all__ = [
    "Conversation",
    "Prepared",
    "Tool",
    "ToolChoice",
    "prepare",
    "prompt_ids",
    "render",
    "render_text",
    "template_for",
]

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that the model may call. Validated: `parameters` is a JSON schema of an object, maybe empty."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class ToolChoice:
    """`required`: at least one call of any tool; `named`: exactly one, of this one."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What is to be answered, validated by its endpoint.

    Attributes:
        messages: for the chat template: `role` (system, user, assistant, tool), `content` (always a text, maybe empty),
            and where there are any `name`, `tool_call_id`, `reasoning_content`, and
            `tool_calls` = [{"id", "type": "function", "function": {"name", "arguments": dict}}].
        template_kwargs: more variables for the template.
        effort: how much to think, see `thinking.py`; None: what the template does by itself.
        continue_final_message: the answer goes on with the last message; without a generation prompt.
        adds_bos: a BOS that the model wants leads the prompt, also where the template writes none.
        any_length: the prompt will be shortened: it may be too long for now.
        grammar: that the answer must follow; "": none.
        messages_field, effort_field: names for errors.
        parameters_field: the same; `{}` stands for a tool's index.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    adds_bos: bool = True
    any_length: bool = False
    grammar: str = ""
    messages_field: str = "messages"
    effort_field: str = "reasoning_effort"
    parameters_field: str = "tools[{}].function.parameters"

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model is shown."""
        return () if self.tool_choice.mode == "none" else self.tools

    @property
    def must_call(self) -> bool:
        """The answer must have a call."""
        return self.tool_choice.mode in ("required", "named")

    @property
    def enforces_strict(self) -> bool:
        """Calls are the model's choice, but a tool wants its schema to be followed."""
        return self.tool_choice.mode == "auto" and not self.grammar and any(tool.strict for tool in self.tools)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A conversation, ready for the engine.

    Attributes:
        grammar: for `Sampling.grammar`: the conversation's own, or that of the calls it must have; "": none.
        shown_ids: for `text_options` and `AnswerFacts.of`: control tokens whose text the parser needs.
        extra_stop_ids: end the answer, besides the model's own end tokens.
    """

    prompt_ids: list[int]
    grammar: str = ""
    shown_ids: frozenset[int] = frozenset()
    extra_stop_ids: tuple[int, ...] = ()
    calls: CallFormat | None = None
    names: frozenset[str] = frozenset()
    one_call: bool = False
    sure: bool = False
    thinking: Thinking = "no"

    @property
    def plain(self) -> bool:
        """The answer's text is its content: there is nothing to parse."""
        return self.calls is None and self.thinking == "no"

    def parser(self) -> AnswerParser | None:
        """A new one, for one choice; None where the answer's text is its content."""
        if self.plain:
            return None
        return PartsParser(self.calls, self.names, one_call=self.one_call, sure=self.sure, thinking=self.thinking)


async def prepare(context: ApiContext, conversation: Conversation) -> Prepared:
    """Render, tokenize and find out how the answer is to be read; made beside the event loop.

    Raises:
        InvalidRequest: what `template_for` raises; the template refuses these messages; a tool's schema cannot be
            enforced.
        ContextLengthExceeded: the prompt is too long, whatever its tokens are.
    """
    template = template_for(context, conversation)
    n_chars = sum(len(str(message.get("content", ""))) for message in conversation.messages)
    run = context.threads.aside if conversation.any_length and n_chars > LONG_TEXT_CHARS else context.threads.run
    return await run(_prepare, context, template, conversation)


def template_for(context: ApiContext, conversation: Conversation) -> ChatTemplate:
    """The model's template. A cheap check, to be made before what costs more.

    Raises:
        InvalidRequest: the model has none, or it cannot be told how much to think.
    """
    template = context.client.chat_template
    if template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions",
            param=conversation.messages_field,
            code="no_chat_template",
        )
    _variables(template, conversation)
    return template


def prompt_ids(template: ChatTemplate, tokenizer: Tokenizer, conversation: Conversation) -> list[int]:
    """The prompt of a conversation that needs no answer. Takes milliseconds at least: use a thread.

    Raises:
        InvalidRequest: see `render`.
    """
    return _tokenized(tokenizer, render(template, conversation), conversation)


def _tokenized(tokenizer: Tokenizer, parts: Sequence[str | int], conversation: Conversation) -> list[int]:
    stage(State.TOKENIZE)
    ids = tokenizer.encode_parts([parts])[0]
    if conversation.adds_bos:
        tokenizer.lead_with_bos(ids)
    return ids


def _prepare(context: ApiContext, template: ChatTemplate, conversation: Conversation) -> Prepared:
    tokenizer, traits = context.client.tokenizer, template.traits
    started_ns = now()
    parts = render(template, conversation)
    context.threads.note(API_TEMPLATE, started_ns, now())
    thinking: Thinking = "no"
    if traits.thinks:
        thinking = "open" if _ends_with_open_thought(parts, tokenizer.control) else "maybe"
    calls = _format(traits.calls, conversation)
    grammar = _grammar(conversation, calls, thinking, tokenizer.control)
    if not conversation.any_length:
        context.prompt_length.check(parts, conversation.messages_field)
    started_ns = now()
    ids = _tokenized(tokenizer, parts, conversation)
    context.threads.note(API_TOKENIZE, started_ns, now())
    if not ids:
        raise InvalidRequest(
            "the chat template made an empty prompt of these messages", param=conversation.messages_field
        )
    marks = (*(calls.marks if calls is not None else ()), *((THINK_BEGIN, THINK_END) if traits.thinks else ()))
    return Prepared(
        prompt_ids=ids,
        grammar=grammar,
        shown_ids=frozenset(tokenizer.control[mark] for mark in marks if mark in tokenizer.control),
        calls=calls,
        names=frozenset(tool.name for tool in conversation.offered),
        one_call=not conversation.parallel_tool_calls,
        sure=conversation.must_call,
        thinking=thinking,
    )


def _format(calls: CallFormat, conversation: Conversation) -> CallFormat | None:
    """How calls in the answer are written; None where no tool is offered."""
    if not conversation.offered:
        return None
    if conversation.enforces_strict and not calls.in_template:
        # The grammar lets nothing else be a call.
        opener, closer = next(iter(calls.openers.items()))
        return replace(calls, openers={opener: closer}, bare=False)
    return calls


def _grammar(
    conversation: Conversation, calls: CallFormat | None, thinking: Thinking, control: Mapping[str, int]
) -> str:
    answer = conversation.grammar
    if calls is None or not (conversation.must_call or conversation.enforces_strict or answer):
        return answer_grammar(answer, thinking=thinking, control=control) if answer else ""
    stage(State.GRAMMAR)
    tools = [
        EnforcedTool(tool.name, tool.parameters, conversation.parameters_field.format(i))
        for i, tool in enumerate(conversation.tools)
    ]
    if conversation.must_call or answer:
        name = conversation.tool_choice.name
        return call_grammar(
            calls,
            [tool for tool in tools if name is None or tool.name == name],
            one=name is not None or not conversation.parallel_tool_calls,
            thinking=thinking,
            control=control,
            or_grammar="" if conversation.must_call else answer,
        )
    if calls.bare:
        return ""
    enforced = [
        tool if one.strict else tool._replace(parameters=None)
        for tool, one in zip(tools, conversation.tools, strict=True)
    ]
    return strict_grammar(calls, enforced, thinking=thinking, control=control)


def render(template: ChatTemplate, conversation: Conversation) -> list[str | int]:
    """The prompt's pieces, see `ChatTemplate.render_parts`. Takes milliseconds at least: use a thread.

    Raises:
        InvalidRequest: the template refuses; `param` is one of the conversation's fields.
    """
    return _rendered(template.render_parts, template, conversation)


def render_text(template: ChatTemplate, conversation: Conversation) -> str:
    """The same as text, for people, see `ChatTemplate.render_text`."""
    return _rendered(template.render_text, template, conversation)


def _rendered(render: Callable[..., R], template: ChatTemplate, conversation: Conversation) -> R:
    stage(State.TEMPLATE)
    shown = [_for_template(tool) for tool in conversation.offered]
    messages, tools = messages_and_tools(template.traits, conversation.messages, shown)
    try:
        return render(
            messages,
            tools=tools or None,
            add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
            continue_final=conversation.continue_final_message,
            template_variables=_variables(template, conversation),
        )
    except InvalidRequest as error:
        param = conversation.messages_field if error.param == "messages" else error.param
        raise InvalidRequest(error.message, param=param, code=error.code) from error


def _variables(template: ChatTemplate, conversation: Conversation) -> dict[str, Any]:
    """The caller's variables for the template, and those that say how much to think."""
    told = thinking_variables(template.traits, conversation.effort, conversation.effort_field)
    for name, value in told.items():
        if conversation.template_kwargs.get(name, value) != value:
            field_ = conversation.effort_field
            raise InvalidRequest(f"{field_} and chat_template_kwargs.{name} differ; give one", param=field_)
    return {**conversation.template_kwargs, **told}


def _for_template(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _ends_with_open_thought(parts: Sequence[str | int], control: Mapping[str, int]) -> bool:
    """Whether a prompt's last word, but for blanks, is `<think>`."""
    for part in reversed(parts):
        if isinstance(part, int):
            return part == control.get(THINK_BEGIN)
        if part.strip():
            return part.rstrip().endswith(THINK_BEGIN)
    return False
