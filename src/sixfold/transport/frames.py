"""One frame: a fixed header, then a body that the receiver decodes with a typed decoder.

    | magic u32 | protocol u16 | kind u16 | body_len u32 | seq u32 | sender u64 | epoch u64 | body ... |
    0           4              6          8              12        16           24          32

Little endian. `seq` counts the frames of one direction of one connection from 0: a stream socket cannot lose a
frame, so a gap is a bug and ends the connection. `sender` is random per process start, `epoch` is the engine's life:
together they tell a message of a dead process from one of its successor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from sixfold.errors import ProtocolError

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "PROTOCOL", "Frame", "FrameReader", "frame"]

PROTOCOL = 1
MAX_FRAME_BYTES = 64 << 20
_MAGIC = 0x44464853  # "SHFD" read as bytes
_HEADER = struct.Struct("<IHHIIQQ")
HEADER_BYTES = _HEADER.size


class Frame(msgspec.Struct):
    """A received frame."""

    kind: int
    epoch: int
    sender: int
    body: bytes


def frame(kind: int, body: bytes, *, seq: int, sender: int, epoch: int) -> bytes:
    """Header and body as the bytes to send.

    Raises:
        ProtocolError: the body is larger than MAX_FRAME_BYTES.
    """
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(body)} bytes is above the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(_MAGIC, PROTOCOL, kind, len(body), seq & 0xFFFFFFFF, sender, epoch) + body


class FrameReader:
    """Cuts a byte stream into frames and checks their headers and order."""

    def __init__(self) -> None:
        self._kept = bytearray()
        """The beginning of a frame whose end has not come yet."""
        self._seq = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; yield every frame that is complete now.

        Raises:
            ProtocolError: wrong magic, protocol or sequence number, or a body above the limit.
        """
        kept, at = self._kept, 0
        buffer: bytes | bytearray = data
        if kept:
            kept += data
            buffer = kept
        try:
            while len(buffer) - at >= HEADER_BYTES:
                magic, protocol, kind, body_len, seq, sender, epoch = _HEADER.unpack_from(buffer, at)
                if magic != _MAGIC or protocol != PROTOCOL:
                    raise ProtocolError("not a frame of this protocol")
                if body_len > MAX_FRAME_BYTES:
                    raise ProtocolError(f"frame of {body_len} bytes is above the limit of {MAX_FRAME_BYTES}")
                if seq != self._seq:
                    raise ProtocolError(f"frame {seq} where {self._seq} was due")
                end = at + HEADER_BYTES + body_len
                if len(buffer) < end:
                    break
                self._seq = (self._seq + 1) & 0xFFFFFFFF
                body = bytes(buffer[at + HEADER_BYTES : end])
                at = end
                yield Frame(kind, epoch, sender, body)
        finally:
            if buffer is kept:
                del kept[:at]
            elif at < len(buffer):
                kept += memoryview(buffer)[at:]
