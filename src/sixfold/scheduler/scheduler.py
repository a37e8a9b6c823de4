"""The scheduler: from requests to steps, from results to deltas. The algorithm:

    add      refuse what cannot fit or is too much; else the choices wait in the policy's order
    plan     decide the next step, changing nothing (planner.py)
    launch   act on the decision: slots and positions move on as if the step had happened, and the worker is told.
             Up to `pipeline_depth` steps are outstanding: a decode row for step n + 1 needs no answer from step n,
             because the worker knows the token that it drew
    commit   match the oldest step's rows by key; append each token to its choice, if that has not ended meanwhile; seal
             full blocks; end choices; emit deltas
    fence    when the last outstanding step that refers to a choice is committed, an ended or preempted choice gives its
             slot and blocks back

Whatever ends a choice (stop id, length, abort, deadline, stop string, error) goes through `_close`, once.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from sixfold.config import SchedulerConfig
from sixfold.errors import DeadlineExceeded, InvalidRequest, ProtocolError
from sixfold.kv_cache import KVCacheManager
from sixfold.messages import (
    PROMPT_LOGPROBS,
    SAMPLE,
    EngineStats,
    Finish,
    FinishReason,
    GenerateRequest,
    RowStatus,
    SlotAdmit,
    StepPlan,
    StepResult,
    TokenDelta,
    TokenLogprobs,
)
from sixfold.scheduler.admission import AdmissionLimits, FinishPace
from sixfold.scheduler.deadlines import Deadlines
from sixfold.scheduler.plan import Plan, Row
from sixfold.scheduler.planner import Planner
from sixfold.scheduler.queue import WaitingQueue, make_policy
from sixfold.scheduler.sequence import Request, Sequence, State
from sixfold.scheduler.slots import SlotTable

__all__ = ["Scheduler"]

TOMBSTONES_MAX = 1 << 16
"""Ended uids that are remembered (about 8 MB): a late duplicate is answered as before, a late `add` after `abort` is
refused."""

FAULTS = {
    RowStatus.NAN_LOGITS: "the model produced no usable logits for this request",
    RowStatus.SCRIPT_FAULT: "the script asked for a failure here",
}

_RowKey = tuple[int, int, int]
"""(slot, generation, incarnation)"""

_by_rank = attrgetter("rank")


class _Launched(NamedTuple):
    """An outstanding step."""

    step_id: int
    rows: dict[_RowKey, Row]
    fork_parents: list[Sequence]
    """Their blocks are read by the step's copies."""


class _Tombstone(NamedTuple):
    attempt: int
    is_aborted: bool


class Scheduler:
    """Owner of every request in the engine.

    Args:
        kv_cache: the block pool; the engine calls its `reserve` between `plan` and `launch`.
        max_model_len: longest prompt plus output, in tokens.
        engine_epoch: stamped on every step.
        max_slots: rows that the worker has.
        pipeline_depth: steps that may be outstanding.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        *,
        max_model_len: int,
        engine_epoch: int,
        max_slots: int,
        pipeline_depth: int,
    ) -> None:
        max_running = min(config.max_num_seqs, max_slots)
        self._kv = kv_cache
        self._engine_epoch = engine_epoch
        self._pipeline_depth = pipeline_depth
        self._uses_priority = config.scheduling_policy == "priority"
        self._limits = AdmissionLimits(
            config,
            max_running=max_running,
            max_model_len=max_model_len,
            capacity_tokens=kv_cache.capacity_tokens,
            block_size=kv_cache.block_size,
        )
        self._pace = FinishPace()
        self._policy = make_policy(config.scheduling_policy)

        self._requests: dict[int, Request] = {}
        self._tombstones: OrderedDict[int, _Tombstone] = OrderedDict()
        self._deadlines = Deadlines()
        self._queue = WaitingQueue()
        self._running: list[Sequence] = []
        """RUNNING, sorted by rank."""
        self._draining: set[Sequence] = set()
        """PREEMPTING and CLOSING."""
        self._slots = SlotTable(max_slots)
        self._outstanding: deque[_Launched] = deque()
        self._planner = Planner(
            kv_cache,
            running=self._running,
            draining=self._draining,
            queue=self._queue,
            slots=self._slots,
            max_running=max_running,
            max_tokens=config.max_num_batched_tokens,
        )

        self._n_added = 0
        self._n_open = 0
        """Choices that have not ended."""
        self._n_queued_tokens = 0
        """Prompt tokens of requests of which no choice has started."""
        self._next_step_id = 0
        self._n_preemptions = 0
        self._n_prompt_tokens = 0
        self._n_cached_tokens = 0
        self._n_generated_tokens = 0
        self._n_wasted_rows = 0
        self._n_mixed_steps = 0
        self._n_finished: dict[str, int] = {}

    # ---- what the engine asks ---------------------------------------------------------------------------------------

    @property
    def n_outstanding(self) -> int:
        """Steps launched and not committed."""
        return len(self._outstanding)

    @property
    def n_open(self) -> int:
        """Choices that still owe their terminal event."""
        return self._n_open

    @property
    def has_work(self) -> bool:
        """Whether anything is left to plan or to commit."""
        return bool(self._n_open or self._outstanding or self._slots.has_unannounced)

    def stats(self) -> EngineStats:
        n_preempting = sum(sequence.state is State.PREEMPTING for sequence in self._draining)
        n_running = len(self._running) + n_preempting
        return EngineStats(
            engine_epoch=self._engine_epoch,
            running=n_running,
            waiting=self._n_open - n_running,
            blocks_total=self._kv.num_blocks,
            blocks_free=self._kv.n_free,
            blocks_cached=self._kv.n_cached,
            steps=self._next_step_id,
            preemptions=self._n_preemptions,
            prompt_tokens=self._n_prompt_tokens,
            cached_tokens=self._n_cached_tokens,
            generated_tokens=self._n_generated_tokens,
            wasted_rows=self._n_wasted_rows,
            mixed_steps=self._n_mixed_steps,
            finished=dict(self._n_finished),
        )

    # ---- requests come and go ---------------------------------------------------------------------------------------

    def add(self, message: GenerateRequest, now_s: float) -> list[TokenDelta]:
        """Accept a request: from now on each choice gets exactly one terminal event.

        A repeated `(uid, attempt)` and a stale attempt change nothing; a higher attempt replaces the older one.

        Returns:
            Deltas to deliver at once: nearly always none, but a replayed choice may have ended already.

        Raises:
            InvalidRequest: the request is malformed, or was aborted before it came.
            ContextLengthExceeded: it can never fit; the message names the numbers.
            DeadlineExceeded: its deadline has passed.
            Overloaded: the bounded queue is full.
        """
        if self._is_repeated(message):
            return []
        limit = self._limits.output_limit(message)
        if message.deadline_s is not None and message.deadline_s <= now_s:
            raise DeadlineExceeded("the deadline passed before the request was queued")
        self._limits.check_room(message, n_open=self._n_open, n_queued_tokens=self._n_queued_tokens, pace=self._pace)

        older = self._requests.get(message.uid)
        if older is not None:
            self._end_all(older, Finish("abort"))
        request = self._enter(message, limit)
        deltas: list[TokenDelta] = []
        for sequence in request.sequences:
            finish = self._end_of_delivered(sequence)
            if finish is not None:
                self._finish(sequence, finish, deltas)
        self._queue_leader(request)
        return deltas

    def abort(self, uid: int) -> list[TokenDelta]:
        """End every open choice of a request. Idempotent; an unknown uid is refused should it come later."""
        request = self._requests.get(uid)
        if request is None:
            self._bury(uid, _Tombstone(attempt=0, is_aborted=True))
            return []
        request.is_aborted = True
        return self._end_all(request, Finish("abort"))

    def finish_at(self, uid: int, choice: int, n_tokens: int) -> None:
        """The API process found a stop string after `n_tokens` output tokens and has told its client: end the choice.

        No delta follows. Idempotent: a choice that has ended, or is unknown, stays as it is.
        """
        request = self._requests.get(uid)
        if request is None or not 0 <= choice < len(request.sequences):
            return
        sequence = request.sequences[choice]
        if sequence.is_open:
            self._close(sequence, "stop")

    def expire(self, now_s: float) -> list[TokenDelta]:
        """End with `timeout` whatever has passed its deadline, waiting or running."""
        deltas: list[TokenDelta] = []
        for uid in self._deadlines.pop_expired(now_s):
            deltas += self._end_all(self._requests[uid], Finish("timeout"))
        return deltas

    def _is_repeated(self, message: GenerateRequest) -> bool:
        """Whether this `add` was answered before.

        Raises:
            InvalidRequest: the request was aborted.
        """
        known = self._requests.get(message.uid) or self._tombstones.get(message.uid)
        if known is None:
            return False
        if known.is_aborted:
            raise InvalidRequest("the request was aborted before it was queued", code="aborted")
        return message.attempt <= known.attempt

    def _enter(self, message: GenerateRequest, limit: int) -> Request:
        urgency = message.priority if self._uses_priority else 0
        request = Request(message, self._policy.enter(message), urgency)
        serial, self._n_added = self._n_added, self._n_added + 1
        prompt = message.prompt_token_ids
        for choice in range(message.n):
            delivered = message.delivered[choice] if message.delivered else ()
            token_ids = [*prompt, *delivered]
            sequence = Sequence(request, choice, serial, token_ids, limit)
            twin = request.sequences[0].table if choice else None
            sequence.table = self._kv.new_table(token_ids, salt=message.cache_salt, twin=twin, n_common=len(prompt))
            request.sequences.append(sequence)
        request.n_unclosed = message.n
        self._n_open += message.n
        self._n_queued_tokens += len(prompt)
        self._requests[message.uid] = request
        self._tombstones.pop(message.uid, None)
        if message.deadline_s is not None:
            self._deadlines.add(message.uid, message.deadline_s)
        return request

    def _end_of_delivered(self, sequence: Sequence) -> Finish | None:
        """How a replayed choice had ended, if it had: the crash came between its last token and its terminal event."""
        if not sequence.n_output:
            return None
        return self._end_after(sequence, sequence.token_ids[-1])

    def _queue_leader(self, request: Request) -> None:
        """The first open choice computes the prompt; the others wait for it."""
        for sequence in request.sequences:
            if sequence.state is State.HELD:
                sequence.state = State.WAITING
                self._queue.push(sequence)
                return

    def _queue_held(self, request: Request) -> None:
        """The prompt is launched, or its leader is gone: the other choices follow."""
        for sequence in request.sequences:
            if sequence.state is State.HELD:
                sequence.state = State.WAITING
                self._queue.push(sequence)

    # ---- a step -----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Decide the next step; changes nothing. None when nothing can run now, or enough steps are outstanding."""
        if len(self._outstanding) >= self._pipeline_depth:
            return None
        plan = self._planner.plan(self._next_step_id)
        if plan is None and self._slots.has_unannounced and not self._outstanding:
            return Plan(self._next_step_id)
        return plan

    def launch(self, plan: Plan) -> StepPlan:
        """Act on a plan whose blocks were reserved; the returned message is for the worker, and must be sent."""
        assert plan.step_id == self._next_step_id, "a plan is launched before the next one is made"
        self._next_step_id += 1
        for sequence in plan.preempted:
            self._leave_running(sequence)
            self._n_preemptions += 1
            if sequence.n_steps_in_flight:
                sequence.state = State.PREEMPTING
                self._draining.add(sequence)
            else:
                self._requeue(sequence)
        step = StepPlan(
            engine_epoch=self._engine_epoch,
            step_id=plan.step_id,
            frees=self._slots.announce(),
            copies=list(plan.copies),
        )
        launched = _Launched(plan.step_id, {}, [])
        n_decode = 0
        for row in plan.rows:
            sequence = row.sequence
            if row.prefix is not None:
                step.admits.append(self._admit(row))
                if row.fork_parent is not None:
                    row.fork_parent.n_steps_in_flight += 1
                    launched.fork_parents.append(row.fork_parent)
            n_decode += row.start >= sequence.n_prompt and row.end == row.start + 1
            self._launch_row(row, step)
            launched.rows[sequence.slot, sequence.generation, sequence.incarnation] = row
        self._n_mixed_steps += 0 < n_decode < len(plan.rows)
        self._outstanding.append(launched)
        return step

    def _admit(self, row: Row) -> SlotAdmit:
        """Give the row's sequence a slot."""
        sequence, message = row.sequence, row.sequence.request.message
        self._queue.admit(sequence)
        self._policy.admitted(sequence.request)
        if sequence.choice == 0 and sequence.last_step_id < 0:
            sequence.n_cached = min(row.start, sequence.n_prompt)
            self._n_cached_tokens += sequence.n_cached
        if not sequence.request.has_started:
            self._start(sequence.request)
        sequence.state = State.RUNNING
        insort(self._running, sequence, key=_by_rank)
        sequence.slot, sequence.generation = self._slots.take()
        sequence.n_planned = row.start
        return SlotAdmit(
            slot=sequence.slot,
            generation=sequence.generation,
            incarnation=sequence.incarnation,
            token_ids=list(sequence.token_ids),
            n_prompt_original=sequence.n_prompt,
            choice=sequence.choice,
            sampling=message.sampling,
            prompt_logprobs=message.prompt_logprobs if sequence.prompt_logprobs is not None else None,
            script=message.script,
        )

    def _start(self, request: Request) -> None:
        request.has_started = True
        n_prompt = len(request.message.prompt_token_ids)
        self._n_prompt_tokens += n_prompt
        self._n_queued_tokens -= n_prompt

    def _launch_row(self, row: Row, step: StepPlan) -> None:
        """Move the sequence on, and write the row into the message."""
        sequence = row.sequence
        sequence.n_planned = row.end
        sequence.n_steps_in_flight += 1
        sequence.last_step_id = step.step_id
        if row.end == sequence.n_known and sequence.limit:
            row.flags = SAMPLE
            sequence.n_known += 1
        if sequence.prompt_logprobs is not None and row.start < sequence.n_prompt - 1:
            row.flags |= PROMPT_LOGPROBS
        if row.start < sequence.n_prompt <= row.end and sequence.limit:
            self._queue_held(sequence.request)

        step.slots.append(sequence.slot)
        step.generations.append(sequence.generation)
        step.incarnations.append(sequence.incarnation)
        step.starts.append(row.start)
        step.counts.append(row.end - row.start)
        step.flags.append(row.flags)
        blocks = row.table.blocks
        step.table_starts.append(row.first_new)
        step.table_counts.append(len(blocks) - row.first_new)
        if row.first_new < len(blocks):
            step.table_blocks.extend(blocks[row.first_new :])

    def commit(self, result: StepResult, now_s: float) -> list[TokenDelta]:
        """Apply the oldest outstanding step. Returns one delta per open choice that drew a token or ended.

        Raises:
            ProtocolError: the result is of another engine or step, or does not answer its rows.
        """
        launched = self._check_result(result)
        self._outstanding.popleft()
        n_open_before = self._n_open
        deltas: list[TokenDelta] = []
        for index, key in enumerate(zip(result.slots, result.generations, result.incarnations, strict=True)):
            row = launched.rows[key]
            sequence = row.sequence
            sequence.n_steps_in_flight -= 1
            if sequence.is_open:
                self._apply(row, index, result, deltas)
            else:
                self._n_wasted_rows += 1
            if not sequence.n_steps_in_flight and sequence.state is not State.RUNNING:
                self._pass_fence(sequence)
        for parent in launched.fork_parents:
            parent.n_steps_in_flight -= 1
            if not parent.n_steps_in_flight and parent.state is not State.RUNNING:
                self._pass_fence(parent)
        self._pace.record(now_s, n_open_before - self._n_open, is_busy=len(self._queue) > 0)
        return deltas

    def _check_result(self, result: StepResult) -> _Launched:
        if result.engine_epoch != self._engine_epoch:
            raise ProtocolError(f"result of engine epoch {result.engine_epoch}, this is {self._engine_epoch}")
        if not self._outstanding or result.step_id != self._outstanding[0].step_id:
            raise ProtocolError(f"result of step {result.step_id}, which is not the oldest outstanding one")
        launched = self._outstanding[0]
        n_rows = len(launched.rows)
        columns = (result.slots, result.generations, result.incarnations, result.token_ids, result.status)
        if any(len(column) != n_rows for column in columns):
            raise ProtocolError(f"result of step {result.step_id} has not {n_rows} rows")
        if launched.rows.keys() != set(zip(result.slots, result.generations, result.incarnations, strict=True)):
            raise ProtocolError(f"result of step {result.step_id} answers other rows than it was asked")
        return launched

    def _apply(self, row: Row, index: int, result: StepResult, deltas: list[TokenDelta]) -> None:
        """One row's result, for a choice that has not ended."""
        sequence = row.sequence
        status = result.status[index]
        if status != RowStatus.OK:
            # Whatever these blocks hold, nobody else shall reuse it.
            sequence.is_tainted = True
            message = FAULTS.get(status, "the worker reported an unknown fault")
            self._finish(sequence, Finish("error", message=message), deltas)
            return
        sequence.n_computed = row.end
        if row.flags & PROMPT_LOGPROBS:
            self._collect_prompt_logprobs(row, result.prompt_logprobs.get(index))
        if row.end // self._kv.block_size > len(row.table.nodes):
            self._kv.seal(row.table, row.end)
        if row.flags & SAMPLE:
            token_id = result.token_ids[index]
            if token_id < 0:
                raise ProtocolError(f"result of step {result.step_id} lacks a token")
            logprobs = result.logprobs.get(index)
            sequence.token_ids.append(token_id)
            self._n_generated_tokens += 1
            self._emit(sequence, token_id, logprobs, self._end_after(sequence, token_id), deltas)
        elif not sequence.limit and row.end == sequence.n_prompt:
            self._finish(sequence, Finish("length"), deltas)

    @staticmethod
    def _collect_prompt_logprobs(row: Row, entries: list[TokenLogprobs] | None) -> None:
        sequence = row.sequence
        n_expected = min(row.end, sequence.n_prompt - 1) - row.start
        if entries is None or len(entries) != n_expected or sequence.prompt_logprobs is None:
            raise ProtocolError("a result lacks the log-probabilities of its prompt tokens")
        sequence.prompt_logprobs += entries

    @staticmethod
    def _end_after(sequence: Sequence, token_id: int) -> Finish | None:
        """Whether the choice ends with its newest token. A stop id wins over the length."""
        n_output = sequence.n_output
        if token_id in sequence.stop_ids and n_output > sequence.request.message.sampling.min_tokens:
            return Finish("stop", stop_token_id=token_id)
        if n_output >= sequence.limit:
            return Finish("length")
        return None

    # ---- deltas and endings -----------------------------------------------------------------------------------------

    def _emit(
        self,
        sequence: Sequence,
        token_id: int,
        logprobs: TokenLogprobs | None,
        finish: Finish | None,
        deltas: list[TokenDelta],
    ) -> None:
        """A delta with the newest token, and the end if it is the last."""
        if sequence.has_spoken:
            prompt_logprobs, n_cached = None, 0
        else:
            prompt_logprobs, n_cached = self._first_words(sequence)
        deltas.append(
            TokenDelta(
                uid=sequence.request.uid,
                choice=sequence.choice,
                attempt=sequence.request.attempt,
                first_index=sequence.n_output - 1,
                token_ids=[token_id],
                logprobs=[logprobs] if logprobs is not None else None,
                prompt_logprobs=prompt_logprobs,
                n_cached=n_cached,
                finish=finish,
            )
        )
        if finish is not None:
            self._close(sequence, finish.reason)

    def _finish(self, sequence: Sequence, finish: Finish, deltas: list[TokenDelta]) -> None:
        """The terminal event of a choice that ends without a new token."""
        prompt_logprobs, n_cached = (None, 0) if sequence.has_spoken else self._first_words(sequence)
        deltas.append(
            TokenDelta(
                uid=sequence.request.uid,
                choice=sequence.choice,
                attempt=sequence.request.attempt,
                first_index=sequence.n_output,
                prompt_logprobs=prompt_logprobs if finish.reason == "length" else None,
                n_cached=n_cached,
                finish=finish,
            )
        )
        if not sequence.limit:
            # Choices of a prompt that is only scored have nothing of their own to do.
            for other in sequence.request.sequences:
                if other.state is State.HELD and other is not sequence:
                    other.state = State.WAITING
                    self._queue.push(other)
                    self._finish(other, finish, deltas)
        self._close(sequence, finish.reason)

    @staticmethod
    def _first_words(sequence: Sequence) -> tuple[list[TokenLogprobs] | None, int]:
        """What only the first delta of a choice carries."""
        sequence.has_spoken = True
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        return prompt_logprobs, sequence.n_cached

    def _end_all(self, request: Request, finish: Finish) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for sequence in request.sequences:
            if sequence.is_open:
                self._finish(sequence, finish, deltas)
        return deltas

    def _close(self, sequence: Sequence, reason: FinishReason) -> None:
        """The one way out. Frees the place at once, slot and blocks at the fence."""
        self._n_open -= 1
        self._n_finished[reason] = self._n_finished.get(reason, 0) + 1
        state, sequence.state = sequence.state, State.CLOSING
        if state is State.WAITING:
            self._queue.remove(sequence)
        elif state is State.RUNNING:
            self._leave_running(sequence)
        if sequence.n_steps_in_flight:
            self._draining.add(sequence)
        else:
            self._pass_fence(sequence)
        self._queue_held(sequence.request)

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _leave_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)

    def _pass_fence(self, sequence: Sequence) -> None:
        """No outstanding step refers to the sequence any more."""
        self._draining.discard(sequence)
        if sequence.state is State.PREEMPTING:
            self._kv.release(sequence.table)
            self._requeue(sequence)
        elif sequence.state is State.CLOSING:
            sequence.state = State.CLOSED
            if sequence.table.is_open:
                self._kv.release(sequence.table, forget=sequence.is_tainted)
            self._free_slot(sequence)
            self._retire(sequence.request)

    def _requeue(self, sequence: Sequence) -> None:
        """A preempted choice waits again, at the head of its class; its blocks are released already."""
        self._free_slot(sequence)
        sequence.incarnation += 1
        sequence.n_computed = sequence.n_planned = 0
        sequence.n_known = len(sequence.token_ids)
        if sequence.prompt_logprobs:
            sequence.prompt_logprobs = []
        sequence.state = State.WAITING
        self._queue.push(sequence)

    def _free_slot(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self._slots.free(sequence.slot, sequence.generation)
            sequence.slot = -1

    def _retire(self, request: Request) -> None:
        """One choice fewer; with the last one, nothing of the request remains but a tombstone."""
        request.n_unclosed -= 1
        if request.n_unclosed:
            return
        if not request.has_started:
            self._n_queued_tokens -= len(request.message.prompt_token_ids)
        self._policy.leave(request)
        if self._requests.get(request.uid) is request:
            del self._requests[request.uid]
            self._deadlines.remove(request.uid)
            self._bury(request.uid, _Tombstone(request.attempt, request.is_aborted))

    def _bury(self, uid: int, tombstone: _Tombstone) -> None:
        self._tombstones[uid] = tombstone
        self._tombstones.move_to_end(uid)
        if len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)

    # ---- integrity --------------------------------------------------------------------------------------------------

    def _sequences(self) -> Iterator[Sequence]:
        for request in self._requests.values():
            yield from request.sequences

    def check(self) -> None:
        """Raises AssertionError unless all collections agree; with no work left, unless all are empty."""
        self._kv.check()
        by_state: dict[State, set[Sequence]] = {state: set() for state in State}
        for sequence in self._sequences():
            by_state[sequence.state].add(sequence)
        assert set(self._queue) == by_state[State.WAITING] and len(self._queue) == len(by_state[State.WAITING])
        assert set(self._running) == by_state[State.RUNNING] and sorted(self._running, key=_by_rank) == self._running
        if not self.has_work:
            assert not self._requests and not self._draining and not self._deadlines and not self._n_queued_tokens
            assert self._slots.n_free == self._slots.n_slots
            assert self._kv.n_held == 0 and self._kv.n_free + self._kv.n_cached == self._kv.num_blocks
