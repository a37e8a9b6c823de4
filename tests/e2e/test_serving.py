"""The default model behind real processes and real HTTP: what a user's client meets."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

from sixfold.config import BLOCK_SIZE

pytestmark = pytest.mark.model

MODEL = "small"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Server(str(model_path), "--served-model-name", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[Server]:
    """A pool of 24 blocks: two dozen rivals cannot be held at once."""
    with Server(str(model_path), "--served-model-name", MODEL, "--num-kv-blocks", "24") as server:
        yield server


def complete(server: Server, prompt: Any, **fields: Any) -> Any:
    return server.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, **fields})


def ids(answer: Any, choice: int = 0) -> list[int]:
    return list(answer["choices"][choice]["token_ids"])


def prompt_ids(n: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100, 20000) for _ in range(n)]


def test_the_openai_client_streams_a_chat(server: Server) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        chunks = list(
            client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
        )
        assert [m.id for m in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**CHAT, "model": "other"})  # type: ignore[call-overload]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**CHAT, "temperature": 7})  # type: ignore[call-overload]
    assert refused.value.param == "temperature"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content and text
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_greedy_text_is_the_references(server: Server, golden: dict[str, Any]) -> None:
    for case in golden["cases"]:
        wide = next((i for i, margin in enumerate(case["margin"]) if margin < 0.6), len(case["margin"]))
        answer = complete(server, case["ids"], max_tokens=32, ignore_eos=True, return_token_ids=True)
        assert ids(answer)[:wide] == case["greedy"][:wide]


def test_choices_of_one_request_equal_those_of_another(server: Server) -> None:
    """n = 3 shares the prompt's blocks and copies its partly filled tail; the tokens do not show it."""
    fields = {"temperature": 1.0, "seed": 11, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    for n_prompt in (BLOCK_SIZE * 2 - 1, BLOCK_SIZE * 2, BLOCK_SIZE * 2 + 1):
        prompt = prompt_ids(n_prompt, seed=n_prompt)
        three = complete(server, prompt, n=3, **fields)
        assert len({tuple(ids(three, c)) for c in range(3)}) == 3
        assert ids(complete(server, prompt, n=1, **fields)) == ids(three, 0)
        assert [ids(complete(server, prompt, n=3, **fields), c) for c in range(3)] == [ids(three, c) for c in range(3)]
        assert three["usage"]["prompt_tokens"] == n_prompt and three["usage"]["completion_tokens"] == 60
    server.wait_idle()


def test_o30_prompt_logprobs_with_a_warm_cache(server: Server) -> None:
    prompt = prompt_ids(3 * BLOCK_SIZE + 2, seed=30)
    answers = []
    for echo in (True, True, True, False, True):
        answer = complete(server, prompt, echo=echo, logprobs=1, max_tokens=1)
        if echo:
            answers.append(answer)
    first = answers[0]["choices"][0]["logprobs"]
    assert first["token_logprobs"][0] is None and len(first["tokens"]) == len(prompt) + 1
    for answer in answers[1:]:
        again = answer["choices"][0]["logprobs"]
        assert again["tokens"] == first["tokens"]
        assert again["token_logprobs"][1:] == pytest.approx(first["token_logprobs"][1:], abs=1e-3)
        assert answer["usage"]["prompt_tokens"] == len(prompt)


def test_a_prompt_can_be_scored_without_generating(server: Server, golden: dict[str, Any]) -> None:
    case = golden["cases"][0]
    answer = complete(server, case["ids"], echo=True, logprobs=5, max_tokens=0)
    values = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert -sum(values[1:]) / len(values[1:]) == pytest.approx(case["mean_nll"], abs=0.1)
    assert answer["usage"]["completion_tokens"] == 0 and answer["choices"][0]["finish_reason"] == "length"


def test_o32_a_client_that_leaves_frees_its_blocks(server: Server) -> None:
    before = complete(server, "The sky is", max_tokens=12)["choices"][0]["text"]
    for round_ in range(6):
        leavers = [threading.Thread(target=_leave, args=(server, i, round_)) for i in range(12)]
        for thread in leavers:
            thread.start()
        for thread in leavers:
            thread.join()
        server.wait_idle()
    assert "Traceback" not in server.output
    assert complete(server, "The sky is", max_tokens=12)["choices"][0]["text"] == before


def _leave(server: Server, i: int, round_: int) -> None:
    """Send a long request and go: before the first byte, after one chunk, in mid-flow; by FIN and by RST."""
    body = json.dumps(
        {"model": MODEL, "prompt": prompt_ids(40, seed=i), "max_tokens": 4000, "ignore_eos": True, "stream": i < 8}
    ).encode()
    connection: http.client.HTTPConnection = server.connection(timeout=20)
    connection.connect()
    assert connection.sock is not None
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sock.sendall(head.encode() + body)
    moment = (i + round_) % 3
    if moment and i < 8:
        connection.sock.recv(100)
    if moment == 2:
        time.sleep(0.1)
    if i % 2:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.sock.close()


def test_o33_the_same_request_id_twice(server: Server) -> None:
    def ask(prompt: str) -> tuple[str, str]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        status, _, data = server.request("POST", "/v1/completions", body, {"X-Request-Id": "mine"})
        assert status == 200
        answer = json.loads(data)
        return answer["id"], answer["choices"][0]["text"]

    alone = [ask("The sea is")[1], ask("One plus one is")[1]]
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(ask, ["The sea is", "One plus one is"]))
    assert [text for _, text in both] == alone and both[0][0] != both[1][0]


def test_o34_seeded_output_survives_preemption(small: Server) -> None:
    fields = {"seed": 7, "temperature": 1.0, "max_tokens": 120, "ignore_eos": True, "return_token_ids": True}
    fields["logprobs"] = 1
    prompt = prompt_ids(20, seed=34)
    alone = complete(small, prompt, **fields)
    with ThreadPoolExecutor(8) as threads:
        mine = threads.submit(complete, small, prompt, **fields)
        rivals = [threads.submit(complete, small, prompt_ids(20, seed=s), **fields) for s in range(6)]
        answer = mine.result()
        assert all(len(ids(r.result())) == 120 for r in rivals)
    preemptions = sum(v for k, v in small.metrics().items() if k.startswith("sixfold_num_preemptions_total"))
    assert preemptions >= 1
    assert ids(answer) == ids(alone) and answer["usage"]["completion_tokens"] == 120
    assert answer["choices"][0]["logprobs"] == alone["choices"][0]["logprobs"]
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 120
    small.wait_idle()


def test_o35_salts_do_not_share_blocks(server: Server) -> None:
    prompt = prompt_ids(3 * BLOCK_SIZE + 5, seed=35)
    answers = [complete(server, prompt, max_tokens=4, cache_salt=salt) for salt in ("x", "y", "x")]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert cached == [0, 0, 3 * BLOCK_SIZE]
    assert len({a["choices"][0]["text"] for a in answers}) == 1


def test_o36_a_prompt_that_is_cached_whole(server: Server) -> None:
    for n in (4 * BLOCK_SIZE - 1, 4 * BLOCK_SIZE, 4 * BLOCK_SIZE + 1):
        prompt = prompt_ids(n, seed=3600 + n)
        for max_tokens in (1, 5):
            answers = [complete(server, prompt, max_tokens=max_tokens, logprobs=2) for _ in range(3)]
            assert len({json.dumps(a["choices"][0]) for a in answers}) == 1
            for answer in answers:
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= n - 1
    server.wait_idle()


def test_o39_a_request_that_never_fits_is_refused_and_blocks_nobody(small: Server) -> None:
    status, _, data = small.request(
        "POST", "/v1/completions", {"model": MODEL, "prompt": prompt_ids(25 * BLOCK_SIZE), "max_tokens": 4}
    )
    error = json.loads(data)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and str(24 * BLOCK_SIZE) in error["message"]
    assert complete(small, prompt_ids(5), max_tokens=2)["choices"]
    full = complete(small, prompt_ids(20), max_tokens=2000, ignore_eos=True)
    assert full["choices"][0]["finish_reason"] == "length"
    small.wait_idle()


def test_many_clients_at_once_get_their_own_answers(server: Server) -> None:
    prompts = [f"Repeat after me: number {i} is" for i in range(24)]
    alone = [complete(server, p, max_tokens=12)["choices"][0]["text"] for p in prompts]

    def streamed(prompt: str) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0}
        return "".join(e["choices"][0]["text"] for e in server.stream("/v1/completions", body))

    with ThreadPoolExecutor(24) as threads:
        assert list(threads.map(streamed, prompts)) == alone
    server.wait_idle()


def test_a_full_queue_is_a_429_with_a_time(model_path: Path) -> None:
    with Server(
        str(model_path), "--served-model-name", MODEL, "--max-num-seqs", "1", "--max-queued-requests", "1"
    ) as one:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3000, "ignore_eos": True}
        streams = []
        for _ in range(2):
            connection = one.connection()
            connection.request(
                "POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"}
            )
            streams.append(connection)
        streams[0].getresponse().readline()
        deadline = time.monotonic() + 60
        while (answer := one.request("POST", "/v1/completions", {**body, "max_tokens": 1}))[0] == 200:
            assert time.monotonic() < deadline
        status, headers, data = answer
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert json.loads(data)["error"]["type"]
        for connection in streams:
            connection.close()
        one.wait_idle()
