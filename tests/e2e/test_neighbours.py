"""Reported faults of other servers (the ids in the names) that come of company: a model, a small pool, many callers.

Each answer is compared with that of the same request alone. P2 holds without tolerance, so equal means equal.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.serving import Server

pytestmark = pytest.mark.model

MODEL = "m"
PATH = "/v1/completions"
N_BLOCKS = 40
SEQUENCES = 8
OPTIONS = ("--num-kv-blocks", str(N_BLOCKS), "--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", "64")


@pytest.fixture(scope="module")
def small(model_path: Path) -> Iterator[Server]:
    """Eight at a time, on a pool that holds the beginnings of about ten prompts."""
    with Server(str(model_path), "--served-model-name", MODEL, *OPTIONS) as server:
        yield server


def complete(server: Server, body: dict[str, Any]) -> Any:
    """What the answer's first choice says."""
    answer = server.post(PATH, {"model": MODEL, "temperature": 0, "return_token_ids": True, **body})
    choice = answer["choices"][0]
    return choice["text"], choice["token_ids"], choice["finish_reason"], choice["logprobs"], choice["stop_reason"]


def together(server: Server, bodies: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: complete(server, body), bodies))


LABELS = {"model_name", "api_server", "le", "state", "role", "status", "reason", "finished_reason", "cause"} | {
    "process",
    "site",
    "kind",
    "part",
}


class Scraper:
    """Reads `/metrics` over and over: what a scrape holds must parse, and no counter may fall."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.fault: BaseException | None = None
        self.last: dict[Any, float] = {}
        self.n = 0

    def __enter__(self) -> Scraper:
        self.scrape()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.scrape()
        except BaseException as fault:  # noqa: BLE001 - raised again by the test
            self.fault = fault

    def scrape(self) -> None:
        _, _, data = self._server.request("GET", "/metrics")
        for family in text_string_to_metric_families(data.decode()):
            for sample in family.samples:
                key = sample.name, *sorted(sample.labels.items())
                if family.type in ("counter", "histogram") and not sample.name.endswith("_created"):
                    assert sample.value >= self.last.get(key, 0.0), f"{key} fell"
                assert set(sample.labels) <= LABELS, "labels are few and fixed"
                self.last[key] = sample.value
        self.n += 1

    def total(self, name: str) -> float:
        return sum(value for (found, *_), value in self.last.items() if found == name)


def test_O38_O50_no_reply_is_anothers_under_eviction_and_counters_only_rise(small: Server, model_path: Path) -> None:
    """40 prompts behind one beginning, three passes in random order, callers that leave among them, on a pool that
    evicts all the time; meanwhile the counters are read."""
    rng = random.Random(38)
    beginning = "You are a careful clerk, and you repeat the code that is given to you, letter by letter. "
    bodies = [
        {"prompt": f"{beginning}Repeat: CANARY-{i:02d} CANARY-{i:02d} CANARY-", "max_tokens": 6} for i in range(40)
    ]
    with Server(str(model_path), "--served-model-name", MODEL, "--no-enable-prefix-caching") as cold:
        reference = [complete(cold, body) for body in bodies]
    with Scraper(small) as scraper:
        n_tokens = 0
        for _ in range(3):
            order = rng.sample(range(len(bodies)), len(bodies))
            with ThreadPoolExecutor(SEQUENCES + 1) as pool:
                leavers = pool.submit(leave, small, [f"{beginning}Repeat: GONE-{i}" for i in range(8)])
                for i, answer in zip(order, pool.map(lambda i: complete(small, bodies[i]), order), strict=True):
                    assert answer == reference[i], f"prompt {i}"
                    others = {f"{j:02d}" for j in range(40)} - {f"{i:02d}"}
                    assert answer[0][:2] not in others and "GONE" not in answer[0]
                    n_tokens += len(answer[1])
                leavers.result()
            small.wait_idle()
        scraper.scrape()
        assert scraper.n > 5
        assert scraper.total("sixfold_prefix_cache_hits_total") > 0
        assert scraper.total("sixfold_generation_tokens_total") >= n_tokens
        assert scraper.total("sixfold_kv_blocks") == N_BLOCKS


def leave(server: Server, prompts: list[str]) -> None:
    """Ask for much, read one event, and go."""
    for prompt in prompts:
        connection = server.connection()
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}
        connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        answer.close()
        connection.close()


def test_O50_token_totals_are_the_sum_of_what_callers_were_told(small: Server) -> None:
    scraper = Scraper(small)
    scraper.scrape()
    before = [scraper.total(f"sixfold_{name}_tokens_total") for name in ("prompt", "generation")]
    # A pool of 40 blocks and eight of 170 tokens: there are preemptions.
    bodies = [{"prompt": f"Chapter {i}:", "max_tokens": 160, "ignore_eos": True, "n": 1 + i % 2} for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        usages = [a["usage"] for a in pool.map(lambda b: small.post(PATH, {"model": MODEL, **b}), bodies)]
    small.wait_idle()
    scraper.scrape()
    after = [scraper.total(f"sixfold_{name}_tokens_total") for name in ("prompt", "generation")]
    told = [sum(usage[f"{name}_tokens"] for usage in usages) for name in ("prompt", "completion")]
    assert [b - a for a, b in zip(before, after, strict=True)] == told
    assert scraper.total("sixfold_num_preemptions_total") > 0


def test_O56_a_neighbours_penalty_changes_nothing_here(small: Server) -> None:
    mine = {"prompt": "The colours of the flag are", "max_tokens": 30, "ignore_eos": True, "logprobs": 2}
    rivals = [
        {"prompt": "One two three " * k, "max_tokens": 40, "frequency_penalty": 1.5, "presence_penalty": 2.0}
        for k in (1, 3, 5)
    ]
    alone = complete(small, mine)
    penalised = complete(small, {**mine, "frequency_penalty": 2.0, "presence_penalty": 2.0})
    assert penalised[1] != alone[1], "a penalty would show"
    for _ in range(2):
        assert together(small, [mine, *rivals])[0] == alone
        assert together(small, [*rivals, mine])[-1] == alone


def test_O57_each_call_is_drawn_by_its_own_settings(small: Server) -> None:
    """Eight at once, each with its own length, temperature, seed, stop string and first token; slots are used again."""
    forced = [1000 + 37 * i for i in range(8)]
    bodies: list[dict[str, Any]] = []
    for i in range(8):
        body: dict[str, Any] = {"prompt": f"Item {i} is", "max_tokens": 3 + i, "ignore_eos": True, "seed": i}
        if i % 2:
            body["temperature"] = 1.5
        else:
            body["logit_bias"] = {str(forced[i]): 100}
        if i == 5:
            body["stop"] = ["e", "a", "o"]
        bodies.append(body)
    alone = [complete(small, body) for body in bodies]
    for i, (_, token_ids, reason, _, stop) in enumerate(alone):
        assert (reason, len(token_ids)) == ("length", 3 + i) or (stop in ("e", "a", "o") and i == 5)
        assert i % 2 or set(token_ids) == {forced[i]}
    for seed in range(3):
        order = random.Random(seed).sample(range(8), 8)
        assert together(small, [bodies[i] for i in order]) == [alone[i] for i in order]


def test_O59_the_company_of_a_step_changes_no_bit(small: Server) -> None:
    """Alone, with seven others, in every place, with the prompt cut at other places, on a cold and a warm cache."""
    mine = {"prompt": "A short history of the lighthouse: " * 4, "max_tokens": 12, "ignore_eos": True, "logprobs": 3}
    cold = complete(small, {**mine, "cache_salt": "cold"})
    for repeat in range(2):
        assert complete(small, mine) == cold
        for place in (0, 3, 7):
            others = [{"prompt": f"{repeat} {i} " * (5 * i + 1), "max_tokens": 12} for i in range(7)]
            assert together(small, [*others[:place], mine, *others[place:]])[place] == cold


def test_O44_one_tokenizer_serves_many_threads(model_path: Path) -> None:
    """64 calls at once that read, cut, stop, forbid and decode; each says what it says alone, and none fails."""
    text = "The tokenizer is one, the callers are many: naïve café, 12345, \U0001f600. "
    calls: list[tuple[str, dict[str, Any]]] = []
    for i in range(64):
        own = text * (1 + i % 7) + str(i)
        calls.append(
            (
                ("/tokenize", {"prompt": own, "return_token_strs": True}),
                (PATH, {"prompt": own, "max_tokens": 4, "truncate_prompt_tokens": 8 + i}),
                (PATH, {"prompt": own, "max_tokens": 4, "stop": ["zz", str(i)], "bad_words": ["moon", str(i)]}),
                (PATH, {"prompt": own, "max_tokens": 4, "truncate_prompt_tokens": 5 + i, "truncation_side": "right"}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": own}], "max_tokens": 4}),
            )[i % 5]
        )
    with Server(str(model_path), "--served-model-name", MODEL, "--executor", "scripted") as server:

        def ask(call: tuple[str, dict[str, Any]]) -> Any:
            path, body = call
            answer = server.post(path, {"model": MODEL, **body} | ({} if path == "/tokenize" else {"seed": 1}))
            return answer["tokens"] if path == "/tokenize" else (answer["usage"]["prompt_tokens"], answer["choices"])

        alone = [ask(call) for call in calls]
        with ThreadPoolExecutor(64) as pool:
            for _ in range(3):
                assert list(pool.map(ask, calls)) == alone
