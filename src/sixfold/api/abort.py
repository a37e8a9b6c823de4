"""`POST /v1/abort`: end a request that another connection waits for."""

from __future__ import annotations

import msgspec

from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.http.decoding import read_request
from sixfold.api.openai.schemas import AbortRequest
from sixfold.errors import InvalidRequest, RequestNotFound
from sixfold.messages import AbortNamed, Found

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
    await _abort(call.context, request.id, None if call.caller.is_admin else call.tenant)
    await call.respond(200, msgspec.json.encode(Aborted(request.id)), headers=call.ignored_header(ignored))


async def _abort(context: ApiContext, name: str, tenant: str | None) -> None:
    """First all API processes count, then the one that has the request ends it.

    Raises:
        RequestNotFound: nothing in flight has the name (any more).
        InvalidRequest: several requests have it (`ambiguous_id`); none was ended.
    """
    n_own = context.open_requests.abort(name, tenant, end=False)
    n_elsewhere = await _elsewhere(context, name, tenant, end=False)
    if n_own + n_elsewhere > 1:
        raise InvalidRequest(
            f"{n_own + n_elsewhere} requests in flight have this label; name one by the id in its answer",
            param="id",
            code="ambiguous_id",
        )
    n_ended = context.open_requests.abort(name, tenant) if n_own else 0
    n_ended += await _elsewhere(context, name, tenant, end=True) if n_elsewhere else 0
    if not n_ended:
        raise RequestNotFound("no request in flight has this id", param="id")


async def _elsewhere(context: ApiContext, name: str, tenant: str | None, *, end: bool) -> int:
    return sum(found.n for found in await context.ask_peers(AbortNamed(name, tenant, end), Found))
