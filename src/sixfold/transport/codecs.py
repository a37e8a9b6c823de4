"""Which kinds of frames there are, and the typed decoder of each direction of each channel.

channel         direction         body
API control     API -> engine     Hello, GenerateRequest, Abort, FinishAt, Watch
API control     engine -> API     Welcome, Admitted, Rejected, EngineStats, EngineView
API outputs     engine -> API     OutputBatch (after the API's Hello)
worker control  worker -> engine  WorkerFacts (after the engine's Hello)
worker steps    engine -> worker  StepArrays as bytes (after the engine's Hello)
worker steps    worker -> engine  StepResult
peers           API <-> API       AbortNamed, CountsAsked; Found, ApiCounts
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sixfold.errors import ProtocolError
from sixfold.messages import (
    Abort,
    AbortNamed,
    Admitted,
    ApiCounts,
    CountsAsked,
    EngineStats,
    EngineView,
    FinishAt,
    Found,
    GenerateRequest,
    Hello,
    OutputBatch,
    Rejected,
    Watch,
    Welcome,
    WorkerFacts,
)
from sixfold.transport.frames import PROTOCOL
from sixfold.transport.sockets import INSTANCE

__all__ = [
    "CONTROL",
    "HELLO",
    "OUTPUT",
    "PEER",
    "RESULT",
    "STEP",
    "EngineToApi",
    "ToEngine",
    "decode_control",
    "decode_hello",
    "decode_output",
    "decode_peer_answer",
    "decode_peer_question",
    "decode_to_engine",
    "decode_worker_facts",
    "encode",
    "hello",
]

_T = TypeVar("_T")
_A = TypeVar("_A", Found, ApiCounts)

HELLO, CONTROL, OUTPUT, STEP, RESULT, PEER = 1, 2, 3, 4, 5, 6

ToEngine = GenerateRequest | Abort | FinishAt | Watch
EngineToApi = Welcome | Admitted | Rejected | EngineStats | EngineView
PeerQuestion = AbortNamed | CountsAsked

encode = msgspec.msgpack.Encoder().encode
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_control = msgspec.msgpack.Decoder(EngineToApi)
_output = msgspec.msgpack.Decoder(OutputBatch)
_hello = msgspec.msgpack.Decoder(Hello)
_peer_question = msgspec.msgpack.Decoder(PeerQuestion)
_worker_facts = msgspec.msgpack.Decoder(WorkerFacts)


def hello(role: str, config_digest: str) -> bytes:
    """The body of a connection's first frame."""
    return encode(Hello(PROTOCOL, role, INSTANCE, config_digest))


def decode_hello(body: bytes, *, config_digest: str) -> Hello:
    """Raises: ProtocolError: not a greeting, or one from a process with another configuration."""
    greeting = _decode(_hello, body)
    if greeting.protocol != PROTOCOL or greeting.config_digest != config_digest:
        raise ProtocolError("a process of another build or configuration tried to connect")
    return greeting


def decode_to_engine(body: bytes) -> ToEngine:
    return _decode(_to_engine, body)


def decode_control(body: bytes) -> EngineToApi:
    return _decode(_control, body)


def decode_output(body: bytes) -> OutputBatch:
    return _decode(_output, body)


def decode_peer_question(body: bytes) -> PeerQuestion:
    return _decode(_peer_question, body)


def decode_peer_answer(body: bytes, kind: type[_A]) -> _A:
    return _decode(msgspec.msgpack.Decoder(kind), body)


def decode_worker_facts(body: bytes) -> WorkerFacts:
    return _decode(_worker_facts, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"a message between our processes cannot be read: {e}") from e
