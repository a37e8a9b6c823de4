"""Each fuzzer for a few seconds, with fixed seeds; and the inputs that once failed.

`python -m tests.fuzz.NAME --seconds 600 --seed 7` runs one of them for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fuzz import answers, fuzzing, raw_http, request_bodies, schemas, templates, wire_frames

SEED = 1
FUZZERS: list[tuple[Any, int]] = [
    (request_bodies, 5000),
    (raw_http, 3000),
    (wire_frames, 6000),
    (answers, 4000),
    (templates, 600),
    (schemas, 4000),
]


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    """The applications that the cases share."""
    yield
    request_bodies.server().close()
    request_bodies.server.cache_clear()


@pytest.mark.parametrize(("fuzzer", "n"), FUZZERS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_no_case_fails(fuzzer: Any, n: int) -> None:
    for one in fuzzer.REGRESSIONS:
        fuzzer.check(one)
    assert fuzzing.run(fuzzer, SEED, range(n)) == n


def test_a_failing_case_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Any) -> None:
        raise ValueError

    monkeypatch.setattr(schemas, "check", refuse)
    with pytest.raises(AssertionError, match=r"again: python -m tests\.fuzz\.schemas --seed 1 --first 3 --cases 1"):
        fuzzing.run(schemas, SEED, range(3, 5))  # type: ignore[arg-type]
    assert repr(fuzzing.numbered(schemas, SEED, 3)) in capsys.readouterr().err  # type: ignore[arg-type]


@pytest.mark.parametrize("thinking", ["no", "maybe", "open"])
@pytest.mark.parametrize("call_format", range(len(answers.FORMATS)))
def test_O27_blanks_without_end_are_linear_work(call_format: int, thinking: Any) -> None:
    """Text that decides nothing must not be looked at again with every piece."""
    n = 3000
    for lead in ("", "<tool_call>", "[TOOL_CALLS]", "<think>a", '<tool_call>{"name": "f", "arguments": {}'):
        for filling in " <{":
            parser = answers.CountingParser(answers.FORMATS[call_format], answers.NAMES, thinking=thinking)
            parts = [part for piece in [lead, *filling * n] for part in parser.push(piece)] + parser.finish()
            assert parser.n_looked_at < 60 * n, (lead, filling)
            answers.joined(parts)
