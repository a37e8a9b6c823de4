"""The work of `sixfold batch`: lines go to a server over HTTP, as any client's calls do, and answers into the file.

Each of `concurrency` threads takes the next line, posts it, and writes the answer; so at most that many lines are in
memory. What a server says to a line is the line's answer, whatever its status. 429 and 503 mean "later" and are tried
again; a server that cannot be reached for a while ends the run, and the lines that are not written yet remain.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import random
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec

from sixfold.cli.batch_lines import InputLine
from sixfold.cli.batch_results import Fault, Response, Results
from sixfold.errors import ConfigError, SixfoldError

__all__ = ["Batch", "Endpoint", "ServerGone"]

LATER = frozenset({429, 503})
MAX_WAIT_S = 30.0
"""Between two tries, whatever `Retry-After` says."""
CONNECT_TRIES = 6
"""About half a minute, in all."""
CONNECT_TIMEOUT_S = 10.0
MAX_SHOWN_CHARS = 200


class ServerGone(SixfoldError):
    """The server cannot be reached."""


class Endpoint:
    """A server's address.

    Args:
        url: http://host:port, https:// too; a path stays in front of the lines' own, but for a `/v1` at its end.

    Raises:
        ConfigError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "", parts.port
        except ValueError:
            parts, self.host = urlsplit(""), ""
        if parts.scheme not in ("http", "https") or not self.host or parts.query or parts.fragment:
            raise ConfigError(f"--url must be like http://127.0.0.1:8000, not {url!r}", param="--url")
        self.url = url
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._secure = parts.scheme == "https"

    def connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=CONNECT_TIMEOUT_S)


class Batch:
    """One run.

    Args:
        lines: those to be done.
        max_retries: tries after the first of a line that is told to come later.
        on_answer: called after each written line, in any thread.
    """

    def __init__(
        self,
        lines: Iterator[InputLine],
        results: Results,
        *,
        concurrency: int,
        max_retries: int,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._lines = lines
        self._results = results
        self._concurrency = concurrency
        self._max_retries = max_retries
        self._on_answer = on_answer
        self._taking = threading.Lock()
        self._stopped = threading.Event()
        self.error: BaseException | None = None
        """What ended the run before its end."""
        self.finished = False
        """Every line was done."""

    def run(self, endpoint: Endpoint) -> None:
        """Do all lines. Returns when that is done, or `stop` was called, or with `error` set; raises nothing."""
        threads = [
            threading.Thread(target=self._work, args=(endpoint,), name=f"sf: line {i}", daemon=True)
            for i in range(self._concurrency)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.finished = not self._stopped.is_set()

    def stop(self, error: BaseException | None = None) -> None:
        """No further line is begun, and none is written whose answer comes later."""
        if error is not None and not self._stopped.is_set():
            self.error = error
        self._stopped.set()

    def _work(self, endpoint: Endpoint) -> None:
        poster = _Poster(endpoint, self._max_retries, self._stopped)
        try:
            while (line := self._next()) is not None:
                answer = poster.post(line)
                if answer is None or self._stopped.is_set():
                    return
                self._results.write(line.custom_id, answer)
                self._on_answer()
        except Exception as error:  # noqa: BLE001  handed to whoever started the run
            self.stop(error)
        finally:
            poster.close()

    def _next(self) -> InputLine | None:
        with self._taking:
            return None if self._stopped.is_set() else next(self._lines, None)


class _Poster:
    """One thread's connection to the server."""

    def __init__(self, endpoint: Endpoint, max_retries: int, stopped: threading.Event) -> None:
        self._endpoint = endpoint
        self._max_retries = max_retries
        self._stopped = stopped
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def post(self, line: InputLine) -> Response | Fault | None:
        """The server's answer, None when the run was stopped.

        Raises:
            ServerGone: there is no server any more.
        """
        tries = 0
        while not self._stopped.is_set():
            response, data = self._exchange(line)
            if response.status not in LATER or tries >= self._max_retries:
                return _answer(response, data)
            tries += 1
            self._pause(tries, response.headers.get("Retry-After"))
        return None

    def _exchange(self, line: InputLine) -> tuple[http.client.HTTPResponse, bytes]:
        for failures in range(1, CONNECT_TRIES + 1):
            fresh = self._connection is None
            try:
                connection = self._connection = self._connection or self._connect()
                headers = {"Content-Type": "application/json", "Accept": "application/json"}
                connection.request("POST", self._endpoint.prefix + line.url, bytes(line.body), headers)
                response = connection.getresponse()
                return response, response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if self._stopped.is_set() or failures == CONNECT_TRIES:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise ServerGone(f"{self._endpoint.url} cannot be reached: {reason.lower()}") from None
                if fresh:  # an idle connection may have been closed just now: that is worth a try at once
                    self._pause(failures)
        raise AssertionError("the last failure is raised")

    def _connect(self) -> http.client.HTTPConnection:
        connection = self._endpoint.connection()
        connection.connect()
        # An answer may take as long as it takes; that its sender still exists is asked for by the system.
        connection.sock.settimeout(None)
        with contextlib.suppress(OSError):
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _pause(self, tries: int, retry_after: str | None = None) -> None:
        """Wait as long as the server asked for, or 0.5 s, 1 s, 2 s ...; a little more, so that not all come at once."""
        try:
            wait_s = float(retry_after or "nan")
        except ValueError:
            wait_s = math.nan
        if math.isnan(wait_s):
            wait_s = 0.5 * 2.0 ** (tries - 1)
        self._stopped.wait(min(max(wait_s, 0.1), MAX_WAIT_S) * random.uniform(1.0, 1.25))


def _answer(response: http.client.HTTPResponse, data: bytes) -> Response | Fault:
    """What is written down: bodies are JSON, here as with OpenAI; anything else is only shown in part."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = data[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")[:MAX_SHOWN_CHARS]
        return Fault("not_json", f"the answer with status {response.status} is not JSON: {shown}")
    request_id = response.headers.get("X-Request-Id") or ""
    # One line of text, whatever the server's own layout is.
    text = data if b"\n" not in data else msgspec.json.encode(body)
    return Response(response.status, request_id, msgspec.Raw(text))
