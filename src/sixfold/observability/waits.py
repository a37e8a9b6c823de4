"""The register of waits: every place where one part of the server waits for another, and why it does.

A wait is kept if it protects something (INVARIANT, with a test that fails without it), is no loss while something else
runs (OVERLAPPABLE), is a cost with a known lever (SHRINKABLE), or is no cost because nothing is to be done (IDLE). A
lint (tests/tidy/test_waits.py) finds waits that are not here; docs/waits.md is made of this file.
"""

from __future__ import annotations

from sixfold.observability.site import Kind, Site

__all__ = ["WAITS"]


def _invariant(
    name: str, where: str, what: str, *, protects: str, test: str, bound: str = "", timed: bool = True
) -> Site:
    return Site(name, Kind.INVARIANT, where, what, protects=protects, test=test, bound=bound, timed=timed)


def _overlappable(name: str, where: str, what: str, *, meanwhile: str, bound: str = "", timed: bool = True) -> Site:
    return Site(name, Kind.OVERLAPPABLE, where, what, meanwhile=meanwhile, bound=bound, timed=timed)


def _shrinkable(name: str, where: str, what: str, *, lever: str, bound: str = "", timed: bool = True) -> Site:
    return Site(name, Kind.SHRINKABLE, where, what, lever=lever, bound=bound, timed=timed)


def _idle(name: str, where: str, what: str, *, bound: str = "", timed: bool = False) -> Site:
    return Site(name, Kind.IDLE, where, what, bound=bound, timed=timed)


_API = (
    _overlappable(
        "api.head",
        "api/http/guard.py: data_received",
        "the rest of a request's head",
        meanwhile="all other connections",
        bound="10 s (GuardLimits.header_timeout_s)",
        timed=False,
    ),
    _overlappable(
        "api.body",
        "api/call.py: _read, _read_pieces",
        "the rest of a request's body",
        meanwhile="all other connections",
        bound="--body-timeout-s",
    ),
    _overlappable(
        "api.aside",
        "api/threads.py: aside, _timed",
        "the thread for texts that nothing is generated from",
        meanwhile="the event loop, and the threads for texts that are generated from",
        bound="the lengths of the texts before it; each is bounded by --max-body-bytes",
    ),
    _invariant(
        "api.restart",
        "engine/client.py: _wait_up",
        "a new request, for an engine that is being started again",
        protects="the death of an engine is a pause and not an error",
        test="e2e/test_restart.py::test_new_requests_wait_for_the_engine_and_probes_do_not",
        bound="2 s, or the request's deadline",
    ),
    _overlappable(
        "api.engine",
        "engine/client.py: connect, _attach; engine/link.py: open; api/process.py: _serve",
        "an API process, for the engine's welcome",
        meanwhile="`/livez` answers, and new requests are told how long to wait",
        bound="the engine's start; its death is noticed as the end of the socket",
    ),
    _overlappable(
        "api.output",
        "api/generation.py: run",
        "a call, for its last token: the sum of the engine's sites, not one of its own",
        meanwhile="all other calls; each token is handled in the call that brings it",
        bound="the request's deadline, or its client's leaving",
        timed=False,
    ),
    _idle("api.gone", "api/call.py: wait_gone", "a call, for its client to leave", bound="the end of the call"),
    _invariant(
        "api.send",
        "api/call.py: respond, start_stream, write, end_stream",
        "the rest of an answer, for its client to read on",
        protects="what is kept for a slow reader is bounded",
        test="contract/api/test_http.py::test_a_slow_reader_is_cut_off",
        bound="60 s without reading (GuardLimits.write_stall_s)",
        timed=False,
    ),
    _invariant(
        "api.linger",
        "api/call.py: _linger",
        "the rest of a body that was answered before it came: closing at once would reset the answer",
        protects="a refusal is seen by its client",
        test="contract/api/test_http.py::test_O49_a_huge_body_is_413_without_being_kept",
        bound="2 s, 256 MiB",
        timed=False,
    ),
    _overlappable(
        "api.store",
        "api/responses/store.py: _call",
        "the thread that reads and writes stored responses, and the disk behind it",
        meanwhile="the event loop",
        bound="5 s (store.WAIT_S)",
        timed=False,
    ),
    _invariant(
        "api.store_lock",
        "api/responses/store_file.py: _db",
        "another process's transaction on the file of stored responses",
        protects="API processes that share the file see whole responses",
        test="unit/api/test_response_store.py::test_several_processes_share_it",
        bound="1 s (store_file.BUSY_S)",
        timed=False,
    ),
    _invariant(
        "api.drain",
        "api/server.py: _drain, leave, shutdown",
        "an API process that stops, for its calls",
        protects="what is in flight at SIGTERM is answered",
        test="contract/api/test_endpoints.py::test_draining_lets_work_finish",
        bound="--drain-timeout-s; then 0.5 s for who was just accepted, and 2 s for last events",
        timed=False,
    ),
    _idle(
        "api.live",
        "api/debug/feed.py: next, wait_round",
        "one who watches, for the next view of the engine",
        bound="0.25 s (feed.HEARTBEAT_S); where frames are dear, 2 s (feed.MAX_PERIOD_S)",
    ),
    _overlappable(
        "api.peers",
        "api/peers.py: listen, ask, _ask, _on_question, _body",
        "a call that is about all API processes, for the others' answers",
        meanwhile="the event loop",
        bound="1 s (peers.ANSWER_S)",
        timed=False,
    ),
    _overlappable(
        "api.scrapes",
        "api/admin.py: metrics",
        "a call for `/metrics`, for those that came in the same moment",
        meanwhile="the event loop, which gets a turn after each",
        bound="the time to render each of them",
        timed=False,
    ),
    _idle(
        "api.spans",
        "observability/otlp.py: _run, close",
        "the thread that sends spans, for spans; at the end, the server for the last of them",
        bound="PERIOD_S; CLOSE_S",
    ),
    _idle(
        "api.dead", "engine/client.py: gone", "an API process, for an engine that will not come again", bound="the end"
    ),
    _idle("api.loop", "api/server.py: startup, main_loop", "the server, for callers, and for its end", bound="SIGTERM"),
)

_ENGINE = (
    _overlappable(
        "engine.worker",
        "executor/remote.py: __init__",
        "the engine, for a worker that loads its model",
        meanwhile="API processes load their tokenizers and greet; their messages wait in the sockets",
        bound="the load; the worker's death is noticed as the end of the socket, its hanging by --hang-timeout-s",
        timed=False,
    ),
    _shrinkable(
        "engine.step",
        "scheduler/planner.py: _admissible",
        "a request, for the next step to be planned",
        lever="shorter steps (--max-num-batched-tokens)",
        bound="a step",
    ),
    _invariant(
        "engine.slots",
        "scheduler/planner.py: _n_places",
        "a request, for a running one to leave: as many run as may",
        protects="a slot of the worker belongs to one choice",
        test="unit/scheduler/test_waits.py::test_without_the_wait_for_a_slot_two_choices_would_share_one",
        bound="--max-queue-wait-s, the request's deadline",
    ),
    _invariant(
        "engine.blocks",
        "scheduler/planner.py: _admissible, _find_block",
        "a request, for blocks of the KV cache",
        protects="no more blocks are promised than there are",
        test="unit/scheduler/test_waits.py::test_without_the_wait_for_blocks_the_pool_is_overdrawn",
        bound="--max-queue-wait-s, the request's deadline",
    ),
    _shrinkable(
        "engine.budget",
        "scheduler/planner.py: _serve_prefill",
        "a request, for tokens of a step that others have got",
        lever="--max-num-batched-tokens: more of them let more prompts in and lengthen the steps of those that run",
        bound="nobody is overtaken for ever: the oldest has a quarter of the prompts' tokens",
    ),
    _shrinkable(
        "engine.turn",
        "scheduler/planner.py: _serve_decode, _serve_chunk",
        "a running choice that is in no step: others' turn, or no block is free yet",
        lever="--max-num-batched-tokens above --max-num-seqs, or a larger KV cache",
        bound="rows take turns",
    ),
    _invariant(
        "engine.held",
        "scheduler/scheduler.py: _queue_held",
        "a choice, for another one of its request to compute the prompt of both",
        protects="choices share their prompt's blocks and compute it once",
        test="unit/scheduler/test_choices.py::test_choices_wait_until_the_prompt_is_launched",
        bound="the prompt",
        timed=False,
    ),
    _invariant(
        "engine.preempting",
        "scheduler/scheduler.py: _pass_fence",
        "a choice that lost its place, for the steps in flight that still have it",
        protects="no block is given away while a step in flight uses it, and no token that was drawn is lost",
        test="unit/scheduler/test_waits.py::test_without_the_drain_a_preempted_choice_frees_blocks_in_use",
        bound="two steps",
    ),
    _invariant(
        "engine.fence",
        "scheduler/scheduler.py: _pass_fence",
        "the blocks and the slot of a choice that has ended, for the steps in flight that use them",
        protects="no step writes a block that another choice holds",
        test="unit/scheduler/test_waits.py::test_without_the_fence_a_step_in_flight_uses_blocks_of_others",
        bound="two steps",
    ),
    _invariant(
        "engine.suspects",
        "engine/quarantine.py: next",
        "a request that was there at a crash, for another suspect to prove harmless",
        protects="a second crash has one cause, and everybody else goes on",
        test="e2e/test_restart.py::test_a_poisonous_request_is_failed_and_nobody_else",
        bound="one token of each suspect before it",
        timed=False,
    ),
    _overlappable(
        "engine.outbox",
        "engine/engine_process.py: _flush",
        "tokens that were committed, for the next step to be planned and sent: the worker comes first",
        meanwhile="the worker gets its next step",
        bound="a turn of the loop",
        timed=False,
    ),
    _overlappable(
        "engine.collect",
        "executor/remote.py: collect",
        "a caller without a loop of its own, for the oldest step",
        meanwhile="the next step is sent already",
        bound="a step",
        timed=False,
    ),
)

_WORKER = (
    _idle(
        "worker.engine",
        "engine/worker_process.py: _greet",
        "a loaded worker, for an engine",
        bound="the engine's start",
    ),
    _shrinkable(
        "worker.reply_socket",
        "engine/worker_process.py: serve_engine",
        "the worker, for the engine to take a result that the socket's buffer has no room for",
        lever="the buffer: 1 MiB, which holds any result without log-probabilities of prompts",
        bound="a turn of the engine's loop",
        timed=False,
    ),
    _invariant(
        "worker.masks",
        "sampler/grammar_slots.py: finish, close",
        "the sampler, for the masks of grammars, which a thread makes while the model computes",
        protects="a row with a grammar draws only what the grammar allows",
        test="unit/structured/test_enforcement.py::test_every_walk_is_valid",
        bound="structured/check.py bounds what a grammar may cost",
        timed=False,
    ),
    _invariant(
        "worker.chunks",
        "native/kernels/thread_pool.h: wait_for",
        "compute threads, for each other's part of an operation",
        protects="an operation reads what all of the one before has written; threads change no bit",
        test="unit/executor/native/test_native_program.py::test_chunks_batches_and_threads_change_no_bit",
        bound="the longest part; a waiting thread spins, then sleeps",
        timed=False,
    ),
)

_SUPERVISOR = (
    _idle(
        "supervisor.events",
        "engine/supervisor.py: _watch, _goes_on",
        "the supervisor, for signals, deaths and readiness",
    ),
    _invariant(
        "supervisor.readiness",
        "engine/supervisor.py: _on_readiness",
        "the announcement of the address, for every API process to be ready",
        protects="who reads the address gets an answer",
        test="e2e/test_processes.py::test_a_child_that_dies_at_the_start_ends_the_server",
        bound="the model's load; a child's death ends it",
        timed=False,
    ),
    _invariant(
        "supervisor.backoff",
        "engine/supervisor.py: _on_death",
        "a process that crashed again, for its next start",
        protects="a crash loop ends with a status instead of using the machine up",
        test="e2e/test_processes.py::test_a_crash_loop_ends_the_server_with_a_status",
        bound="5 s",
        timed=False,
    ),
    _invariant(
        "supervisor.drain",
        "engine/supervisor.py: _drains_on, _is_drained",
        "the end of a server, for API processes that drain",
        protects="what is in flight at SIGTERM is answered",
        test="e2e/test_guarding.py::test_sigterm_drains",
        bound="--drain-timeout-s and 2 s; another signal",
        timed=False,
    ),
    _invariant(
        "supervisor.stop",
        "engine/supervisor.py: _stop, _spawn",
        "the end of a server, for its processes",
        protects="no process outlives its server",
        test="e2e/test_processes.py::test_a_signal_stops_everything_within_two_seconds",
        bound="then they are killed",
        timed=False,
    ),
    _idle(
        "supervisor.life",
        "engine/life.py: _watch",
        "a thread of every process, for the supervisor's end",
    ),
    _overlappable(
        "supervisor.log",
        "log_stream.py: write, close, _empty, _hand_on, can_write",
        "a thread of any process, for somebody to read standard error",
        meanwhile="the process goes on; what it says is kept, up to 256 KiB",
        bound="beyond that, lines are lost and counted",
        timed=False,
    ),
)

_STORE = (
    _invariant(
        "store.lock",
        "model_store/store.py: pull, remove, _locked",
        "a command, for another one that fetches or removes the same model",
        protects="a model's files are one whole download",
        test="unit/model_store/test_store.py::test_concurrent_pulls",
        timed=False,
    ),
    _overlappable(
        "store.fetch",
        "model_store/wheels.py: show, _progress",
        "a command, for a download",
        meanwhile="its progress is shown",
        timed=False,
    ),
    _invariant(
        "store.synthetic",
        "model_file/synthetic.py: cached, remove_leftovers",
        "a command, for another one that writes the same synthetic model",
        protects="such a file is made once",
        test="unit/model_file/test_synthetic.py::test_a_file_is_made_once",
        timed=False,
    ),
)

WAITS: tuple[Site, ...] = (*_API, *_ENGINE, *_WORKER, *_SUPERVISOR, *_STORE)
"""Beside those in `sites.py` that the hot paths know by constants of their own."""
