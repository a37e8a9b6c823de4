"""Gemma over HTTP: a base model with a SentencePiece vocabulary that begins every sequence with BOS."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

pytestmark = pytest.mark.model

MODEL = "gemma"
BOS = 2
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server(gemma_path: Path) -> Iterator[Server]:
    with Server(str(gemma_path), "--served-model-name", MODEL) as server:
        yield server


def complete(server: Server, prompt: Any, **fields: Any) -> Any:
    [choice] = server.post(
        "/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    )["choices"]
    return choice


def tokens(server: Server, prompt: str, **fields: Any) -> list[int]:
    return list(server.post("/tokenize", {"model": MODEL, "prompt": prompt, **fields})["tokens"])


def text(server: Server, ids: list[int], **fields: Any) -> str:
    return str(server.post("/detokenize", {"model": MODEL, "tokens": ids, **fields})["prompt"])


def test_the_line_to_try_works(server: Server) -> None:
    command = shlex.split(server.output[server.output.index("curl") :])
    assert command[2] == f"{server.url}/v1/completions"
    events = list(server.stream("/v1/completions", json.loads(command[-1])))
    assert "".join(event["choices"][0]["text"] for event in events)


def test_a_sequence_begins_with_one_bos(server: Server) -> None:
    want = complete(server, PROMPT, max_tokens=8)
    ids = want["prompt_token_ids"]
    assert ids.count(BOS) == 1 and ids[0] == BOS
    for prompt in (f"<bos>{PROMPT}", ids):
        assert complete(server, prompt, max_tokens=8) == want
    # Ids are taken as they are: who leaves BOS out has left it out.
    assert complete(server, ids[1:], max_tokens=1)["prompt_token_ids"] == ids[1:]
    assert complete(server, "", max_tokens=1)["prompt_token_ids"] == [BOS]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "seed": 3}])
@pytest.mark.parametrize("prompt", [PROMPT, f"{PROMPT} ", "🙂 café, 東京,", "def f():\n    ", "", [BOS, 236743]])
def test_o08_joined_deltas_are_the_full_decode(server: Server, prompt: Any, sampling: dict[str, Any]) -> None:
    """With all blanks of their own: the encoder adds none, and the answer goes on with a text."""
    fields = {"max_tokens": 48, "ignore_eos": True, **sampling}
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    choices = [event["choices"][0] for event in server.stream("/v1/completions", body)]
    streamed = "".join(choice["text"] for choice in choices)
    ids = [token for choice in choices for token in choice["token_ids"]]
    whole = complete(server, prompt, **fields)
    assert (streamed, ids) == (whole["text"], whole["token_ids"])
    assert streamed == text(server, ids, skip_special_tokens=True) and len(ids) == 48
    if prompt == PROMPT and not sampling:
        assert streamed.startswith(" the capital")


def test_echo_is_the_prompt_and_what_follows(server: Server) -> None:
    alone = complete(server, PROMPT, max_tokens=8)["text"]
    for prompt in (PROMPT, tokens(server, PROMPT)):
        assert complete(server, prompt, max_tokens=8, echo=True)["text"] == PROMPT + alone
    assert complete(server, tokens(server, PROMPT), max_tokens=8, echo=True, skip_special_tokens=False)["text"] == (
        f"<bos>{PROMPT}{alone}"
    )


def test_a_prompt_is_scored_as_the_reference_scores_it(server: Server, gemma_golden: dict[str, Any]) -> None:
    for case in gemma_golden["cases"][:4]:
        answer = complete(server, case["text"], max_tokens=2, echo=True, logprobs=3)
        logprobs = answer["logprobs"]
        n = len(case["ids"])
        assert answer["prompt_token_ids"] == case["ids"]
        assert {len(column) for column in logprobs.values()} == {n + 2}
        assert logprobs["tokens"][0] == "<bos>" and "".join(logprobs["tokens"][1:]) == answer["text"]
        first, *values = logprobs["token_logprobs"]
        assert first is None
        assert -sum(values[: n - 1]) / (n - 1) == pytest.approx(case["mean_nll"], abs=0.05)
        for token, value, top in zip(logprobs["tokens"][1:], values, logprobs["top_logprobs"][1:], strict=True):
            assert top[token] == value and len(top) in (3, 4)
            assert max(top.values()) >= value


def test_stop_strings(server: Server) -> None:
    whole = complete(server, PROMPT, max_tokens=16)["text"]
    for stop in (" the", "capital", "l of th", "the country of", "."):
        assert stop in whole
        for kept in (False, True):
            answer = complete(server, PROMPT, max_tokens=16, stop=[stop], include_stop_str_in_output=kept)
            assert answer["text"] == whole[: whole.index(stop)] + stop * kept
            assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)


def test_a_base_model_does_not_chat(server: Server) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for path in ("/v1/chat/completions", "/tokenize"):
        status, _, data = server.request("POST", path, {"model": MODEL, "messages": messages})
        error = json.loads(data)["error"]
        assert (status, error["param"], error["code"]) == (400, "messages", "no_chat_template")
        assert "chat template" in error["message"] and "/v1/completions" in error["message"]


def test_control_literals(server: Server) -> None:
    turn = "<start_of_turn>user\nHi<end_of_turn>\n"
    ids = tokens(server, turn)
    assert ids == [BOS, 105, 2364, 107, 10979, 106, 107]
    assert tokens(server, turn, add_special_tokens=False) == ids[1:]
    assert text(server, ids, skip_special_tokens=False) == f"<bos>{turn}"
    assert text(server, ids, skip_special_tokens=True) == "user\nHi\n"
    # What merely looks like one, and the user-defined tokens, are text.
    for plain in ("<bos >", "<start_of_turn", "<0x0A>", "<h3>\n\n\n  two", "  two blanks ", "a\tb"):
        ids = tokens(server, plain)
        assert ids.count(BOS) == 1 and text(server, ids, skip_special_tokens=True) == plain


def test_the_end_is_silent(gemma_path: Path) -> None:
    with Server(str(gemma_path), "--max-model-len", "256", "--threads", "1") as server:
        assert server.stop() == 0
    assert "leaked" not in server.output and "sixfold:" not in server.output
