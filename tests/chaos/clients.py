"""Callers whose answers can be compared with those of an undisturbed run."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlparse

__all__ = ["Answer", "Body", "Callers", "bodies", "call"]

Body = dict[str, Any]
HUNG_S = 40.0
"""A caller that hears nothing for so long hangs."""


@dataclass
class Answer:
    """What a caller has got."""

    end: str = "broken"
    """`whole`, `broken` (the connection ended), `error CODE`, `hung`, or `wrong WHY`."""
    choices: dict[int, list[Any]] = field(default_factory=dict)
    """Choice -> [text, token ids, log-probabilities, finish reason]."""
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens."""
    n_events: int = 0

    @property
    def content(self) -> str:
        """What must be equal, NaN and -inf included."""
        return repr((sorted(self.choices.items()), self.usage))

    def is_part_of(self, whole: Answer) -> bool:
        """Whether this is a beginning of it, and does not look like an end where there is none."""
        for index, (text, ids, logprobs, finish) in self.choices.items():
            other = whole.choices[index]
            same = other[0].startswith(text) and other[1][: len(ids)] == ids and other[2][: len(logprobs)] == logprobs
            if not same or finish not in (None, other[3]):
                return False
        return True

    def take(self, event: Body) -> None:
        self.n_events += 1
        if usage := event.get("usage"):
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in event["choices"]:
            got = self.choices.setdefault(choice["index"], ["", [], [], None])
            if got[3] is not None:
                raise ValueError("something after a choice's end")
            got[0] += choice["text"]
            got[1] += choice.get("token_ids") or []
            got[2] += (choice.get("logprobs") or {}).get("token_logprobs") or []
            got[3] = choice["finish_reason"]


def bodies(model: str, n_tokens: int, prompt: str = "") -> list[Body]:
    """One request of each kind: greedy, seeded, `n: 2`, penalties, log-probabilities, a stop string, a grammar.

    Args:
        n_tokens: of an answer, about.
        prompt: in front of each prompt.
    """
    common = {"model": model, "max_tokens": n_tokens, "return_token_ids": True}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    own: list[Body] = [
        {"prompt": "greedy", "temperature": 0, "ignore_eos": True},
        {"prompt": "seeded", "temperature": 1, "seed": 5, "n": 2, "ignore_eos": True},
        {"prompt": "scores", "temperature": 0.7, "seed": 2, "logprobs": 2, "ignore_eos": True, **penalties},
        {"prompt": "a grammar", "structured_outputs": {"regex": f"[a-f]{{{n_tokens // 2}}}"}, "seed": 3},
    ]
    if model == "scripted":
        tail = "a long way to the end of it, STOP and on"
        own.append({"prompt": "stopped", "script": [*("." * max(0, n_tokens - 40) + tail)], "stop": ["STOP"]})
    else:
        own.append({"prompt": "Count: one, two,", "temperature": 0, "stop": [" ten", "\n\n"]})
    return [{**common, **body, "prompt": prompt + body["prompt"]} for body in own]


def call(url: str, body: Body, on_event: Callable[[Answer], None] = lambda answer: None) -> Answer:
    """Ask, and read the answer to whatever end it has. Never raises.

    Args:
        on_event: after each event of a stream.
    """
    answer = Answer()
    address = urlparse(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=HUNG_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            answer.end = f"error {_code(json.loads(response.read())) or response.status}"
        elif body.get("stream"):
            _read_stream(response, answer, on_event)
        else:
            answer.take(json.loads(response.read()))
            answer.end = "whole"
    except TimeoutError:
        answer.end = "hung"
    except (OSError, http.client.HTTPException):
        answer.end = "broken"
    except (ValueError, KeyError) as fault:
        answer.end = f"wrong {fault!r}"
    finally:
        connection.close()
    return answer


def _read_stream(response: http.client.HTTPResponse, answer: Answer, on_event: Callable[[Answer], None]) -> None:
    error = None
    for line in response:
        if not line.startswith(b"data: "):
            continue
        payload = line[6:].strip()
        if answer.end != "broken":
            raise ValueError("an event after [DONE]")
        if payload == b"[DONE]":
            is_whole = all(choice[3] is not None for choice in answer.choices.values())
            if error is None and not is_whole:
                raise ValueError("[DONE] before the end")
            answer.end = "whole" if error is None else f"error {error}"
            continue
        event = json.loads(payload)
        if "error" in event:
            error = _code(event) or "500"
        else:
            answer.take(event)
            on_event(answer)


def _code(document: Body) -> str | None:
    code: str | None = document["error"].get("code")
    return code


class Callers:
    """Calls under way, each in a thread."""

    def __init__(self, url: str, bodies: list[Body], *, stream: bool = True) -> None:
        self._news = threading.Condition()
        self.answers = [Answer() for _ in bodies]
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        self._threads = [
            threading.Thread(target=self._run, args=(url, i, {**body, **options})) for i, body in enumerate(bodies)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str, i: int, body: Body) -> None:
        def on_event(answer: Answer) -> None:
            with self._news:
                self.answers[i] = answer
                self._news.notify_all()

        answer = call(url, body, on_event)
        with self._news:
            self.answers[i] = answer
            self._news.notify_all()

    def wait_events(self, n: int) -> None:
        """Until each stream has had `n` events, or has ended.

        Raises:
            TimeoutError: they do not come.
        """

        def there() -> bool:
            return all(a.n_events >= n or not t.is_alive() for a, t in zip(self.answers, self._threads, strict=True))

        with self._news:
            if not self._news.wait_for(there, HUNG_S):
                raise TimeoutError("no events")

    @property
    def all_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> list[Answer]:
        for thread in self._threads:
            thread.join()
        return self.answers
