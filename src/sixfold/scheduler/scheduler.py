"""The scheduler: from requests to steps, from results to deltas. The algorithm:

    add      refuse what can never fit or is too much now; else the choices wait in the policy's order
    plan     decide the next step, changing nothing (planner.py)
    launch   act on the decision: slots and positions move on as if the step had happened, and the worker is told.
             Up to `pipeline_depth` steps are outstanding: a decode row for step n + 1 needs no answer from step n,
             because the worker knows the token that it drew
    commit   match the oldest step's rows by key; append each token to its choice, if that has not ended meanwhile; seal
             full blocks; end choices; emit deltas
    fence    when the last outstanding step that refers to a choice is committed, an ended or preempted choice gives its
             slot and blocks back

Whatever ends a choice (stop id, length, abort, deadline, stop string, error) goes through `_close`, once. What state a
choice can be in, and what each of its numbers means, is drawn in sequence.py.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from sixfold.config import SchedulerConfig
from sixfold.errors import DeadlineExceeded, ProtocolError
from sixfold.kv_cache import KVCacheManager
from sixfold.messages import (
    EMBED,
    PROMPT_LOGPROBS,
    SAMPLE,
    EngineStats,
    EngineView,
    Finish,
    FinishReason,
    GenerateRequest,
    RowStatus,
    StepPlan,
    StepResult,
    TokenDelta,
)
from sixfold.observability.history import Reason
from sixfold.scheduler.admission import AdmissionLimits, FinishPace
from sixfold.scheduler.chronicle import Chronicle
from sixfold.scheduler.counters import Counters
from sixfold.scheduler.deltas import end_after, fault, last_delta, token_delta
from sixfold.scheduler.plan import Plan, Row
from sixfold.scheduler.planner import Planner
from sixfold.scheduler.queue import make_policy, make_queue
from sixfold.scheduler.register import Register
from sixfold.scheduler.sequence import Request, Sequence, State
from sixfold.scheduler.slots import SlotTable
from sixfold.scheduler.step_messages import (
    LaunchedStep,
    check_result,
    embedding_of,
    scored_prompt,
    slot_admit,
    write_rows,
)
from sixfold.scheduler.view import choice_views

__all__ = ["Scheduler"]

_by_rank = attrgetter("rank")


class Scheduler:
    """Owner of every request in the engine.

    Args:
        kv_cache: the block pool; the engine calls its `reserve` between `plan` and `launch`.
        max_model_len: longest prompt plus output, in tokens.
        engine_epoch: stamped on every step.
        max_slots: rows that the worker has.
        pipeline_depth: steps that may be outstanding.
        chronicle: hears what happens to each choice.
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
        chronicle: Chronicle | None = None,
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

        self._register = Register()
        self._queue = make_queue(self._policy)
        self._running: list[Sequence] = []
        """RUNNING, sorted by rank."""
        self._draining: set[Sequence] = set()
        """PREEMPTING and CLOSING."""
        self._slots = SlotTable(max_slots)
        self._outstanding: deque[LaunchedStep] = deque()
        self._planner = Planner(
            kv_cache,
            running=self._running,
            draining=self._draining,
            queue=self._queue,
            slots=self._slots,
            max_running=max_running,
            max_tokens=config.max_num_batched_tokens,
        )

        self._undelivered: list[TokenDelta] = []
        """Ends of replayed choices that had nothing left to do; `expire` hands them out."""
        self._next_serial = 0
        self._next_step_id = 0
        self._n_committed = 0
        """Steps that are not outstanding any more: id of the oldest one that is, or will be."""
        self._next_turn = 0
        self._n_open = 0
        """Choices that have not ended."""
        self._n_queued_tokens = 0
        """Prompt tokens of requests of which no choice has started."""
        self._counters = Counters()
        self._chronicle = chronicle or Chronicle()

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
        """Whether anything is left to plan, to commit or to deliver."""
        return bool(self._n_open or self._outstanding or self._slots.has_unannounced or self._undelivered)

    def stats(self) -> EngineStats:
        counters = self._counters
        n_preempting = sum(sequence.state is State.PREEMPTING for sequence in self._draining)
        n_running = len(self._running) + n_preempting
        return EngineStats(
            engine_epoch=self._engine_epoch,
            running=n_running,
            waiting=self._n_open - n_running,
            blocks_total=self._kv.num_blocks,
            blocks_free=self._kv.n_free,
            blocks_cached=self._kv.n_cached,
            blocks_adopted=self._kv.n_adopted,
            blocks_rejected=self._kv.n_rejected,
            steps=self._next_step_id,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            wasted_rows=counters.wasted_rows,
            mixed_steps=counters.mixed_steps,
            waiting_for=self._waiting_for(),
            prefilled_tokens=counters.prefilled_tokens,
            decode_rows=counters.decode_rows,
            step_prefill_tokens=counters.step_prefill_tokens,
            step_decode_rows=counters.step_decode_rows,
            queued_tokens=self._n_queued_tokens,
            queue_wait_s=(self._n_open - n_running) * self._pace.place_s(),
            run_s=n_running * self._pace.place_s(),  # Little's law
            place_s=self._pace.place_s(),
            finished=dict(counters.finished),
        )

    def _waiting_for(self) -> dict[str, int]:
        """Why choices wait, as far as any do: what the latest plan lacked keeps the queue's head, and all behind it."""
        n_queued = len(self._queue)
        n_held = self._n_open - len(self._running) - n_queued
        n_held -= sum(sequence.state is State.PREEMPTING for sequence in self._draining)
        reasons = {"leader": n_held} if n_held else {}
        if n_queued:
            n_preempted = sum(sequence.incarnation > 0 for sequence in self._queue)
            if n_preempted:
                reasons["preempted"] = n_preempted
            if n_queued > n_preempted:
                reasons[self._planner.waits_for.name.lower()] = n_queued - n_preempted
        return reasons

    def view(self, now_ns: int) -> EngineView:
        """A picture of all this, for people; see `EngineView`."""
        holders = [*self._running, *self._draining]
        per_cell, cells = self._kv.block_map([(s.slot, s.table) for s in holders if s.slot >= 0])
        return EngineView(
            engine_epoch=self._engine_epoch,
            step_id=self._next_step_id,
            time_ns=now_ns,
            outstanding=len(self._outstanding),
            stats=self.stats(),
            choices=choice_views(self._running, self._draining, self._queue, self._planner.waits_for),
            blocks_per_cell=per_cell,
            cells=cells,
        )

    # ---- requests come and go ---------------------------------------------------------------------------------------

    def add(self, message: GenerateRequest, now_s: float) -> None:
        """Accept a request: from now on each choice gets exactly one terminal event.

        A repeated `(uid, attempt)` and a stale attempt change nothing; a higher attempt replaces the older one.

        Raises:
            InvalidRequest: the request is malformed, or was aborted before it came.
            ContextLengthExceeded: it can never fit; the message names the numbers.
            DeadlineExceeded: its deadline has passed.
            Overloaded: the bounded queue is full.
        """
        if self._register.is_repeated(message):
            return
        limit = self._limits.output_limit(message)
        if message.deadline_s is not None and message.deadline_s <= now_s:
            raise DeadlineExceeded("the deadline passed before the request was queued")
        self._limits.check_room(message, n_open=self._n_open, n_queued_tokens=self._n_queued_tokens, pace=self._pace)

        older = self._register.get(message.uid)
        if older is not None:
            self._end_all(older, Finish("abort"))
        request = self._enter(message, limit)
        for choice in message.ended:
            self._close(request.sequences[choice], "abort")
        for sequence in request.sequences:
            if not sequence.is_open:
                continue
            # A replay: perhaps the crash came between a choice's last token and its terminal event.
            finish = end_after(sequence, sequence.token_ids[-1]) if sequence.n_output else None
            if finish is not None:
                self._finish(sequence, finish, self._undelivered)
        self._ensure_leader(request)

    def abort(self, uid: int) -> list[TokenDelta]:
        """End every open choice of a request. Idempotent; an unknown uid is refused should it come later."""
        request = self._register.get(uid)
        if request is None:
            self._register.refuse_later(uid)
            return []
        request.is_aborted = True
        return self._end_all(request, Finish("abort"))

    def finish_at(self, uid: int, choice: int, n_tokens: int) -> None:
        """The API process found a stop string after `n_tokens` output tokens and has told its client: end the choice.

        No delta follows. Idempotent: a choice that has ended, or is unknown, stays as it is.
        """
        request = self._register.get(uid)
        if request is None or not 0 <= choice < len(request.sequences):
            return
        sequence = request.sequences[choice]
        if sequence.is_open:
            self._close(sequence, "stop")

    def expire(self, now_s: float) -> list[TokenDelta]:
        """End with `timeout` whatever has passed its deadline, waiting or running."""
        deltas, self._undelivered = self._undelivered, []
        for request in self._register.pop_expired(now_s):
            deltas += self._end_all(request, Finish("timeout"))
        return deltas

    def _enter(self, message: GenerateRequest, limit: int) -> Request:
        urgency = message.priority if self._uses_priority else 0
        request = Request(message, self._policy.enter(message), urgency)
        serial, self._next_serial = self._next_serial, self._next_serial + 1
        prompt = message.prompt_token_ids
        for choice in range(message.n):
            delivered = message.delivered[choice] if message.delivered else ()
            token_ids = [*prompt, *delivered]
            sequence = Sequence(request, choice, serial, token_ids, limit)
            twin = request.sequences[0].table if choice else None
            sequence.table = self._kv.new_table(token_ids, salt=message.cache_salt, twin=twin, n_common=len(prompt))
            request.sequences.append(sequence)
            if choice:
                self._chronicle.held(sequence)
        request.n_unclosed = message.n
        self._n_open += message.n
        self._n_queued_tokens += len(prompt)
        self._register.enter(request)
        return request

    def _ensure_leader(self, request: Request) -> None:
        """One open choice computes the prompt; the others are held until it is launched."""
        if not any(sequence.is_open and sequence.state is not State.HELD for sequence in request.sequences):
            self._queue_held(request, n_max=1)

    def _queue_held(self, request: Request, n_max: int) -> None:
        held = [sequence for sequence in request.sequences if sequence.state is State.HELD]
        for sequence in held[:n_max]:
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        self._chronicle.queued(sequence, again=sequence.state is State.PREEMPTING)
        sequence.state = State.WAITING
        self._queue.push(sequence)

    # ---- a step -----------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Decide the next step; changes nothing. None when nothing can run now, or enough steps are outstanding."""
        if len(self._outstanding) >= self._pipeline_depth:
            return None
        plan = self._planner.plan(self._next_step_id, self._n_committed)
        if plan is None:
            self._tell_reason()
        if plan is None and self._slots.has_unannounced and not self._outstanding:
            return Plan(self._next_step_id)
        return plan

    def launch(self, plan: Plan, now_s: float = 0.0) -> StepPlan:
        """Act on a plan whose blocks were reserved; the returned message is for the worker, and must be sent."""
        assert plan.step_id == self._next_step_id, "a plan is launched before the next one is made"
        step_id, self._next_step_id = plan.step_id, plan.step_id + 1
        for sequence in plan.preempted:
            self._counters.preemptions += 1
            self._running.remove(sequence)
            sequence.state = State.PREEMPTING
            self._chronicle.preempted(sequence)
            self._draining.add(sequence)
            self._pass_fence(sequence)
        step = StepPlan(
            engine_epoch=self._engine_epoch,
            step_id=step_id,
            frees=self._slots.announce(),
            copies=list(plan.copies),
        )
        fork_parents: list[Sequence] = []
        n_decode, turn = 0, self._next_turn
        for row in plan.rows:
            sequence, end = row.sequence, row.end
            if row.prefix is not None:
                self._admit(row, now_s)
                step.admits.append(slot_admit(sequence))
                if row.fork_parent is not None:
                    row.fork_parent.last_step = step_id
                    fork_parents.append(row.fork_parent)
            # From here on the row's tokens count as computed, and the one that it draws as known.
            if end == sequence.n_known and sequence.limit:
                row.flags = SAMPLE
                if end < sequence.target:
                    sequence.n_known = end + 1
            sequence.n_planned = end
            sequence.last_step = step_id
            sequence.last_turn = turn
            turn += 1
            if row.start < sequence.n_prompt:
                self._read_prompt(row)
            elif end == row.start + 1:
                n_decode += 1
        self._next_turn = turn
        sequences = write_rows(step, plan, self._outstanding[-1] if self._outstanding else None)
        self._chronicle.launched(step, plan.rows)
        self._tell_reason()
        counters = self._counters
        counters.mixed_steps += 0 < n_decode < len(plan.rows)
        counters.step_decode_rows = n_decode
        counters.step_prefill_tokens = step.n_tokens - n_decode
        counters.decode_rows += n_decode
        counters.prefilled_tokens += counters.step_prefill_tokens
        self._outstanding.append(LaunchedStep(step, plan.rows, sequences, fork_parents))
        return step

    def _tell_reason(self) -> None:
        """Why those wait that the latest plan leaves in the queue."""
        self._chronicle.waits_for(self._planner.waits_for if len(self._queue) else Reason.STEP)

    def _admit(self, row: Row, now_s: float) -> None:
        """Give the row's sequence a slot."""
        sequence, request = row.sequence, row.sequence.request
        self._chronicle.admitted(sequence, self._next_step_id - 1)
        self._queue.admit(sequence)
        self._policy.admitted(request)
        if not request.has_started:
            request.has_started = True
            request.started_s = now_s
            self._counters.prompt_tokens += sequence.n_prompt
            self._n_queued_tokens -= sequence.n_prompt
        if sequence.choice == 0 and sequence.last_turn < 0:
            sequence.n_cached = min(row.start, sequence.n_prompt)
            self._counters.cached_tokens += sequence.n_cached
        sequence.state = State.RUNNING
        insort(self._running, sequence, key=_by_rank)
        sequence.slot, sequence.generation = self._slots.take()

    def _read_prompt(self, row: Row) -> None:
        """What is wanted of the part of a prompt that the row computes; with its end, the other choices may begin."""
        sequence = row.sequence
        if not sequence.limit and sequence.request.message.pooling:
            row.flags = EMBED
        if sequence.prompt_logprobs is not None and row.start < sequence.n_prompt - 1:
            row.flags |= PROMPT_LOGPROBS
        if sequence.n_prompt <= row.end and sequence.limit:
            self._queue_held(sequence.request, n_max=sequence.request.message.n)

    def commit(self, result: StepResult, now_s: float) -> list[TokenDelta]:
        """Apply the oldest outstanding step. Returns one delta per open choice that drew a token or ended.

        Raises:
            ProtocolError: the result is of another engine or step, or does not answer its rows.
        """
        oldest = self._outstanding[0] if self._outstanding else None
        launched = check_result(result, oldest, self._engine_epoch)
        self._outstanding.popleft()
        self._n_committed += 1
        n_open_before = self._n_open
        deltas: list[TokenDelta] = []
        running, preempting = State.RUNNING, State.PREEMPTING  # looking up a member is slow in Python 3.11
        token_ids, logprobs = result.token_ids, result.logprobs
        ok, sample, block_size, n_drawn = RowStatus.OK, SAMPLE, self._kv.block_size, 0
        for index, row in enumerate(launched.rows):
            sequence, end, status = row.sequence, row.end, result.status[index]
            if status != ok:
                # Whatever these blocks hold, nobody else shall reuse it.
                self._kv.distrust(row.table)
            if sequence.state is not running and sequence.state is not preempting:
                self._counters.wasted_rows += 1
            elif status != ok:
                self._finish(sequence, fault(status), deltas)
            else:
                sequence.n_computed = end
                if sequence.prompt_logprobs is not None:
                    sequence.prompt_logprobs += scored_prompt(result, index, row)
                if end // block_size > len(row.table.nodes):
                    self._kv.seal(row.table, end)
                if row.flags & sample:
                    n_drawn += 1
                    token_id = token_ids[index]
                    if token_id < 0:
                        raise ProtocolError(f"result of step {result.step_id} lacks a token")
                    sequence.token_ids.append(token_id)
                    # The limit is reached with the token behind the target.
                    may_end = end >= sequence.target or token_id in sequence.stop_ids
                    finish = end_after(sequence, token_id) if may_end else None
                    scores = logprobs.get(index) if logprobs else None
                    deltas.append(token_delta(sequence, token_id, scores, finish))
                    if finish is not None:
                        self._close(sequence, finish.reason)
                elif not sequence.limit and end == sequence.n_prompt:
                    self._finish(sequence, Finish("length"), deltas, embedding_of(result, index, row))
            if sequence.state is not running:
                self._pass_fence(sequence)
        self._counters.generated_tokens += n_drawn
        for parent in launched.fork_parents:
            self._pass_fence(parent)
        self._pace.record(now_s, n_open_before - self._n_open, is_busy=len(self._queue) > 0)
        return deltas

    # ---- endings ----------------------------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, finish: Finish, deltas: list[TokenDelta], embedding: bytes = b"") -> None:
        """End a choice without a new token."""
        deltas.append(last_delta(sequence, finish, embedding))
        if not sequence.limit:
            # Choices of a prompt that is only scored have nothing of their own to do: they end with their leader.
            for other in sequence.request.sequences:
                if other.state is State.HELD and other is not sequence:
                    deltas.append(last_delta(other, finish))
                    self._close(other, finish.reason)
        self._close(sequence, finish.reason)

    def _end_all(self, request: Request, finish: Finish) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for sequence in request.sequences:
            if sequence.is_open:
                self._finish(sequence, finish, deltas)
        return deltas

    def _close(self, sequence: Sequence, reason: FinishReason) -> None:
        """The one way out. Frees the place at once, slot and blocks at the fence."""
        self._n_open -= 1
        self._counters.finished[reason] += 1
        self._chronicle.closed(sequence)
        state, sequence.state = sequence.state, State.CLOSING
        if state is State.WAITING:
            self._queue.remove(sequence)
        elif state is State.RUNNING:
            self._running.remove(sequence)
        self._draining.add(sequence)
        self._pass_fence(sequence)
        self._ensure_leader(sequence.request)

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _pass_fence(self, sequence: Sequence) -> None:
        """Where no outstanding step refers to a leaving sequence any more, take back what it holds."""
        if sequence.last_step >= self._n_committed or sequence not in self._draining:
            return
        self._draining.remove(sequence)
        if sequence.table.is_open:
            self._kv.release(sequence.table)
        if sequence.slot >= 0:
            self._slots.free(sequence.slot, sequence.generation)
            sequence.slot = -1
        if sequence.state is State.PREEMPTING:
            self._requeue(sequence)
        else:
            sequence.state = State.CLOSED
            self._chronicle.passed_fence(sequence)
            self._retire(sequence.request)

    def _requeue(self, sequence: Sequence) -> None:
        """A preempted choice waits again, at the head of its class, to compute what it knows anew."""
        sequence.incarnation += 1
        sequence.n_computed = sequence.n_planned = 0
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs.clear()
        self._enqueue(sequence)

    def _retire(self, request: Request) -> None:
        """One choice fewer; with the last one, the request is forgotten."""
        request.n_unclosed -= 1
        if request.n_unclosed:
            return
        if not request.has_started:
            self._n_queued_tokens -= len(request.message.prompt_token_ids)
        self._policy.leave(request)
        self._register.leave(request)
        # Each refers to the request: in its list, only the garbage collector would free them, with all their tokens.
        request.sequences = []

    # ---- integrity --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError unless all collections agree; with no work left, unless all are empty."""
        self._kv.check()
        self._register.check()
        by_state: dict[State, set[Sequence]] = {state: set() for state in State}
        for sequence in self._register.sequences():
            by_state[sequence.state].add(sequence)
        assert set(self._queue) == by_state[State.WAITING] and len(self._queue) == len(by_state[State.WAITING])
        assert set(self._running) == by_state[State.RUNNING] and sorted(self._running, key=_by_rank) == self._running
        if not self.has_work:
            assert not self._register and not self._draining and not self._n_queued_tokens
            assert self._slots.n_free == self._slots.n_slots
            assert self._kv.n_held == 0 and self._kv.n_free + self._kv.n_cached == self._kv.num_blocks
