"""Every place of the server where time goes, once: the work of a step and of an answer, and the waits between them
(those that no hot path has to know are in `waits.py`).

A site's index in `SITES` is its id, a plain integer that the hot paths keep as a constant. Every site says what kind of
time it is, and a wait says why it is there:

    WORK          the processor does something for somebody
    INVARIANT     a wait that protects a property: which, and which test fails without it
    OVERLAPPABLE  a wait while something else could run: what
    SHRINKABLE    a wait that protects nothing and can be made shorter: by which lever
    IDLE          nothing is to be done
"""

from __future__ import annotations

import hashlib

from sixfold.observability.site import Kind, Site
from sixfold.observability.waits import WAITS

__all__ = [
    "API_ASIDE",
    "API_BODY",
    "API_DELIVER",
    "API_DETOKENIZE",
    "API_ENGINE",
    "API_PARSE",
    "API_RECEIVE",
    "API_RENDER",
    "API_RESTART",
    "API_ROUTE",
    "API_SOCKET",
    "API_TEMPLATE",
    "API_THREAD",
    "API_TOKENIZE",
    "API_VERDICT",
    "API_WRITE",
    "DIGEST",
    "ENGINE_BLOCKS",
    "ENGINE_BUDGET",
    "ENGINE_COMMIT",
    "ENGINE_DELIVER",
    "ENGINE_FENCE",
    "ENGINE_FRAME",
    "ENGINE_HANDOVER",
    "ENGINE_INBOX",
    "ENGINE_PREEMPTING",
    "ENGINE_RECEIVE",
    "ENGINE_RESULT",
    "ENGINE_SCHEDULE",
    "ENGINE_SLOTS",
    "ENGINE_STEP",
    "ENGINE_TURN",
    "SITES",
    "WORKER_ATTENTION",
    "WORKER_DOWN",
    "WORKER_EMBED",
    "WORKER_EXPERTS",
    "WORKER_FORWARD",
    "WORKER_GATE_UP",
    "WORKER_HEAD",
    "WORKER_IDLE",
    "WORKER_OUTPUT",
    "WORKER_PREPARE",
    "WORKER_QKV",
    "WORKER_REPLY",
    "WORKER_SAMPLE",
    "WORKER_STEP",
    "Kind",
    "Site",
]


_sites: list[Site] = []


def _site(site: Site) -> int:
    _sites.append(site)
    return len(_sites) - 1


def _work(name: str, where: str, what: str, part_of: str = "") -> int:
    return _site(Site(name, Kind.WORK, where, what, part_of=part_of))


_PROGRAM = "executor/model_runner.py: run"

ENGINE_SCHEDULE = _work("engine.schedule", "engine/core.py: fill", "deciding a step, and holding its blocks")
ENGINE_HANDOVER = _work(
    "engine.handover", "engine/core.py: fill", "turning the plan into a message, and sending it to the worker"
)
ENGINE_COMMIT = _work("engine.commit", "engine/core.py: commit", "applying a step's result")
ENGINE_DELIVER = _work(
    "engine.deliver", "engine/engine_process.py: _on_result", "sorting a step's deltas by API process"
)
ENGINE_FRAME = _work(
    "engine.frame", "engine/engine_process.py: _send_outputs", "encoding a step's deltas, and sending them"
)
ENGINE_RECEIVE = _work(
    "engine.receive",
    "engine/engine_process.py: _on_result, _on_control",
    "decoding what comes, and queueing new requests",
)
WORKER_PREPARE = _work(
    "worker.prepare", "executor/worker.py: execute", "decoding a step, applying it to the slots, making the arrays"
)
WORKER_FORWARD = _work("worker.forward", "executor/model_runner.py: run", "the model, over all rows of a step")
WORKER_EMBED = _work("worker.embed", _PROGRAM, "rows of the embedding table", "worker.forward")
WORKER_QKV = _work("worker.qkv", _PROGRAM, "norm, q, k and v, their rotation, writing k and v", "worker.forward")
WORKER_ATTENTION = _work("worker.attention", _PROGRAM, "attention over the KV blocks", "worker.forward")
WORKER_OUTPUT = _work("worker.output", _PROGRAM, "attention's output projection", "worker.forward")
WORKER_GATE_UP = _work("worker.gate_up", _PROGRAM, "norm, gate and up, their activation", "worker.forward")
WORKER_DOWN = _work("worker.down", _PROGRAM, "the feed-forward's output", "worker.forward")
WORKER_EXPERTS = _work("worker.experts", _PROGRAM, "a feed-forward layer of experts", "worker.forward")
WORKER_HEAD = _work("worker.head", _PROGRAM, "norm, logits, the most likely token", "worker.forward")
WORKER_SAMPLE = _work("worker.sample", "executor/model_runner.py: run", "drawing tokens, and what follows from them")
WORKER_REPLY = _work("worker.reply", "engine/worker_process.py: serve_engine", "encoding a result, and sending it")
API_RECEIVE = _work(
    "api.receive", "engine/client.py: _on_outputs", "decoding a batch of deltas, and sorting it by call"
)
API_DELIVER = _work(
    "api.deliver", "engine/client.py: _on_outputs", "a batch of deltas, on its way to the connections of their callers"
)
API_DETOKENIZE = _work("api.detokenize", "api/generation.py: _follow", "tokens as text, stop strings", "api.deliver")
API_RENDER = _work("api.render", "api/stream.py: take", "text as events", "api.deliver")
API_WRITE = _work("api.write", "api/stream.py: take", "writing events to connections", "api.deliver")
API_ROUTE = _work("api.route", "api/generation.py: _follow", "finding callers, counting their tokens", "api.deliver")
API_PARSE = _work("api.parse", "api/http/decoding.py: read_request", "decoding and checking a call's body")
API_TEMPLATE = _work("api.template", "api/conversation.py: _prepare", "rendering a conversation")
API_TOKENIZE = _work("api.tokenize", "api/conversation.py: _prepare", "turning a prompt into tokens")

ENGINE_INBOX = _site(
    Site(
        "engine.inbox",
        Kind.IDLE,
        "engine/engine_process.py: _wait",
        "no step is outstanding: waiting for requests",
        bound="0.25 s (engine_process.IDLE_WAIT_S)",
    )
)
ENGINE_RESULT = _site(
    Site(
        "engine.result",
        Kind.OVERLAPPABLE,
        "engine/engine_process.py: _wait",
        "waiting for the oldest outstanding step",
        meanwhile="the next step is planned and sent already; messages are read as they come",
        bound="a step; a worker that hangs is ended after --hang-timeout-s",
    )
)
WORKER_STEP = _site(
    Site(
        "worker.step",
        Kind.SHRINKABLE,
        "engine/worker_process.py: serve_engine",
        "waiting for a step",
        lever="steps outstanding: the next step is sent before this one ends",
        bound="50 ms (worker_process.PAUSE_S); then all of it is worker.idle",
    )
)
WORKER_IDLE = _site(
    Site(
        "worker.idle",
        Kind.IDLE,
        "engine/worker_process.py: serve_engine",
        "no step has come for 50 ms: waiting for requests",
        bound="the next request",
    )
)
API_THREAD = _site(
    Site(
        "api.thread",
        Kind.OVERLAPPABLE,
        "api/threads.py: run, _timed",
        "a prompt waits for one of the threads that render and tokenize",
        meanwhile="the event loop serves every other call",
        bound="the texts before it; at most 256 calls are being prepared (admission.MAX_PREPARING)",
    )
)
API_VERDICT = _site(
    Site(
        "api.verdict",
        Kind.SHRINKABLE,
        "engine/client.py: submit",
        "waiting for the engine to queue or refuse a request",
        lever="the length of a turn of the engine's loop",
        bound="a turn of the engine's loop; --hang-timeout-s",
    )
)
API_SOCKET = _site(
    Site(
        "api.socket",
        Kind.INVARIANT,
        "api/stream.py: drain",
        "the answer is complete, and its client still reads",
        protects="memory for what a client has not read is bounded",
        bound="--stream-unread-s",
        test="contract/api/test_http.py::test_a_slow_reader_is_cut_off",
    )
)

SITES: tuple[Site, ...] = (*_sites, *WAITS)
"""A site's id is its index."""

_ids = {site.name: index for index, site in enumerate(SITES)}

API_ENGINE = _ids["api.engine"]
API_BODY = _ids["api.body"]
API_ASIDE = _ids["api.aside"]
API_RESTART = _ids["api.restart"]
ENGINE_STEP = _ids["engine.step"]
ENGINE_SLOTS = _ids["engine.slots"]
ENGINE_BLOCKS = _ids["engine.blocks"]
ENGINE_BUDGET = _ids["engine.budget"]
ENGINE_TURN = _ids["engine.turn"]
ENGINE_PREEMPTING = _ids["engine.preempting"]
ENGINE_FENCE = _ids["engine.fence"]

DIGEST = int.from_bytes(hashlib.sha256(" ".join(site.name for site in SITES).encode()).digest()[:8], "little")
"""Tells meters of another build apart."""
