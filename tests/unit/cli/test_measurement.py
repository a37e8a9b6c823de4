"""The window of `sixfold bench`, against an engine whose steps are written down here."""

from __future__ import annotations

from typing import Any

import pytest

from sixfold.cli import measurement
from sixfold.cli.measurement import Prompts, tokens_sha256
from sixfold.errors import RequestFailed
from sixfold.messages import Finish, GenerateRequest, TokenDelta


class ScriptedCore:
    """One step per entry: {sequence: number of tokens}; a sequence ends with its `max_tokens`."""

    def __init__(self, steps: list[dict[int, int]], clock: list[float]) -> None:
        self.steps = steps
        self.clock = clock
        self.requests: list[GenerateRequest] = []
        self.sent: dict[int, int] = {}

    def add(self, request: GenerateRequest) -> None:
        self.requests.append(request)

    def step(self) -> list[TokenDelta]:
        self.clock[0] += 1.0
        deltas = []
        for index, count in self.steps.pop(0).items():
            request = self.requests[index]
            first = self.sent.get(request.uid, 0)
            self.sent[request.uid] = first + count
            finish = Finish("length") if first + count == request.max_tokens else None
            deltas.append(
                TokenDelta(uid=request.uid, choice=0, first_index=first, token_ids=[7] * count, finish=finish)
            )
        return deltas


def run(monkeypatch: pytest.MonkeyPatch, steps: list[dict[int, int]], lengths: list[int]) -> Any:
    clock = [0.0]
    monkeypatch.setattr(measurement.time, "perf_counter", lambda: clock[0])
    core = ScriptedCore(steps, clock)
    requests = [measurement._request([1], n) for n in lengths]
    return measurement._run(core, requests)  # type: ignore[arg-type]


def test_the_window_holds_only_steps_in_which_all_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{0: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1}]
    result = run(monkeypatch, steps, [4, 4])
    assert (result.window_s, result.window_tokens) == (2.0, 4)
    assert result.outputs == [[7] * 4, [7] * 4]


def test_no_window_when_one_ends_before_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [{0: 1}, {1: 1}, {1: 1}], [1, 2])
    assert (result.window_s, result.window_tokens) == (0.0, 0)


def test_a_failed_sequence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(ScriptedCore):
        def step(self) -> list[TokenDelta]:
            uid = self.requests[0].uid
            return [TokenDelta(uid=uid, choice=0, first_index=0, finish=Finish("error", message="no usable logits"))]

    core = Failing([], [0.0])
    with pytest.raises(RequestFailed, match="no usable logits"):
        measurement._run(core, [measurement._request([1], 2)])  # type: ignore[arg-type]


def test_prompts_are_the_same_everywhere() -> None:
    prompts = Prompts(range(100, 1000))
    assert prompts.make("decode", 0, 4) == Prompts(range(100, 1000)).make("decode", 0, 8)[:4]
    assert prompts.make("decode", 0, 8) != prompts.make("decode", 1, 8)
    assert prompts.make("decode", 0, 8) != prompts.make("prefill 8", 0, 8)


def test_hash_of_tokens() -> None:
    import hashlib

    assert tokens_sha256([1, 2, 3]) == hashlib.sha256(b"[1,2,3]").hexdigest()
