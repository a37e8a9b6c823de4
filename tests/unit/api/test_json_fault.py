"""The slow JSON reader against Python's own, and the nesting check."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.api.http.json_fault import find_fault, nests_too_much

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_valid_documents_have_no_fault(value: object, ascii_only: bool) -> None:
    # Text strategies leave surrogates out, so both forms are valid.
    assert find_fault(json.dumps(value, ensure_ascii=ascii_only).encode()) is None


@settings(max_examples=300)
@given(VALUES, st.data())
def test_broken_documents_have_one(value: object, data: st.DataObject) -> None:
    body = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(body)))
    body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        json.loads(bytes(body).decode("utf-8"), parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
        valid = True
    except (ValueError, RecursionError):
        valid = False
    fault = find_fault(bytes(body))
    if not valid:
        assert fault is not None
    elif fault is not None:
        assert fault.reason == "a string holds half a surrogate pair"


@pytest.mark.parametrize(
    ("body", "path", "offset"),
    [
        (b'{"a":{"b":[1,{"c":nope}]}}', "a.b[1].c", 18),
        (b'{"a":[1,2', "a[1]", 9),
        (b'{"a":1 "b":2}', "a", 7),
        (b'{"a":"x', "a", 7),
        (b"", "", 0),
        (b"[1,]", "[1]", 3),
        (b'{"a":"\\ud83d\\ude00 \\ud83d"}', "a", 5),
        (b'{"a":"\\\\ud800"}', None, 0),
    ],
)
def test_paths(body: bytes, path: str | None, offset: int) -> None:
    fault = find_fault(body)
    if path is None:
        assert fault is None
    else:
        assert fault is not None
        assert (fault.path, fault.offset) == (path, offset)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{'a':1}", "keys need double quotes"),
        (b"{\"a\":1, 'b':2}", "keys need double quotes"),
        (b"{a:1}", "a key is missing"),
        (b"[1,'a']", "texts need double quotes"),
        (b"[nope]", "not a JSON value"),
    ],
)
def test_reasons(body: bytes, reason: str) -> None:
    fault = find_fault(body)
    assert fault is not None and fault.reason == reason


def too_much(body: bytes) -> bool:
    return nests_too_much(body, 64, 1000)


def test_nesting() -> None:
    assert not too_much(b"[" * 64 + b"]" * 64)
    assert too_much(b"[" * 65 + b"]" * 65)
    assert too_much(b'{"a":[' * 33)
    assert not too_much(b"[[],[]]" * 100)
    assert too_much(b"[]," * 1001)
    assert not too_much(b"[" + b'["{",[]],' * 300 + b"1]")
    assert not too_much(b'["' + b"[{" * 100 + b'\\"[[["]')
    assert not too_much(b"[" + b'"[",' * 5000 + b"[[]]]")
    assert too_much(b"[" + b'"[",' * 5000 + b"[" * 64)
    assert not too_much(b'"' + b"[" * 100)
    assert not too_much(b'"' + b"[" * 100 + b"\\")


def test_hostile_documents_take_bounded_time() -> None:
    started = time.process_time()
    assert find_fault(b'{"prompt":[' + b"1," * 1_500_000) is None
    assert find_fault(b"[" + b'"",' * 1_000_000) is None
    assert find_fault(b'["' + b"\\u0061" * 500_000) is not None
    assert not too_much(b"[" + b'"",' * 1_000_000 + b"[]," * 100)
    assert too_much(b"[]," * 1_000_000)
    assert not too_much(b'"' + b'\\"' * 1_000_000 + b"[" * 100)
    assert not too_much(b'"' + b'\\"' * 1_000_000 + b"[" * 100 + b"\\")
    assert not too_much(b"\\" * 2_000_000 + b'"' + b"[" * 100)
    assert time.process_time() - started < 4
