"""Stored responses: `GET` and `DELETE /v1/responses/{id}`, `GET /v1/responses/{id}/input_items`."""

from __future__ import annotations

import msgspec

from sixfold.api.call import Call
from sixfold.api.http.errors import clip
from sixfold.api.responses.document import ItemList, ResponseDeleted
from sixfold.api.responses.items import decode_items
from sixfold.api.responses.store import ResponseStore, not_found
from sixfold.errors import InvalidRequest

__all__ = ["delete_response", "list_input_items", "retrieve_response"]

LIMIT_DEFAULT, LIMIT_MAX = 20, 100


async def retrieve_response(call: Call) -> None:
    """The document as it was answered."""
    _query(call, {"stream": ("false",), "include_obfuscation": ("false", "true")})
    stored = await _store(call).get(call.tenant, _id(call))
    await call.respond(200, stored.response)


async def delete_response(call: Call) -> None:
    """Forget it. What continues it cannot be continued any more."""
    _query(call, {})
    id = _id(call)
    await _store(call).delete(call.tenant, id)
    await call.respond(200, msgspec.json.encode(ResponseDeleted(id)))


async def list_input_items(call: Call) -> None:
    """The items of that request alone, without those of the responses that it continues; the latest first."""
    query = _query(call, {"limit": (), "after": (), "order": ("asc", "desc")})
    limit = _limit(query.get("limit"))
    stored = await _store(call).get(call.tenant, _id(call))
    items = decode_items(stored.items)
    if query.get("order") != "asc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        places = [i for i, item in enumerate(items) if item.id == after]
        if not places:
            raise InvalidRequest(f"after: there is no item {clip(after, 64)!r} in this response", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    document = ItemList(
        page, page[0].id if page else None, page[-1].id if page else None, has_more=len(items) > len(page)
    )
    await call.respond(200, msgspec.json.encode(document))


def _id(call: Call) -> str:
    return str(call.scope["path_params"]["id"])


def _store(call: Call) -> ResponseStore:
    store = call.context.responses
    if store is None:
        raise not_found(_id(call))
    return store


def _query(call: Call, known: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The query's parameters.

    Args:
        known: name -> values that are accepted, empty for any.

    Raises:
        InvalidRequest: names the parameter.
    """
    query = dict(call.query())
    for name, value in query.items():
        if name not in known:
            shown = clip(name, 64)
            raise InvalidRequest(f"unknown query parameter: {shown}", param=shown, code="unknown_field")
        if known[name] and value not in known[name]:
            raise InvalidRequest(f"{name} must be {' or '.join(known[name])} here", param=name)
    return query


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= LIMIT_MAX):
        raise InvalidRequest(f"limit must be a number from 1 to {LIMIT_MAX}", param="limit")
    return int(text)
