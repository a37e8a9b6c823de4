"""The web page: files beside this module, in `page/`, served from memory. They say nothing about the server, so they
answer without a key; what the page shows, it asks for with the key of whoever looks at it.

Nothing is read before the first call for it. A browser keeps the files and asks whether they are still the same.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

from sixfold.api.call import Call
from sixfold.errors import RouteNotFound

__all__ = ["FILES", "INDEX", "PAGE_PATHS", "SAFETY", "page", "page_file", "wants_page"]

INDEX = "index.html"

FILES = (
    INDEX,
    "style.css",
    "icon.svg",
    "main.js",
    "dom.js",
    "server.js",
    "feed.js",
    "chat.js",
    "messages.js",
    "settings.js",
    "conversations.js",
    "anatomy.js",
    "flow.js",
    "blocks.js",
    "steps.js",
    "timeline.js",
    "requests.js",
    "health.js",
)

PAGE_PATHS = frozenset(f"/page/{name}" for name in FILES)

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}

SAFETY = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
"""Scripts and styles come from here alone, none is written into the page, and no other page can hold this one."""


class _File(NamedTuple):
    body: bytes
    content_type: bytes
    etag: bytes


@functools.cache
def _load(name: str) -> _File:
    body = Path(__file__).with_name("page").joinpath(name).read_bytes()
    etag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return _File(body, _TYPES[name.rpartition(".")[2]], etag)


def wants_page(accept: bytes | None) -> bool:
    """Whether `/` is asked for by a browser."""
    return accept is not None and b"text/html" in accept.lower()


async def page(call: Call) -> None:
    """`GET /` of a browser."""
    await _respond(call, INDEX)


async def page_file(call: Call) -> None:
    """`GET /page/{name}`."""
    name = call.scope["path_params"]["name"]
    if name not in FILES:
        raise RouteNotFound("the page has no such file")
    await _respond(call, name)


async def _respond(call: Call, name: str) -> None:
    file = _load(name)
    headers = [*SAFETY, (b"etag", file.etag), (b"vary", b"accept")]
    if call.header(b"if-none-match") == file.etag:
        await call.respond(304, b"", content_type=file.content_type, headers=headers)
    else:
        await call.respond(200, file.body, content_type=file.content_type, headers=headers)
