"""What is logged of a call: one line at its end, the reason of a refusal, and only where it is asked for the request.

The line at the end has the numbers that people look for, and nothing that the caller wrote but the path and the label.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from sixfold.api.http.errors import clip, describe

if TYPE_CHECKING:
    from sixfold.api.call import Call
    from sixfold.messages import GenerateRequest

__all__ = ["MAX_LOGGED_CHARS", "PROBES", "log_end", "log_fault", "log_request"]

PROBES = frozenset({"/health", "/readyz", "/livez", "/metrics"})
"""Paths that machines ask for all the time: their lines are at level debug."""

MAX_LOGGED_CHARS = 2048
"""Of a prompt, or of a parameter's value."""

logger = logging.getLogger("sixfold.api.requests")

prompt_logger = logging.getLogger("sixfold.api.prompts")
prompt_logger.setLevel(logging.INFO)  # who asked for these lines asked for them at any --log-level


def log_end(call: Call) -> None:
    """The call's line."""
    path = call.scope["path"]
    level = logging.DEBUG if path in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "method": call.scope.get("method", "-"),
        "path": quote(clip(path)),
        "request_id": call.request_id,
        "status": call.status or None,
        "duration_ms": round((time.monotonic() - call.arrival_s) * 1e3, 1),
    }
    if call.caller.name:
        fields["key"] = call.caller.name
    counted = call.counted
    if counted is not None:
        usage = counted.usage()
        fields["model"] = call.context.client.model_name
        if counted.first_token_s:
            fields["ttft_ms"] = round((counted.first_token_s - call.arrival_s) * 1e3, 1)
        fields["prompt_tokens"] = usage.prompt_tokens
        fields["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        fields["completion_tokens"] = usage.completion_tokens
        if reasons := counted.reasons():
            fields["finish"] = reasons[0] if len(reasons) == 1 else reasons
    if call.fault is not None:
        fields["fault"] = call.fault
    logger.log(level, "%(method)s %(path)s", fields)


def log_fault(call: Call, error: BaseException) -> None:
    """Keep the code for the call's line; the reason is a line of its own, at level debug."""
    body = describe(error, call.request_id)[1]
    call.fault = body.code or body.type
    if logger.isEnabledFor(logging.DEBUG):
        fields = {"request_id": call.request_id, "reason": body.message, "param": body.param}
        logger.debug("refused: %(reason)r (param %(param)r)", fields)


def log_request(call: Call, request: GenerateRequest) -> None:
    """`--enable-log-requests`: what goes to the engine."""
    token_bytes = call.context.client.tokenizer.token_bytes
    text = b"".join([token_bytes[i] for i in request.prompt_token_ids[:MAX_LOGGED_CHARS]]).decode(errors="replace")
    fields: dict[str, Any] = {
        "request_id": call.request_id,
        "prompt": _cut(text, len(request.prompt_token_ids) > MAX_LOGGED_CHARS),
        "prompt_tokens": len(request.prompt_token_ids),
        "max_tokens": request.max_tokens,
        "n": request.n,
    }
    for name, value in msgspec.to_builtins(request.sampling, str_keys=True).items():
        fields[name] = value if isinstance(value, int | float) else _cut(str(value))
    prompt_logger.info("request %(request_id)s", fields)


def _cut(text: str, is_part: bool = False) -> str:
    is_cut = is_part or len(text) > MAX_LOGGED_CHARS
    return text[:MAX_LOGGED_CHARS] + "\N{HORIZONTAL ELLIPSIS}" if is_cut else text
