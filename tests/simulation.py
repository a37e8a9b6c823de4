"""The scheduler at work on a fake worker, with the promises checked as its deltas arrive.

`Simulation` is driven by unit tests, by the seeded simulation and by the Hypothesis state machine alike. It knows what
each request must produce (P2), that each choice ends once (P3), and that nothing is left at the end (P4).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
from tests.fake_worker import END_ID, FakeWorker, embedding, expected_output, extend_tags

from sixfold.config import SchedulerConfig
from sixfold.kv_cache import Journal, KVCacheManager
from sixfold.messages import GenerateRequest, Sampling, StepPlan, TokenDelta
from sixfold.scheduler import Scheduler

EPOCH = 7
NO_FAULT = -1
STOP_STRING = "stop string"
"""How a choice ended that `finish_at` ended: no delta follows."""
ENDED_BEFORE = "ended before"

Key = tuple[int, int]
"""(uid, choice)"""


def digest_of_three(data: bytes) -> bytes:
    """A hash function with three values: nearly everything collides."""
    return bytes([sum(data) % 3])


class Ledger:
    """What an engine was asked and what it has said: every delta is compared with what the request says when alone
    (P2), and with what was said before (P3, `first_index`).

    Args:
        capacity_tokens: of the block pool; it bounds the length of outputs.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self.requests: dict[int, GenerateRequest] = {}
        self.outputs: dict[Key, list[int]] = {}
        self.first_deltas: dict[Key, TokenDelta] = {}
        self.finishes: dict[Key, str] = {}
        self._alone: dict[Key, tuple[list[int], str]] = {}

    def enter(self, request: GenerateRequest) -> None:
        """It was accepted."""
        self.requests[request.uid] = request
        for choice in range(request.n):
            key = (request.uid, choice)
            self.outputs[key] = list(request.delivered[choice]) if request.delivered else []
            self.first_deltas.pop(key, None)
            self._alone[key] = expected_output(request, choice, self._capacity_tokens)
        for choice in getattr(request, "ended", ()):  # of a replay: these have had their end
            self.finishes[request.uid, choice] = ENDED_BEFORE

    def take(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            key = (delta.uid, delta.choice)
            assert key not in self.finishes, f"{key} has ended and speaks"
            output = self.outputs[key]
            assert delta.first_index == len(output), f"{key}: a gap or an overlap"
            self._check_embedding(delta)
            if key not in self.first_deltas:
                self.first_deltas[key] = delta
                self._check_prompt_logprobs(delta)
            else:
                assert delta.prompt_logprobs is None and delta.n_cached == 0, "said once"
            output += delta.token_ids
            if delta.finish is not None:
                self.finishes[key] = delta.finish.reason
            self._check_output(key)

    def _check_prompt_logprobs(self, delta: TokenDelta) -> None:
        """With the first token of choice 0, one entry per prompt token but the first; the fake worker numbers them."""
        request = self.requests[delta.uid]
        if delta.prompt_logprobs is not None:
            assert request.prompt_logprobs is not None and delta.choice == 0
            assert [-entry.logprob for entry in delta.prompt_logprobs] == list(range(1, len(request.prompt_token_ids)))
        elif request.prompt_logprobs is not None and delta.choice == 0 and not delta.first_index:
            assert not delta.token_ids, "the prompt's log-probabilities are missing"

    def _check_embedding(self, delta: TokenDelta) -> None:
        """It comes with the ordinary end of a request that asks for it, and never else."""
        request = self.requests[delta.uid]
        expected = b""
        if request.pooling and delta.finish is not None and delta.finish.reason == "length":
            tags: list[int] = []
            extend_tags(tags, request.prompt_token_ids, request.script[0])
            expected = embedding(tags, request.pooling)
        assert delta.embedding == expected

    def _check_output(self, key: Key) -> None:
        (expected, ending), output, finish = self._alone[key], self.outputs[key], self.finishes.get(key)
        if finish in ("stop", "length", "error"):
            assert (output, finish) == (expected, ending), key
        else:
            assert output == expected[: len(output)], key

    def check_outputs(self) -> None:
        """What has been said so far is what each request says when it is alone."""
        for key in self.outputs:
            self._check_output(key)

    def check_finished(self) -> None:
        """Each choice has ended, and as it should."""
        self.check_outputs()
        assert self.finishes.keys() == self.outputs.keys(), "every choice ends"


class Simulation:
    """One engine without a model. Time is a number that the test moves.

    Args:
        num_blocks, block_size: the pool.
        config: fields of `SchedulerConfig`.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_slots: int = 8,
        pipeline_depth: int = 2,
        max_model_len: int = 4096,
        enable_prefix_caching: bool = True,
        collides: bool = False,
        **config: int | str,
    ) -> None:
        self.config = SchedulerConfig(**config)  # type: ignore[arg-type]
        journal = memoryview(bytearray(Journal.size(num_blocks, block_size)))

        def new_engine() -> tuple[KVCacheManager, Scheduler]:
            kv = KVCacheManager(
                num_blocks,
                block_size,
                enable_prefix_caching=enable_prefix_caching,
                hash_key=b"simulation",
                digest=digest_of_three if collides else None,
                journal=Journal(journal, num_blocks, block_size),
            )
            return kv, Scheduler(
                self.config,
                kv,
                max_model_len=max_model_len,
                engine_epoch=EPOCH,
                max_slots=max_slots,
                pipeline_depth=pipeline_depth,
            )

        self._new_engine = new_engine
        self.kv, self.scheduler = new_engine()
        self.known: set[int] = set()
        """Requests that the engine of now was asked."""
        self._n_finished_before = 0
        """Choices that engines have ended which are gone."""
        self.worker = FakeWorker(num_blocks, block_size, max_slots, pipeline_depth)
        self.now_s = 0.0
        self.ledger = Ledger(self.kv.capacity_tokens)
        self.requests = self.ledger.requests
        self.outputs = self.ledger.outputs
        self.first_deltas = self.ledger.first_deltas
        self.finishes = self.ledger.finishes
        self.plans: list[StepPlan] = []
        self._uids = itertools.count(1)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        n: int = 1,
        seed: int = 0,
        salt: int = 0,
        fault_at: int = NO_FAULT,
        stops: bool = False,
        min_tokens: int = 0,
        logprobs: int | None = None,
        grammar: str = "",
        **fields: object,
    ) -> int:
        """Queue a request and return its uid. `fault_at`: output index at which its logits are NaN."""
        uid = next(self._uids)
        stop_token_ids = (END_ID,) if stops else ()
        request = GenerateRequest(
            uid=uid,
            prompt_token_ids=list(prompt),
            max_tokens=max_tokens,
            n=n,
            sampling=Sampling(
                seed=seed, stop_token_ids=stop_token_ids, min_tokens=min_tokens, logprobs=logprobs, grammar=grammar
            ),
            cache_salt=str(salt),
            script=(salt, fault_at),
            **fields,  # type: ignore[arg-type]
        )
        self.submit_request(request)
        return uid

    def submit_request(self, request: GenerateRequest) -> None:
        self.scheduler.add(request, self.now_s)
        self.ledger.enter(request)
        self.known.add(request.uid)

    def abort(self, uid: int) -> None:
        self.ledger.take(self.scheduler.abort(uid))

    def finish_at(self, uid: int, choice: int, n_tokens: int) -> None:
        self.sleep(0)  # An end that is already known is told first, as the engine's loop does.
        self.scheduler.finish_at(uid, choice, n_tokens)
        if (uid, choice) in self.outputs and (uid, choice) not in self.finishes:
            self.finishes[uid, choice] = STOP_STRING

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.ledger.take(self.scheduler.expire(self.now_s))

    def restart(self) -> None:
        """The engine is gone with whatever was outstanding; the next one adopts the worker's blocks and is told what
        is open once more."""
        self._n_finished_before += sum(self.scheduler.stats().finished.values())
        self.kv, self.scheduler = self._new_engine()
        self.worker.attach()
        self.known.clear()
        for uid, request in list(self.requests.items()):
            ended = tuple(choice for choice in range(request.n) if (uid, choice) in self.finishes)
            if len(ended) < request.n:
                delivered = tuple(tuple(self.outputs[uid, choice]) for choice in range(request.n))
                changes = {"attempt": request.attempt + 1, "delivered": delivered, "ended": ended, "deadline_s": None}
                self.submit_request(msgspec.structs.replace(request, **changes))  # type: ignore[arg-type]

    # ---- steps ------------------------------------------------------------------------------------------------------

    def launch(self) -> StepPlan | None:
        """Plan and submit one step, if there is one."""
        before = self.scheduler.stats()
        plan = self.scheduler.plan()
        again = self.scheduler.plan()
        after = msgspec.structs.replace(self.scheduler.stats(), waiting_for=before.waiting_for)
        assert plan == again and after == before, "planning changes nothing"
        if plan is None:
            return None
        self.kv.reserve(plan)
        message = self.scheduler.launch(plan, self.now_s)
        assert message.n_tokens <= self.config.max_num_batched_tokens
        assert message.n_rows <= self.config.max_num_seqs
        self.worker.submit(message)
        self.plans.append(message)
        return message

    def commit(self) -> None:
        """Take the oldest step's result."""
        self.ledger.take(self.scheduler.commit(self.worker.collect(), self.now_s))

    def step(self) -> None:
        """One turn of the engine's loop."""
        self.ledger.take(self.scheduler.expire(self.now_s))
        while self.launch() is not None:
            pass
        if self.scheduler.n_outstanding:
            self.commit()
        else:
            assert not self.scheduler.has_work, "there is work and nothing runs"

    def run(self) -> None:
        """Until every choice has ended; then all promises are checked."""
        while self.scheduler.has_work:
            self.step()
            self.scheduler.check()
        self.check_finished()

    # ---- promises ---------------------------------------------------------------------------------------------------

    def check_outputs(self) -> None:
        self.ledger.check_outputs()

    def check_finished(self) -> None:
        """P2, P3, P4, once no work is left."""
        self.ledger.check_finished()
        assert not self.worker.slots, "the worker still holds a slot"
        assert self.kv.n_free + self.kv.n_cached == self.kv.num_blocks
        stats = self.scheduler.stats()
        assert stats.running == stats.waiting == 0
        assert self._n_finished_before + sum(stats.finished.values()) >= len(self.finishes)
        self.scheduler.check()
