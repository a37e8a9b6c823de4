"""`sixfold batch`: what a file of requests may hold, and what becomes of a file of answers that is there already."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sixfold.cli import batch_lines
from sixfold.cli.batch_lines import FIELDS, URLS, Index, check, read_lines
from sixfold.cli.batch_results import Fault, Response, Results
from sixfold.cli.main import cli, main
from sixfold.errors import ConfigError, InvalidRequest


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


def request(custom_id: str | int, /, **changes: Any) -> str:
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    line.update(changes)
    return json.dumps({key: value for key, value in line.items() if value is not ...})


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def faults(path: Path, *lines: str) -> list[str]:
    index = Index()
    _, found = check(write(path, *lines), index)
    index.close()
    return [text.removeprefix(f"{path}:") for text in found.shown]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "the line must be an object"),
        ('"x"', "the line must be an object"),
        (request("a", custom_id=...), "the field custom_id is missing"),
        (request("a", body=...), "the field body is missing"),
        (request("a", url=...), "the field url is missing"),
        (request("a", custom_id=7), "custom_id must be text"),
        (request("a", custom_id=None), "custom_id must be text"),
        (request(""), "custom_id must have 1 to 512 characters"),
        (request("x" * 513), "custom_id must have 1 to 512 characters"),
        (request("a", method="GET"), "method must be POST, not 'GET'"),
        (request("a", url="/v1/files"), "url must be one of /v1/chat/completions,"),
        (request("a", url="https://example.org/v1/completions"), "url must be one of"),
        (request("a", body=[1]), "body must be an object"),
        (request("a", body="x"), "body must be an object"),
        (request("a", body={"prompt": "x", "stream": True}), "body.stream must not be true"),
        (request("a", priority=1), "there is no field priority"),
        (request("a").replace('"a"', r'"\ud800"'), "not valid JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    (found,) = faults(tmp_path / "in", request("first"), "", line, request("last"))
    assert found.startswith(f"3: {said}")


def test_a_line_that_nests_too_deep(tmp_path: Path) -> None:
    line = request("a", body={"x": 0}).replace("0", "[" * 50_000 + "]" * 50_000)
    assert faults(tmp_path / "in", line) == ["1: the line nests too deep"]


def test_each_custom_id_is_there_once(tmp_path: Path) -> None:
    assert faults(tmp_path / "in", request("a"), request("b"), request("a")) == ["3: custom_id 'a' is that of line 1"]


def test_bytes_that_are_no_text(tmp_path: Path, index: Index) -> None:
    path = tmp_path / "in"
    path.write_bytes(request("a").replace("a", "\xff", 1).encode("latin-1") + b"\n")
    assert check(path, index)[1].count == 1


def test_an_empty_file_and_none(tmp_path: Path, index: Index) -> None:
    assert check(write(tmp_path / "in", "", " "), index)[1].shown == [f"{tmp_path / 'in'}: there is no request in it"]
    with pytest.raises(InvalidRequest, match="cannot be read: no such file"):
        check(tmp_path / "none", index)


def test_many_faults_are_counted_and_a_few_shown(tmp_path: Path, index: Index) -> None:
    _, found = check(write(tmp_path / "in", *["{"] * 1000), index)
    assert found.count == 1000
    assert len(found.shown) == 20
    assert found.text().endswith("and 980 more")


def test_what_editors_leave_in_a_file(tmp_path: Path, index: Index) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\xef\xbb\xbf" + request("a").encode() + b"\r\n\r\n" + request("b").encode())
    n, found = check(path, index)
    assert (n, found.count) == (2, 0)
    assert [line.custom_id for line in read_lines(path, index)] == ["a", "b"]


def test_too_long_a_line_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 1000)
    found = faults(tmp_path / "in", request("a"), "x" * 5000, request("b"), request("a"))
    assert found[0].startswith("2: the line is longer")
    assert found[1:] == ["4: custom_id 'a' is that of line 1"]


def test_lines_are_read_one_by_one(tmp_path: Path, index: Index) -> None:
    path = write(tmp_path / "in", *[request(str(i)) for i in range(1000)])
    check(path, index)
    lines = read_lines(path, index)
    assert next(lines).custom_id == "0"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:500]) + "{}\n")  # beyond what was read ahead
    with pytest.raises(InvalidRequest, match="was changed while it was read"):
        list(lines)


def test_a_body_goes_on_as_it_stands(tmp_path: Path, index: Index) -> None:
    body = '{"prompt":  "\\u00e9", "x": 1e400}'
    path = write(tmp_path / "in", request("a").replace('{"prompt": "x"}', body))
    check(path, index)
    (line,) = read_lines(path, index)
    assert bytes(line.body).decode() == body


OK = Response(200, "req-1", msgspec.Raw(b'{"x":1}'))
REFUSED = Response(400, "req-2", msgspec.Raw(b'{"error":{}}'))


def input_of(tmp_path: Path, index: Index, *ids: str) -> Path:
    path = write(tmp_path / "in", *map(request, ids))
    assert check(path, index)[1].count == 0
    return path


def again(index: Index) -> Index:
    """As a second run sees it: nothing is done yet."""
    index._db.execute("UPDATE line SET done = 0")
    return index


def test_an_output_line_is_that_of_openai(tmp_path: Path, index: Index) -> None:
    input_of(tmp_path, index, "a", "b", "c")
    results = Results(tmp_path / "out", index)
    results.write("a", OK)
    results.write("b", REFUSED)
    results.write("c", Fault("not_json", "a page"))
    results.close()
    results.write("c", OK)  # too late
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert all(line.pop("id").startswith("batch_req_") for line in lines)
    assert lines == [
        {"custom_id": "a", "response": {"status_code": 200, "request_id": "req-1", "body": {"x": 1}}, "error": None},
        {
            "custom_id": "b",
            "response": {"status_code": 400, "request_id": "req-2", "body": {"error": {}}},
            "error": None,
        },
        {"custom_id": "c", "response": None, "error": {"code": "not_json", "message": "a page"}},
    ]
    assert (results.n_ok, results.n_failed, results.n_before) == (1, 2, 0)


@pytest.mark.parametrize("cut", [1, 5, 17, 40, 100])
def test_half_a_line_is_taken_away_and_its_request_done_again(tmp_path: Path, index: Index, cut: int) -> None:
    path = input_of(tmp_path, index, "a", "b")
    results = Results(tmp_path / "out", index)
    results.write("a", OK)
    results.write("b", OK)
    results.close()
    whole = (tmp_path / "out").read_bytes()
    first = whole.index(b"\n") + 1
    (tmp_path / "out").write_bytes(whole[: first + cut])
    results = Results(tmp_path / "out", again(index))
    assert (results.n_before, results.n_ok) == (1, 1)
    assert [line.custom_id for line in read_lines(path, index)] == ["b"]
    results.write("b", OK)
    results.close()
    after = (tmp_path / "out").read_bytes()
    assert after[:first] == whole[:first]
    assert after.count(b"\n") == 2
    assert json.loads(after[first:])["custom_id"] == "b"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("my notes", "1 is no line of a batch's output"),
        ('{"custom_id": "a"}\n', "1 is no line of a batch's output"),
        (request("a") + "\n", "1 is no line of a batch's output"),
        ('{"id":"batch_req_1","custom_id":"z","response":null,"error":null}\n', "custom_id 'z' is not in the input"),
        ('{"id":"batch_req_1","custom_id":"a","response":null,"error":null}\n' * 2, "custom_id 'a' is there twice"),
        ('{"id":"batch_req_1","cus\n{"id":"batch_req_2","cu', "1 is no line of a batch's output"),
    ],
)
def test_another_file_is_left_alone(tmp_path: Path, index: Index, there: str, said: str) -> None:
    input_of(tmp_path, index, "a")
    (tmp_path / "out").write_text(there)
    with pytest.raises(InvalidRequest, match=said):
        Results(tmp_path / "out", index)
    assert (tmp_path / "out").read_text() == there


def test_failed_requests_are_done_again_on_demand(tmp_path: Path, index: Index) -> None:
    path = input_of(tmp_path, index, "a", "b", "c")
    results = Results(tmp_path / "out", index)
    for custom_id, answer in (("b", REFUSED), ("a", OK), ("c", Fault("x", "y"))):
        results.write(custom_id, answer)
    results.close()
    results = Results(tmp_path / "out", again(index))
    assert (results.n_before, results.n_failed) == (3, 2)
    results.close()
    results = Results(tmp_path / "out", again(index), again=True)
    assert (results.n_before, results.n_failed) == (1, 0)
    assert [line.custom_id for line in read_lines(path, index)] == ["b", "c"]
    results.write("c", OK)
    results.close()
    written = [json.loads(line)["custom_id"] for line in (tmp_path / "out").read_text().splitlines()]
    assert written == ["a", "c"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_one_run_at_a_time(tmp_path: Path, index: Index) -> None:
    input_of(tmp_path, index, "a")
    results = Results(tmp_path / "out", index)
    with pytest.raises(ConfigError, match="another run is writing"):
        Results(tmp_path / "out", index)
    results.close()
    Results(tmp_path / "out", index).close()


@pytest.mark.parametrize(
    ("name", "said"), [("folder", "is a directory"), ("none/out", "no such file"), ("/dev/null", "is not a file")]
)
def test_an_output_that_cannot_be(tmp_path: Path, index: Index, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=said):
        Results(tmp_path / name, index)


def run(*arguments: str) -> int:
    code = cli.main(["batch", *arguments], standalone_mode=False)
    return code if isinstance(code, int) else 0


def test_check_says_what_is_wrong_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "in", request("a"), request("a"), "{"))
    for more in (["--check"], ["-o", str(tmp_path / "out")]):
        assert run(path, *more) == 2
        assert capsys.readouterr().err.splitlines() == [
            f"{path}:2: custom_id 'a' is that of line 1",
            f"{path}:3: not valid JSON: Input data was truncated",
        ]
    assert not (tmp_path / "out").exists()
    assert run(str(write(tmp_path / "good", request("a"))), "--check") == 0
    assert "1 requests, nothing wrong with their fields" in capsys.readouterr().out


def test_each_fault_of_a_line_is_named(tmp_path: Path) -> None:
    line = request(7, method="GET", url="/x", body=[1], more=1, other=2)
    assert faults(tmp_path / "in", line) == [
        "1: there is no field more",
        "1: there is no field other",
        "1: custom_id must be text",
        "1: method must be POST, not 'GET'",
        f"1: url must be one of {', '.join(URLS)}, not '/x'",
        "1: body must be an object",
    ]
    assert faults(tmp_path / "in", "{}") == [f"1: the field {name} is missing" for name in FIELDS]
    assert faults(tmp_path / "in", request("a", method="GET"), request("a")) == [
        "1: method must be POST, not 'GET'",
        "2: custom_id 'a' is that of line 1",
    ]


def test_what_is_no_json_is_said_once(tmp_path: Path) -> None:
    assert faults(tmp_path / "in", '{"a" x') == ["1: not valid JSON: expected ':' (byte 5)"]


def test_check_looks_into_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_token": 1},
        "/v1/completions": {"prompt": "x", "max_token": 1},
        "/v1/embeddings": {"input": "x", "dimension": 1},
        "/v1/responses": {"input": "x", "temperatur": 1},
    }
    lines = [request(url, url=url, body=body) for url, body in bodies.items()]
    path = str(write(tmp_path / "in", *lines, request("typed", body={"prompt": "x", "max_tokens": "8"})))
    assert run(path, "--check") == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{path}:{n}" for n in range(1, 6)]
    for line, name in zip(said, ("max_token", "max_token", "dimension", "temperatur", "max_tokens"), strict=True):
        assert ": body: " in line and name in line
    good = [request(url, url=url, body=dict(list(body.items())[:-1])) for url, body in bodies.items()]
    assert run(str(write(tmp_path / "good", *good)), "--check") == 0


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(["batch", *arguments])
    return left.value.code


def test_where_nothing_was_run_the_exit_code_is_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sixfold.cli.batch_run.CONNECT_TRIES", 1)
    path, out = str(write(tmp_path / "in", request("a"))), str(tmp_path / "out")
    assert exit_code(str(tmp_path / "none"), "-o", out) == 2
    assert "none cannot be read: no such file" in capsys.readouterr().err
    (tmp_path / "notes").write_text("my notes")
    assert exit_code(path, "-o", str(tmp_path / "notes")) == 2
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        assert exit_code(path, "-o", out, "--url", f"http://127.0.0.1:{nobody.getsockname()[1]}") == 2
    reason, answered = capsys.readouterr().err.splitlines()[-2:]
    assert "cannot be reached" in reason
    assert answered == f"{out}: 0 of 1 requests are answered; the same command goes on"


def test_failures_of_an_earlier_run_are_told_with_their_reasons(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = input_of(tmp_path, index, "a", "b", "c"), tmp_path / "out"
    results = Results(out, index)
    results.write("a", Response(400, "r", msgspec.Raw(b'{"error":{"message":"no such field"}}')))
    results.write("b", Fault("not_json", "the answer is not JSON"))
    results.write("c", OK)
    results.close()
    assert exit_code(str(path), "-o", str(out), "--executor", "scripted") == 1
    said = capsys.readouterr()
    assert "2 of them failed" in said.out
    assert said.err.splitlines() == ["  a: 400, no such field", "  b: the answer is not JSON"]


def test_the_output_is_another_file(tmp_path: Path) -> None:
    path = write(tmp_path / "in", request("a"), end="")
    with pytest.raises(ConfigError, match="another file than the input"):
        run(str(path), "-o", str(path))
    assert path.read_text() == request("a")
