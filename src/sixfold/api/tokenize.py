"""`POST /tokenize`, `/detokenize`, `/apply-template`: the model's tokenizer and chat template without a generation."""

from __future__ import annotations

from typing import Any

import msgspec

from sixfold.api.call import Call
from sixfold.api.chat_messages import template_messages
from sixfold.api.conversation import Conversation, prompt_ids, render, template_of
from sixfold.api.decoding import read_request
from sixfold.api.schemas import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
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
    with call.admitted():
        request, ignored = await read_request(call, TokenizeRequest)
        context.check_model(request.model)
        ids = await _ids(call, request)
        tokenizer = context.client.tokenizer
        check_ids(ids, tokenizer, "prompt" if request.messages is None else "messages")
    pieces = [tokenizer.piece(token_id) for token_id in ids] if request.return_token_strs else None
    answer = TokenizeResponse(len(ids), context.client.max_model_len, ids, pieces)
    await call.respond(200, msgspec.json.encode(answer), headers=call.ignored_header(ignored))


async def detokenize(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, DetokenizeRequest)
        context.check_model(request.model)
        check_ids(request.tokens, context.client.tokenizer, "tokens")
        text = await context.aside(
            context.client.tokenizer.decode, request.tokens, skip_special=bool(request.skip_special_tokens)
        )
    await call.respond(200, msgspec.json.encode(DetokenizeResponse(text)), headers=call.ignored_header(ignored))


async def apply_template(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, ApplyTemplateRequest)
        messages = template_messages(request.messages)
        context.check_model(request.model)
        template, tokenizer = template_of(context), context.client.tokenizer
        options: dict[str, Any] = {
            "add_generation_prompt": request.add_generation_prompt is not False,
            "template_variables": request.chat_template_kwargs,
        }

        def render() -> ApplyTemplateResponse:
            answer = ApplyTemplateResponse(template.render_text(messages, **options))
            if request.return_token_ids:
                [ids] = tokenizer.encode_parts([template.render_parts(messages, **options)])
                tokenizer.lead_with_bos(ids)
                answer.prompt_token_ids = ids
            return answer

        answer = await context.aside(render)
    await call.respond(200, msgspec.json.encode(answer), headers=call.ignored_header(ignored))


async def _ids(call: Call, request: TokenizeRequest) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if request.messages is not None:
        if request.add_special_tokens is not None:
            raise InvalidRequest(
                "add_special_tokens belongs to prompt; a chat template decides itself", param="add_special_tokens"
            )
        conversation = Conversation(
            messages=template_messages(request.messages),
            add_generation_prompt=request.add_generation_prompt is not False,
        )
        template, tokenizer = template_of(call.context), call.context.client.tokenizer
        return await call.context.aside(lambda: prompt_ids(tokenizer, render(template, conversation)))
    if request.add_generation_prompt is not None:
        raise InvalidRequest("add_generation_prompt belongs to messages", param="add_generation_prompt")
    encoded = await call.context.aside(
        call.context.client.tokenizer.encode_batch,
        [request.prompt or ""],
        parse_control=True,
        add_bos=request.add_special_tokens is not False,
    )
    return encoded[0]
