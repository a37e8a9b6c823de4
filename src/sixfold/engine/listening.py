"""The socket on which callers connect. It belongs to the supervisor, so that it outlives any API process: who connects
while one is started again waits in its backlog."""

from __future__ import annotations

import errno
import socket

from sixfold.config import ApiConfig
from sixfold.errors import ConfigError

__all__ = ["listen_for_http"]

_BACKLOG = 2048


def listen_for_http(config: ApiConfig) -> socket.socket:
    """On the address that is asked for.

    Raises:
        ConfigError: it cannot be had.
    """
    host, port = config.host, config.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as e:
        reason = e.strerror or str(e)
        if isinstance(e, socket.gaierror) or e.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"--host {host} is no address of this machine: {reason}; 127.0.0.1 is this machine alone, "
                "0.0.0.0 every address that it has",
                param="--host",
            ) from e
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another with --port", param="--port"
        ) from e
    return sock
