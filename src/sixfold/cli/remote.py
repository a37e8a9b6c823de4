"""A running server, asked over HTTP: for commands that show what it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from sixfold.errors import ConfigError, NotReady, SixfoldError, Unauthorized

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

__all__ = ["DEFAULT_URL", "Unreachable", "get", "server_events", "server_options"]

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_DOCUMENT_BYTES = 64 << 20
MAX_LINE_BYTES = 8 << 20


Command = TypeVar("Command", bound=Callable[..., int])


def server_options(command: Command) -> Command:
    """The options `--url` and `--api-key`."""
    key_help = "Key of scope admin, where the server asks for one."
    command = click.option("--api-key", envvar="SIXFOLD_API_KEY", show_envvar=True, default="", help=key_help)(command)
    return click.option("--url", default=DEFAULT_URL, show_default=True, help="Address of the server.")(command)


class Unreachable(NotReady):
    """Nobody answers, or the connection was lost: trying again may help."""


def get(url: str, path: str, key: str = "", *, timeout_s: float = 10.0) -> bytes:
    """The body of a 200.

    Raises:
        Unreachable: there is no answer.
        Unauthorized, SixfoldError: the server's own refusal.
        ConfigError: the URL is none.
    """
    from http.client import HTTPException

    connection, response = _ask(url, path, key, timeout_s)
    try:
        return response.read(MAX_DOCUMENT_BYTES)
    except (OSError, HTTPException) as e:
        raise Unreachable(f"the connection to {url} was lost") from e
    finally:
        connection.close()


def server_events(url: str, path: str, key: str = "", *, silence_s: float = 3.0) -> Iterator[bytes]:
    """The data of each event of a stream.

    Args:
        silence_s: without a byte for so long, the connection counts as lost.

    Raises:
        As `get`.
    """
    from http.client import HTTPException

    connection, response = _ask(url, path, key, silence_s)
    try:
        while line := response.readline(MAX_LINE_BYTES):
            if line.startswith(b"data: "):
                yield line[6:].strip()
    except (OSError, HTTPException) as e:
        raise Unreachable(f"the connection to {url} was lost") from e
    finally:
        connection.close()


def _ask(url: str, path: str, key: str, timeout_s: float) -> tuple[HTTPConnection, HTTPResponse]:
    import http.client
    import ssl
    from http.client import HTTPException

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{url!r} is not the address of a server, like {DEFAULT_URL}", param="--url")
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection: HTTPConnection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", parts.path.rstrip("/").removesuffix("/v1") + path, headers=headers)
        response = connection.getresponse()
        if response.status == 200:
            return connection, response
        raise _refusal(response.status, response.read(1 << 16))
    except ssl.SSLCertVerificationError as e:
        connection.close()
        raise ConfigError(f"the certificate of {url} is not trusted: {e.verify_message}", param="--url") from e
    except (OSError, HTTPException) as e:
        connection.close()
        raise Unreachable(f"no server answers at {url}") from e
    except BaseException:
        connection.close()
        raise


def _refusal(status: int, body: bytes) -> SixfoldError:
    said: Any = {}
    with contextlib.suppress(msgspec.MsgspecError):
        said = msgspec.json.decode(body, type=dict[str, Any]).get("error", {})
    message = str(said.get("message") or f"the server answered {status}")
    if status in (401, 403):
        return Unauthorized(f"{message} (--api-key)")
    if status in (429, 503):
        return Unreachable(message)
    return SixfoldError(message)
