"""The table from errors to HTTP is total and says nothing internal."""

from __future__ import annotations

import json

import pytest

from sixfold import errors
from sixfold.api.http.errors import TABLE, clip, describe, render_error
from sixfold.errors import InvalidRequest, Overloaded, SixfoldError


def subclasses(cls: type[SixfoldError]) -> list[type[SixfoldError]]:
    """Those of `errors.py`: a command's own never meet the API."""
    here = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    return [cls] + [deeper for sub in here for deeper in subclasses(sub)]


INTERNAL = {"SixfoldError", "ModelFileError", "DownloadError", "ConfigError", "DoesNotFit", "ProtocolError"}


@pytest.mark.parametrize("cls", subclasses(SixfoldError), ids=lambda cls: cls.__name__)
def test_every_error_has_an_answer(cls: type[SixfoldError]) -> None:
    status, body = describe(cls("some words", param="field"), "req-1")
    if cls.__name__ in INTERNAL:
        assert (status, body.code) == (500, "internal_error")
        assert "some words" not in body.message and "req-1" in body.message
    else:
        assert cls in TABLE
        assert 400 <= status <= 599
        assert (body.message, body.param) == ("some words", "field")


def test_the_tree_is_complete() -> None:
    assert {cls.__name__ for cls in subclasses(SixfoldError)} >= {
        name for name in errors.__all__ if name != "printable"
    }


def test_foreign_errors_say_only_the_request_id() -> None:
    answer = render_error(ZeroDivisionError("/secret/path"), "req-9")
    assert answer.status == 500
    assert json.loads(answer.body)["error"]["message"] == "internal error (request req-9)"


def test_retry_after() -> None:
    assert render_error(Overloaded("x", retry_after_s=2.2), "r").retry_after_s == 3
    assert render_error(Overloaded("x"), "r").retry_after_s == 1
    assert render_error(InvalidRequest("x"), "r").retry_after_s is None


def test_a_code_of_its_own_wins() -> None:
    assert describe(InvalidRequest("x", code="mine"), "r")[1].code == "mine"
    assert describe(errors.NotAllowed("x", code="method_not_allowed"), "r")[0] == 405
    assert describe(errors.NotAllowed("x"), "r")[0] == 403


def test_clip() -> None:
    assert clip("a" * 200) == "a" * 200
    assert len(clip("a" * 201)) == 200
    assert clip("a\ud800").encode("utf-8") == b"a?"
