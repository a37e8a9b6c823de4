"""`POST /v1/abort`: end a request that another connection waits for."""

from __future__ import annotations

import msgspec

from sixfold.api.call import Call
from sixfold.api.decoding import read_request
from sixfold.api.schemas import AbortRequest
from sixfold.errors import InvalidRequest

__all__ = ["MAX_ID_CHARS", "abort"]

MAX_ID_CHARS = 256


class Aborted(msgspec.Struct):
    """The request has ended."""

    id: str
    aborted: bool = True


async def abort(call: Call) -> None:
    """Handle one call. It takes no permit: under overload, and while the server stops, ending work is welcome."""
    request, ignored = await read_request(call, AbortRequest)
    if not 1 <= len(request.id) <= MAX_ID_CHARS:
        raise InvalidRequest(f"id must have 1 to {MAX_ID_CHARS} characters", param="id")
    await call.context.open_requests.abort(request.id, None if call.caller.is_admin else call.tenant)
    await call.respond(200, msgspec.json.encode(Aborted(request.id)), headers=call.ignored_header(ignored))
