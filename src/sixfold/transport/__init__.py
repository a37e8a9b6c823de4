"""Frames on Unix stream sockets: how messages travel between the server's own processes.

Runs in: every process of a server. Owns: sockets while a connection lives. May import: messages, errors.
Start reading at: frames.py.
"""

from sixfold.transport.frames import HEADER_BYTES, MAX_FRAME_BYTES, Frame, FrameReader, frame
from sixfold.transport.sockets import FrameSocket, accept, connect, expect, is_own_user, listen

__all__ = [
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "Frame",
    "FrameReader",
    "FrameSocket",
    "accept",
    "connect",
    "expect",
    "frame",
    "is_own_user",
    "listen",
]
