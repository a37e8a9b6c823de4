"""Frames and framed sockets: order, bounds, partial delivery, what a broken or foreign peer can do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sixfold.errors import ProtocolError
from sixfold.executor.wire import decode_result, encode
from sixfold.messages import Abort, FinishAt, GenerateRequest, Sampling, StepResult, TokenDelta
from sixfold.messages.output import OutputBatch
from sixfold.transport import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameReader,
    FrameSocket,
    accept,
    codecs,
    connect,
    expect,
    frame,
    listen,
)


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=80)), max_size=8), st.integers(1, 40))
def test_frames_survive_any_cut_of_the_stream(bodies: list[tuple[int, bytes]], cut: int) -> None:
    stream = b"".join(frame(k, b, seq=i, sender=7, epoch=3) for i, (k, b) in enumerate(bodies))
    reader = FrameReader()
    got = [f for at in range(0, len(stream), cut) for f in reader.feed(stream[at : at + cut])]
    assert [(f.kind, f.body) for f in got] == bodies
    assert all(f.sender == 7 and f.epoch == 3 for f in got)


def test_a_gap_in_the_sequence_is_refused() -> None:
    reader = FrameReader()
    list(reader.feed(frame(1, b"a", seq=0, sender=0, epoch=0)))
    with pytest.raises(ProtocolError, match="frame 2 where 1 was due"):
        list(reader.feed(frame(1, b"c", seq=2, sender=0, epoch=0)))


def test_foreign_bytes_are_refused_without_waiting_for_more() -> None:
    with pytest.raises(ProtocolError, match="not a frame"):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))


def test_a_huge_length_is_refused_before_anything_is_kept() -> None:
    header = bytearray(frame(1, b"", seq=0, sender=0, epoch=0)[:HEADER_BYTES])
    header[8:12] = (MAX_FRAME_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="above the limit"):
        list(FrameReader().feed(bytes(header)))


def test_sending_to_a_peer_that_does_not_read_never_blocks() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        sender, receiver = FrameSocket(ours), FrameSocket(theirs)
        body = os.urandom(1 << 20)
        for _ in range(8):
            sender.send(1, body)
        assert sender.bytes_unsent > 0
        got: list[bytes] = []
        while len(got) < 8:
            sender.flush()
            got += [f.body for f in receiver.receive() or []]
        assert got == [body] * 8 and sender.bytes_unsent == 0
        assert receiver.receive() == []
        sender.close()
        assert receiver.receive() is None


def test_waiting_sees_what_is_read_already_and_the_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        sender, receiver = FrameSocket(ours), FrameSocket(theirs)
        assert not receiver.wait(0)
        for body in (b"a", b"b"):
            sender.send(1, body)
        assert receiver.wait(0)
        assert receiver.receive_one().body == b"a"
        assert receiver.wait(0), "the second was read with the first"
        assert receiver.receive_one().body == b"b"
        assert not receiver.wait(0)
        sender.close()
        assert receiver.wait(0)


def test_a_listener_is_private_and_accepts_its_own_user(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    with listen(path) as listener:
        assert os.stat(path).st_mode & 0o777 == 0o600
        client = connect(path)
        server = accept(listener)
        assert server is not None
        client.send(codecs.HELLO, codecs.hello("api-control", "d"), block=True)
        greeting = codecs.decode_hello(expect(server.receive_one(), codecs.HELLO), config_digest="d")
        assert greeting.role == "api-control"
        client.close()
        with pytest.raises(EOFError):
            server.receive_one()
        server.close()


def test_O46_threat_2_a_peer_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    with listen(str(tmp_path / "x.sock")) as listener:
        client = connect(str(tmp_path / "x.sock"))
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        assert accept(listener) is None
        monkeypatch.undo()
        with pytest.raises(EOFError):
            client.receive_one()
        client.close()


def test_a_greeting_of_another_configuration_is_refused() -> None:
    with pytest.raises(ProtocolError, match="another build or configuration"):
        codecs.decode_hello(codecs.hello("api-control", "ours"), config_digest="theirs")


@pytest.mark.parametrize(
    "message",
    [
        GenerateRequest(uid=2**62, prompt_token_ids=[1, 2], max_tokens=3, sampling=Sampling(seed=2**64 - 1)),
        Abort(5),
        FinishAt(5, 1, 17),
    ],
)
def test_messages_to_the_engine_round_trip(message: GenerateRequest | Abort | FinishAt) -> None:
    assert codecs.decode_to_engine(codecs.encode(message)) == message


@pytest.mark.parametrize("uid", [-1, 2**63])
def test_a_key_that_no_shared_memory_can_hold_is_no_message(uid: int) -> None:
    for message in (Abort(uid), FinishAt(uid, 0, 1)):
        with pytest.raises(ProtocolError):
            codecs.decode_to_engine(codecs.encode(message))


@pytest.mark.parametrize("step_id", [-1, 2**48])
def test_a_step_that_no_shared_memory_can_hold_is_no_message(step_id: int) -> None:
    """The engine notes a result's step before it looks whether that is the one it waits for."""
    none: list[int] = []
    result = StepResult(
        engine_epoch=1,
        step_id=step_id,
        slots=none,
        generations=none,
        incarnations=none,
        token_ids=none,
        status=none,
    )
    with pytest.raises(ProtocolError):
        decode_result(encode(result))
    with pytest.raises(ProtocolError):
        codecs.decode_output(codecs.encode(OutputBatch(1, step_id, [])))


def test_outputs_round_trip() -> None:
    batch = OutputBatch(1, 2, [TokenDelta(uid=1, choice=0, first_index=4, token_ids=[9])])
    assert codecs.decode_output(codecs.encode(batch)) == batch


@given(st.binary(max_size=200))
def test_garbage_bodies_are_protocol_errors(body: bytes) -> None:
    for decode in (codecs.decode_to_engine, codecs.decode_control, codecs.decode_output, codecs.decode_worker_facts):
        try:
            decode(body)
        except ProtocolError:
            continue
