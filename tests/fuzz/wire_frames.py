"""Bytes on the sockets between processes: what is no message of ours is a `ProtocolError`, and never anything else.

Streams are cut into frames, bodies are decoded by every decoder, steps are unpacked and offered to a worker.
"""

from __future__ import annotations

import struct
import sys
import tracemalloc
from random import Random

from tests.fuzz import fuzzing
from tests.fuzz.mutations import damage

from sixfold.errors import ProtocolError
from sixfold.executor.scripted import ScriptedBackend
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import Packer, decode_result, decode_step, encode
from sixfold.executor.worker import Worker
from sixfold.messages import (
    Abort,
    Admitted,
    EngineStats,
    Finish,
    FinishAt,
    GenerateRequest,
    OutputBatch,
    Rejected,
    Sampling,
    SlotAdmit,
    StepPlan,
    StepResult,
    TokenDelta,
    TokenLogprobs,
    Welcome,
    WorkerFacts,
)
from sixfold.observability.history import Event, History
from sixfold.observability.meter import Meter
from sixfold.observability.sites import ENGINE_RECEIVE
from sixfold.transport import FrameReader, codecs, frame

Case = tuple[str, bytes, int]
"""(what it was, bytes, where a stream is cut)"""

REGRESSIONS: list[Case] = []
BYTES_MAX = 4 << 20

_HISTORY, _METER = History.private(), Meter.private()
_FACTS = WorkerFacts(1, 8, 2, 64, "x", 0, 0)
_SAMPLING = Sampling(seed=2**64 - 1, logit_bias={5: 1.5}, bad_words=((1, 2),), stop_token_ids=(0,), grammar="g")
_LOGPROBS = TokenLogprobs(-0.5, 0, [1], [-0.5])
_ADMIT = SlotAdmit(
    slot=0, generation=0, incarnation=0, token_ids=[1, 2, 3], n_prompt_original=3, choice=0, sampling=Sampling(seed=1)
)
_STEP = StepPlan(
    engine_epoch=1,
    step_id=0,
    frees=[(1, 0)],
    admits=[_ADMIT],
    copies=[(0, 1)],
    slots=[0],
    generations=[0],
    incarnations=[0],
    starts=[0],
    counts=[3],
    flags=[1],
    table_rows=[0],
    table_starts=[0],
    table_counts=[1],
    table_blocks=[1],
)
BODIES = [
    codecs.hello("api-control", "d"),
    *map(
        codecs.encode,
        (
            GenerateRequest(uid=2**62, prompt_token_ids=[1, 2], max_tokens=3, sampling=_SAMPLING, delivered=((1,), ())),
            Abort(5),
            FinishAt(5, 1, 17),
            Welcome(1, _FACTS),
            Admitted(3),
            Rejected(3, "Overloaded", "m", "p", "c", 1.0),
            EngineStats(finished={"stop": 1}),
            OutputBatch(
                1,
                2,
                [
                    TokenDelta(
                        uid=1, choice=0, first_index=4, token_ids=[9], logprobs=[_LOGPROBS], finish=Finish("stop")
                    )
                ],
            ),
            _FACTS,
            StepResult(
                engine_epoch=1,
                step_id=2,
                slots=[1],
                generations=[0],
                incarnations=[0],
                token_ids=[7],
                status=[0],
                logprobs={0: _LOGPROBS},
                prompt_logprobs={0: [_LOGPROBS]},
                embeddings={0: b"1234"},
            ),
        ),
    ),
    encode(Packer().pack(_STEP)),
]
_STREAM = b"".join(frame(i % 5, body, seq=i, sender=7, epoch=1) for i, body in enumerate(BODIES))
_NUMBERS = (0, 1, 127, 128, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, -1, -(1 << 31))
_HEADS = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 900,
)
"""MessagePack's beginnings of huge arrays, maps, byte strings and texts; deep nesting."""


def case(rng: Random) -> Case:
    kind = rng.choice(("stream", "body", "body", "step", "step"))
    if kind == "stream":
        data = damage(_STREAM, rng, len(_STREAM))
    elif kind == "body":
        data = rng.choice(BODIES)
        if rng.random() < 0.3:
            at = rng.randint(0, len(data))
            data = data[:at] + rng.choice(_HEADS) + data[at:]
        data = damage(data, rng, len(data))
    else:
        packed = Packer().pack(_STEP)
        for name in rng.sample(("columns", "tables", "table_blocks", "copies", "frees"), rng.randint(1, 2)):
            setattr(packed, name, _renumbered(getattr(packed, name), rng))
        packed.n_rows = rng.choice((1, 1, 1, 0, 2, -1, 1 << 31))
        packed.admits = [] if rng.random() < 0.1 else packed.admits
        data = encode(packed)
    return kind, data, rng.randint(1, 400)


def _renumbered(raw: bytes, rng: Random) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.randint(1, 2)):
        if out:
            at = rng.randrange(len(out) // 4) * 4
            out[at : at + 4] = struct.pack("<i", _signed(rng.choice(_NUMBERS)))
    return bytes(out)[: rng.choice((len(out), len(out), len(out) - 1, 4))]


def _signed(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def check(one: Case) -> None:
    kind, data, cut = one
    tracemalloc.start()
    try:
        if kind == "stream":
            _read_stream(data, cut)
        elif kind == "body":
            _decode(data)
        else:
            _execute(data)
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX, "too much memory"
    finally:
        tracemalloc.stop()


def _read_stream(data: bytes, cut: int) -> None:
    reader = FrameReader()
    try:
        for at in range(0, len(data), cut):
            for received in reader.feed(data[at : at + cut]):
                _decode(received.body)
    except ProtocolError:
        return


def _decode(body: bytes) -> None:
    decoders = (codecs.decode_to_engine, codecs.decode_control, codecs.decode_output, codecs.decode_worker_facts)
    for decode in (*decoders, decode_result, lambda b: StepArrays.unpack(decode_step(b)), _greet):
        try:
            _note(decode(body))
        except ProtocolError:
            continue


def _note(message: object) -> None:
    """What a process writes of a message before it knows whether that means anything."""
    if hasattr(message, "uid"):
        _HISTORY.note(Event.RECEIVED, message.uid)
    if hasattr(message, "step_id"):
        _METER.add(ENGINE_RECEIVE, 0, 1, message.step_id)


def _greet(body: bytes) -> None:
    codecs.decode_hello(body, config_digest="d")


def _execute(body: bytes) -> None:
    backend = ScriptedBackend(n_vocab=9, printable=[1, 2], end_id=0, num_blocks=8, max_slots=2, max_model_len=64)
    try:
        Worker(backend).execute(StepArrays.unpack(decode_step(body)))
    except ProtocolError:
        return


if __name__ == "__main__":
    sys.exit(fuzzing.main(sys.modules[__name__]))  # type: ignore[arg-type]
