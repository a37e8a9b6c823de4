"""The ASGI application: the route table, and the checks that every call meets first.

Order of what a call goes through:

    guard.py        connection cap, header deadline and size          (below ASGI)
    App             Host allow-list, API key, route, method, scope of the key
    admission.py    by its head: readiness, a place, the key's limits
    call.py         content type, body size and deadline
    decoding.py     nesting depth, JSON, types, unknown fields
    params.py       ranges; the model
    admission.py    by its body: places, the deadline, the key's tokens
    conversation.py template and tokenizer, token ids, lengths
    generation.py   admission.py once more, by its tokens; then the engine's verdict

A path that is not in `ROUTES` does not exist.
"""

from __future__ import annotations

import difflib
import importlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sixfold.api import admin, web
from sixfold.api.abort import abort
from sixfold.api.call import Call
from sixfold.api.call_log import log_end
from sixfold.api.context import ApiContext
from sixfold.api.engine_face import EngineFace
from sixfold.api.http.errors import ClientGone, clip
from sixfold.api.openai.chat import create_chat_completion
from sixfold.api.openai.completions import create_completion
from sixfold.api.tokenize import apply_template, detokenize, tokenize
from sixfold.config import ApiConfig
from sixfold.engine.run_files import ServerStart
from sixfold.errors import NotAllowed, RouteNotFound, SixfoldError, printable
from sixfold.observability.delivery import Delivery
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.observatory import Observatory

__all__ = ["OPEN_PATHS", "ROUTES", "App", "Late", "allowed_hosts", "build_app"]

logger = logging.getLogger(__name__)

Handler = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Late:
    """A handler that is imported with its first call: no start waits for what nobody has asked for yet."""

    module: str
    """Below `sixfold.api`."""
    name: str

    def handler(self) -> Handler:
        handler: Handler = getattr(importlib.import_module(f"sixfold.api.{self.module}"), self.name)
        return handler

    async def __call__(self, call: Call) -> None:
        await self.handler()(call)


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("POST", "/v1/completions", create_completion),
    ("POST", "/v1/embeddings", Late("openai.embeddings", "create_embedding")),
    ("POST", "/v1/abort", abort),
    ("POST", "/v1/responses", Late("responses.create", "create_response")),
    ("GET", "/v1/responses/{id}", Late("responses.retrieve", "retrieve_response")),
    ("DELETE", "/v1/responses/{id}", Late("responses.retrieve", "delete_response")),
    ("GET", "/v1/responses/{id}/input_items", Late("responses.retrieve", "list_input_items")),
    ("POST", "/v1/messages", Late("anthropic.messages", "create_message")),
    ("POST", "/v1/messages/count_tokens", Late("anthropic.messages", "count_tokens")),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("POST", "/apply-template", apply_template),
    ("GET", "/", admin.home),
    ("GET", "/v1/models", admin.models),
    ("GET", "/v1/models/{id:path}", admin.model),
    ("GET", "/health", admin.ready),
    ("GET", "/readyz", admin.ready),
    ("GET", "/livez", admin.live),
    ("GET", "/version", admin.version),
    ("GET", "/metrics", admin.metrics),
    ("GET", "/openapi.json", Late("openapi", "openapi")),
    ("GET", "/page/{name}", web.page_file),
    ("GET", "/debug/live", Late("debug.live", "live")),
    ("GET", "/debug/health", Late("debug.health", "health")),
    ("GET", "/debug/waits", Late("debug.waits", "waits")),
    ("GET", "/debug/requests", Late("debug.requests", "requests")),
    ("GET", "/debug/requests/{id}", Late("debug.requests", "request")),
    ("GET", "/debug/trace", Late("debug.traces", "trace")),
    ("GET", "/debug/timeline/{id}", Late("debug.traces", "timeline")),
)

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
"""What answers without a key, where there are keys: probes, which say nothing about what is served. Besides them, the
files of the web page, and `/` to a browser, which gets the page."""

ADMIN_PREFIX = "/debug/"
"""Of paths that show what others do."""

MAX_SHOWN_CHARS = 100
"""Of a path or a Host in a message."""

MAX_MEANT_CHARS = 64
"""A longer path is no slip, and comparing takes its time: 0.2 ms for one of these."""

CLOSE = 0.75
"""Share of equal characters from which a path is a slip."""

_PLAIN_PATHS = sorted({path for _, path, _ in ROUTES if "{" not in path and path != "/"}, key=len, reverse=True)

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::"})


def build_app(
    client: EngineFace,
    config: ApiConfig,
    metrics: ApiMetrics | None = None,
    delivery: Delivery | None = None,
    observatory: Observatory | None = None,
    *,
    run_dir: str | None = None,
    api_server: int = 0,
    start: ServerStart | None = None,
) -> App:
    """The application over an engine; see `ApiContext`."""
    metrics = metrics or ApiMetrics(client.model_name, lambda: client.stats)
    return App(
        ApiContext(client, config, metrics, delivery, observatory, run_dir=run_dir, api_server=api_server, start=start)
    )


class App:
    """See the module's docstring."""

    def __init__(self, context: ApiContext) -> None:
        self.context = context
        self._hosts = allowed_hosts(context.config)
        access = context.config.metrics_access
        self._open_paths = OPEN_PATHS | web.PAGE_PATHS | ({"/metrics"} if access == "open" else frozenset())
        self._admin_paths = frozenset({"/metrics"} if access == "admin" else ())
        routes = [Route(path, _Endpoint(path, handler), methods=[method]) for method, path, handler in ROUTES]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = Call(self.context, scope, receive, send)
        scope["sixfold.call"] = call
        self.context.calls.add(call)
        scope["app"] = self  # makes the router raise, instead of answering 404 and 405 in its own shape
        try:
            self._check_host(call)
            if scope["path"].startswith(ADMIN_PREFIX):
                _check_site(call)
            self._check_key(call)
            await self._router(scope, receive, send)
        except ClientGone:
            call.fault = "client_gone"
        except HTTPException as error:
            await call.fail(_routing_error(error, scope))
        except SixfoldError as error:
            await self._fail(call, error)
        except Exception as error:
            logger.exception("request %(request_id)s failed", {"request_id": call.request_id})
            await self._fail(call, error)
        finally:
            self.context.calls.discard(call)
            call.close()
            log_end(call)
            if self.context.spans is not None:
                endpoint = scope.get("endpoint")
                self.context.spans.put(call, endpoint.path if isinstance(endpoint, _Endpoint) else "")
            call.let_go()

    def _check_host(self, call: Call) -> None:
        """A page that a browser got elsewhere can send requests here under its own name (DNS rebinding): refuse it."""
        if self._hosts is None:
            return
        name = host_name(call.header(b"host") or b"")
        if name in self._hosts.names or (self._hosts.any_address and _is_address(name)):
            return
        raise NotAllowed(
            f"the Host {_shown(name) or '(none)'} is not allowed here; see --allowed-hosts", code="host_not_allowed"
        )

    def _check_key(self, call: Call) -> None:
        """Default deny: what is not listed as open needs a key, whether it exists or not. The router looks at the very
        same path, so there is no spelling that it takes and this does not see."""
        keys = self.context.keys
        path = call.scope["path"]
        if keys is None or path in self._open_paths or (path == "/" and web.wants_page(call.header(b"accept"))):
            return
        call.caller = keys.caller(call.scope["headers"])
        if (path in self._admin_paths or path.startswith(ADMIN_PREFIX)) and not call.caller.is_admin:
            raise NotAllowed("this path needs a key of scope admin", code="admin_only")

    async def _fail(self, call: Call, error: Exception) -> None:
        if call.started:
            raise error
        await call.fail(error)


def _check_site(call: Call) -> None:
    """Another site's page can make a browser call these paths. It is not shown the answer, but the answer costs time
    and a watcher's place: refuse it. A link that somebody follows is well."""
    site = call.header(b"sec-fetch-site") or b""
    if site in (b"cross-site", b"same-site") and call.header(b"sec-fetch-dest") != b"document":
        raise NotAllowed("another site's page asks for this", code="cross_site")


class _Endpoint:
    """A handler as an ASGI application, so that the router adds nothing around it."""

    def __init__(self, path: str, handler: Handler) -> None:
        self.path = path
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope["sixfold.call"])


class AllowedHosts:
    """Host names that are accepted."""

    def __init__(self, names: frozenset[str], any_address: bool) -> None:
        self.names = names
        self.any_address = any_address
        """Bound to all addresses: numeric hosts cannot be rebound by DNS and are accepted."""


def allowed_hosts(config: ApiConfig) -> AllowedHosts | None:
    """Accepted values of `Host`, without port; None accepts all."""
    more = {name.strip().lower().strip("[]") for name in config.allowed_hosts.split(",") if name.strip()}
    if "*" in more:
        return None
    bound = config.host.lower().strip("[]")
    return AllowedHosts(LOCAL_NAMES | more | {bound}, bound in WILDCARDS)


def host_name(header: bytes) -> str:
    """`localhost:8000` -> `localhost`, `[::1]:8000` -> `::1`."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _routing_error(error: HTTPException, scope: Scope) -> SixfoldError:
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return NotAllowed(f"this path takes {allow}", code="method_not_allowed")
    hint = nearest_path(scope["path"])
    said = f"did you mean {hint}?" if hint else "/openapi.json lists what there is"
    return RouteNotFound(f"no such path: {_shown(scope['path'])}; {said}")


def _shown(words: str) -> str:
    return clip(printable(words[:MAX_SHOWN_CHARS]), MAX_SHOWN_CHARS)


def nearest_path(path: str) -> str | None:
    """The path of a route that was probably meant. A base URL with `/v1` where there should be none, or the other way
    round, is found by its end; a slip of the finger by its letters. The cost is bounded: long paths get no hint."""
    if len(path) > MAX_MEANT_CHARS:
        return None
    wanted = path.rstrip("/").lower()
    for known in _PLAIN_PATHS:
        if wanted.endswith(known.removeprefix("/v1")):
            return known
    return next(iter(difflib.get_close_matches(wanted, _PLAIN_PATHS, n=1, cutoff=CLOSE)), None)


def _unused(app: App) -> ASGIApp:
    """`App` is an ASGI application: checked by the type checker."""
    return app
