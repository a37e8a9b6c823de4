"""Raw bytes against the protocol guard, on virtual time: smuggling shapes, broken chunks, floods of headers.

Whatever comes in, what goes out is a sequence of whole HTTP/1.1 responses, none of them a fault of the server; no
request that hides in the body of another is answered; and each connection is closed in the end, with nothing left.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from random import Random
from typing import Any

import uvicorn
from tests.contract.api.fake_engine import FakeEngine
from tests.fuzz import fuzzing
from tests.fuzz.fuzzing import spliced
from tests.virtual.loop import VirtualLoop
from uvicorn.server import ServerState

from sixfold.api.server import ApiServer
from sixfold.config import ApiConfig

Case = tuple[tuple[bytes, ...], bool]
"""(pieces as they are sent, whether they are sent one by one)"""

REGRESSIONS: list[Case] = []
LONGEST_S = 1000.0
FAULTS = {500, 501, 502}

_HIDDEN = b"GET /version?hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
_JSON = b'{"tokens":[104,105]}'


def _post(*fields: bytes, body: bytes = _JSON, line: bytes = b"POST /detokenize HTTP/1.1") -> bytes:
    head = [line, b"Host: localhost", b"Content-Type: application/json", *fields]
    return b"\r\n".join([*head, b"", b""]) + body


def _chunked(body: bytes, *, size: bytes | None = None, end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    return (size or b"%x" % len(body)) + extension + b"\r\n" + body + b"\r\n" + end


_LENGTH = b"Content-Length: %d" % len(_JSON)
_CHUNKED = b"Transfer-Encoding: chunked"
SOUND = [
    b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    _post(_LENGTH),
    _post(_CHUNKED, body=_chunked(_JSON)),
    _post(_CHUNKED, body=_chunked(_JSON[:7], end=_chunked(_JSON[7:]))),
    _post(b"Content-Length: 0", body=b""),
    b"HEAD /version HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    _post(_LENGTH, b"Expect: 100-continue"),
]
SMUGGLING = [
    _post(_LENGTH, _CHUNKED, body=_chunked(b"") + _HIDDEN),
    _post(_CHUNKED, _LENGTH, body=b"0\r\n\r\n" + _HIDDEN),
    _post(b"Content-Length: 5", _LENGTH, body=_JSON + _HIDDEN),
    _post(b"Content-Length: %d, %d" % (len(_JSON), len(_JSON)), body=_JSON + _HIDDEN),
    _post(b"Content-Length: +20", body=_JSON + _HIDDEN),
    _post(b"Content-Length: 0x14", body=_JSON + _HIDDEN),
    _post(b"Content-Length : 20", body=_JSON + _HIDDEN),
    _post(b"Content-Length: -1", body=_HIDDEN),
    _post(b"Content-Length: 99999999999999999999999", body=_HIDDEN),
    _post(b"Transfer-Encoding: chunked, identity", body=_chunked(_JSON) + _HIDDEN),
    _post(b"Transfer-Encoding: xchunked", body=_chunked(_JSON) + _HIDDEN),
    _post(b"Transfer-Encoding : chunked", body=_chunked(_JSON) + _HIDDEN),
    _post(b"Transfer-Encoding:\x0bchunked", body=_chunked(_JSON) + _HIDDEN),
    _post(b"X: y\r\n Transfer-Encoding: chunked", b"Content-Length: 500", body=_HIDDEN),
    _post(b"X: y\nTransfer-Encoding: chunked", b"Content-Length: 500", body=_chunked(_JSON) + _HIDDEN),
    _post(_CHUNKED, body=_chunked(_JSON, size=b"-1") + _HIDDEN),
    _post(_CHUNKED, body=_chunked(_JSON, size=b"0x14") + _HIDDEN),
    _post(_CHUNKED, body=_chunked(_JSON, size=b"ffffffffffffffff1") + _HIDDEN),
    _post(_CHUNKED, body=_chunked(_JSON, size=b"fffffffffffffff0") + _HIDDEN),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _HIDDEN,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HIDDEN,
    b"GET /version\r\n" + _HIDDEN,
    b"GET /version HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n" + _HIDDEN,
]
"""None of them may bring `_HIDDEN` an answer of its own."""
_MARKS = (b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"\xff", b"0\r\n\r\n", b"HTTP/1.1", b"Host: localhost\r\n")
_MARKS += (_CHUNKED + b"\r\n", b"Content-Length: 7\r\n", b"A" * 70_000, b"X: y\r\n" * 120, b";" * 20_000, b"\r\n\r\n")


def case(rng: Random) -> Case:
    if rng.random() < 0.2:
        data = rng.choice(SMUGGLING)
    else:
        data = b"".join(rng.choice(SOUND) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(0, 3)):
            at = rng.randint(0, len(data))
            match rng.randrange(5):
                case 0:
                    data = data[:at] + rng.choice(_MARKS) + data[at:]
                case 1:
                    data = data[:at] + data[at + rng.choice((1, 2, 9)) :]
                case 2:
                    data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
                case 3:
                    data = spliced(data, rng.choice(SOUND + SMUGGLING), rng).replace(_HIDDEN, b"")
                case 4:
                    data = data[:at]
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice((0, 0, 1, 4))))
    ends = [*cuts, len(data)]
    return tuple(data[a:b] for a, b in zip([0, *cuts], ends, strict=True)), rng.random() < 0.5


class _Wire(asyncio.Transport):
    """A connection whose client sends pieces, reads everything and stays."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8000)})
        self._loop = loop
        self._protocol: Any = None
        self._unread: list[bytes] = []
        self._paused = self._closed = False
        self.out = bytearray()

    def connect(self, protocol: Any, pieces: tuple[bytes, ...]) -> None:
        self._protocol = protocol
        self._unread = [piece for piece in pieces if piece]
        protocol.connection_made(self)
        self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        if self._unread and not self._paused and not self._closed:
            self._protocol.data_received(self._unread.pop(0))
            self._loop.call_soon(self._receive)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self.out += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._receive)

    @property
    def is_over(self) -> bool:
        return self._closed


@functools.cache
def _config() -> uvicorn.Config:
    config = ApiServer(FakeEngine(), ApiConfig())._server.config
    config.load()
    return config


def check(one: Case) -> None:
    pieces, one_by_one = one
    data = b"".join(pieces)
    answers = _responses(_exchange(pieces if one_by_one else (data,)))
    for status, body in answers:
        assert status not in FAULTS and 100 <= status < 600, status
        if status >= 400 and body:
            assert "error" in json.loads(body)
    if data in SMUGGLING:
        assert not any(b'"version"' in body for _, body in answers), "a hidden request is answered"


def _exchange(pieces: tuple[bytes, ...]) -> bytes:
    """What the server says until it has closed the connection; all its deadlines pass at once."""
    loop = VirtualLoop(LONGEST_S)
    asyncio.set_event_loop(loop)
    config = _config()
    make: Any = config.http_protocol_class
    state = ServerState()
    wire = _Wire(loop)

    def connect() -> None:
        wire.connect(make(config=config, server_state=state, app_state={}, _loop=loop), pieces)

    loop.call_soon(connect)
    try:
        loop.run_out()
    finally:
        asyncio.set_event_loop(None)
    assert wire.is_over, "the connection stays open"
    assert not state.connections and not state.tasks, "something of the connection is left"
    return bytes(wire.out)


def _responses(out: bytes) -> list[tuple[int, bytes]]:
    """[(status, body)] Raises where the bytes are not whole responses, one after another."""
    found = []
    while out:
        head, end, out = out.partition(b"\r\n\r\n")
        assert end, "a head is cut short"
        line, *lines = head.split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1", line
        fields = {name.lower(): value.strip() for name, _, value in (field.partition(b":") for field in lines)}
        body = b""
        if fields.get(b"transfer-encoding") == b"chunked":
            body, out = _dechunked(out)
        elif b"content-length" in fields and out and not out.startswith(b"HTTP/1.1 "):  # else it answers HEAD
            length = int(fields[b"content-length"])
            assert len(out) >= length, "a body is cut short"
            body, out = out[:length], out[length:]
        found.append((int(status), body))
    return found


def _dechunked(out: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, out = out.partition(b"\r\n")
        n = int(size, 16)
        assert out[n : n + 2] == b"\r\n", "a chunk is cut short"
        body, out = body + out[:n], out[n + 2 :]
        if not n:
            return body, out


if __name__ == "__main__":
    sys.exit(fuzzing.main(sys.modules[__name__]))  # type: ignore[arg-type]
