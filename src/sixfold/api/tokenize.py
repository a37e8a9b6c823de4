"""`POST /tokenize`, `/detokenize`, `/apply-template`: the model's tokenizer and chat template without a generation."""

from __future__ import annotations

import msgspec

from sixfold.api.call import Call
from sixfold.api.conversation import prompt_ids, render_text, template_for
from sixfold.api.http.decoding import by_size, read_request
from sixfold.api.openai.chat_prompt import PROMPT_OPTIONS, prompt_conversation
from sixfold.api.openai.schemas import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from sixfold.engine.request import check_ids
from sixfold.errors import InvalidRequest

__all__ = ["apply_template", "detokenize", "tokenize"]


class TokenizeResponse(msgspec.Struct):
    """Token ids of the text or chat."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class ApplyTemplateResponse(msgspec.Struct, omit_defaults=True):
    """The chat as the model reads it."""

    prompt: str
    prompt_token_ids: list[int] | None = None


class DetokenizeResponse(msgspec.Struct):
    """Text of the token ids."""

    prompt: str


async def tokenize(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted(generates=False):
        request, ignored = await read_request(call, TokenizeRequest)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        context.check_model(request.model)
        ids = await _ids(call, request)
        tokenizer = context.client.tokenizer
        check_ids(ids, tokenizer, "prompt" if request.messages is None else "messages")

        def answer() -> bytes:
            pieces = [tokenizer.piece(token_id) for token_id in ids] if request.return_token_strs else None
            return msgspec.json.encode(TokenizeResponse(len(ids), context.client.max_model_len, ids, pieces))

        document = await context.threads.aside(answer)
    await call.respond(200, document, headers=call.ignored_header(ignored))


async def detokenize(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted(generates=False):
        request, ignored = await read_request(call, DetokenizeRequest)
        context.check_model(request.model)
        check_ids(request.tokens, context.client.tokenizer, "tokens")
        text = await context.threads.aside(
            context.client.tokenizer.decode, request.tokens, skip_special=bool(request.skip_special_tokens)
        )
    await call.respond(200, msgspec.json.encode(DetokenizeResponse(text)), headers=call.ignored_header(ignored))


async def apply_template(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted(generates=False):
        request, ignored = await read_request(call, ApplyTemplateRequest)
        conversation = await by_size(call, prompt_conversation, request.messages, request)
        context.check_model(request.model)
        template, tokenizer = template_for(context, conversation), context.client.tokenizer

        def apply() -> ApplyTemplateResponse:
            answer = ApplyTemplateResponse(render_text(template, conversation))
            if request.return_token_ids:
                answer.prompt_token_ids = prompt_ids(template, tokenizer, conversation)
            return answer

        answer = await context.threads.aside(apply)
    await call.respond(200, msgspec.json.encode(answer), headers=call.ignored_header(ignored))


async def _ids(call: Call, request: TokenizeRequest) -> list[int]:
    context = call.context
    tokenizer = context.client.tokenizer
    if request.messages is not None:
        conversation = await by_size(call, prompt_conversation, request.messages, request)
        return await context.threads.aside(prompt_ids, template_for(context, conversation), tokenizer, conversation)
    for name in PROMPT_OPTIONS:
        if name != "add_special_tokens" and getattr(request, name) is not None:
            raise InvalidRequest(f"{name} belongs to messages", param=name)
    add_bos = request.add_special_tokens is not False
    [ids] = await context.threads.aside(
        tokenizer.encode_batch, [request.prompt or ""], parse_control=True, add_bos=add_bos
    )
    return ids
