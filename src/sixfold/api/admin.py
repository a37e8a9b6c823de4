"""What operators and clients ask about the server itself. None of these needs the engine to answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import msgspec

from sixfold import __version__
from sixfold.api.call import Call
from sixfold.api.web import page, wants_page
from sixfold.engine.example import curl_line
from sixfold.messages import ApiCounts, CountsAsked

__all__ = ["Model", "ModelList", "Status", "Version", "home", "live", "metrics", "model", "models", "ready", "version"]

_HOST = re.compile(rb"[A-Za-z0-9.-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


class Model(msgspec.Struct):
    """A served model."""

    id: str
    max_model_len: int
    created: int
    sampling_defaults: Mapping[str, float | int]
    """What the model's files recommend: the defaults of requests that do not say."""
    object: str = "model"
    owned_by: str = "sixfold"


class ModelList(msgspec.Struct):
    """`GET /v1/models`."""

    data: list[Model]
    object: str = "list"


class Status(msgspec.Struct):
    """The server is well."""

    status: str = "ok"


class Version(msgspec.Struct):
    """`GET /version`."""

    version: str
    build: str
    """Backend and instruction set."""


async def home(call: Call) -> None:
    """`GET /`: the web page for a browser, a few words for everybody else."""
    if wants_page(call.header(b"accept")):
        await page(call)
        return
    client = call.context.client
    host = call.header(b"host") or b""
    url = call.scope["scheme"] + "://" + (host.decode("ascii") if _HOST.fullmatch(host) else "localhost:8000")
    text = (
        f"Sixfold {__version__} serves {client.model_name} with an API like OpenAI's.\n\n"
        "  /v1/models      the served model\n"
        "  /openapi.json   every path and field\n"
        "  /health         whether requests are taken\n"
        "  /               in a browser: chat, and what happens inside\n\n"
    )
    has_keys = call.context.keys is not None
    text += curl_line(url, client.model_name, chats=client.chat_template is not None, keys=has_keys)
    headers = [(b"x-content-type-options", b"nosniff"), (b"vary", b"accept")]
    await call.respond(200, text.encode(), content_type=b"text/plain; charset=utf-8", headers=headers)


async def models(call: Call) -> None:
    """`GET /v1/models`."""
    await call.respond(200, msgspec.json.encode(ModelList([_model(call)])))


async def model(call: Call) -> None:
    """`GET /v1/models/{id}`."""
    call.context.check_model(call.scope["path_params"]["id"])
    await call.respond(200, msgspec.json.encode(_model(call)))


async def live(call: Call) -> None:
    """`GET /livez`: this process turns its event loop. Says nothing about the engine."""
    await call.respond(200, msgspec.json.encode(Status()))


async def ready(call: Call) -> None:
    """`GET /readyz`, `GET /health`: new requests are taken. A full queue does not change this."""
    call.context.admission.check_ready()
    await call.respond(200, msgspec.json.encode(Status()))


async def version(call: Call) -> None:
    """`GET /version`."""
    await call.respond(200, msgspec.json.encode(Version(__version__, call.context.client.build)))


async def metrics(call: Call) -> None:
    """`GET /metrics`."""
    others = await call.context.ask_peers(CountsAsked(), ApiCounts)
    async with call.context.scraping:  # one after the other, and tokens get their turn between
        text = call.context.metrics.render(others)
        await asyncio.sleep(0)
    await call.respond(200, text, content_type=b"text/plain; version=0.0.4; charset=utf-8")


def _model(call: Call) -> Model:
    client = call.context.client
    return Model(client.model_name, client.max_model_len, call.context.start.unix_s, client.sampling_defaults)
