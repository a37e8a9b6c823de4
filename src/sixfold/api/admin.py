"""What operators and clients ask about the server itself. None of these needs the engine to answer."""

from __future__ import annotations

import time

import msgspec

from sixfold import __version__
from sixfold.api.call import Call
from sixfold.api.openapi import document

__all__ = ["live", "metrics", "model", "models", "openapi", "ready", "version"]

STARTED = int(time.time())


class Model(msgspec.Struct):
    """A served model."""

    id: str
    max_model_len: int
    created: int
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
    call.context.check_ready()
    await call.respond(200, msgspec.json.encode(Status()))


async def version(call: Call) -> None:
    """`GET /version`."""
    await call.respond(200, msgspec.json.encode(Version(__version__, call.context.client.build)))


async def metrics(call: Call) -> None:
    """`GET /metrics`."""
    text = call.context.metrics.render()
    await call.respond(200, text, content_type=b"text/plain; version=0.0.4; charset=utf-8")


async def openapi(call: Call) -> None:
    """`GET /openapi.json`."""
    await call.respond(200, document())


def _model(call: Call) -> Model:
    client = call.context.client
    return Model(client.model_name, client.max_model_len, STARTED)
