"""A whole server under load on virtual time: API processes, engine, worker; all that happens follows from a seed.

What may happen to a request happens here: it meets others in small pools, waits, is preempted, is aborted, finds a stop
string, passes its deadline, is a suspect; messages are late, repeated, foreign and in pieces; a process reads slowly or
is gone; the engine crashes, also in the midst of a turn and by its own fault, or leaves, and its successor adopts the
worker's blocks and replays what was open. Checked after each turn of the engine, at each delivery, and at the end:

    P2  the tokens and the text of each choice are those of the request alone (`tests.fake_worker` computes them, and
        checks in each row that the blocks which it reads hold the row's own prefix)
    P3  each choice ends once, for a reason that it has
    P4  nothing is left: blocks, slots, entries in any process
    P5  who is disturbed is the disturbed request alone
"""

from __future__ import annotations

import asyncio
import codecs as text_codecs
import itertools
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.fake_worker import END_ID, VOCAB, FakeWorker, embedding, expected_output, extend_tags
from tests.simulation import NO_FAULT, digest_of_three
from tests.virtual.loop import VirtualLoop
from tests.virtual.processes import ApiProcess, EngineProcess, KilledError, Network, WorkerProcess, hello_of_process

from sixfold.api.access.keys import ANYBODY
from sixfold.api.admission.admission import Permit
from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.generation import Generation, TextOptions
from sixfold.api.http.errors import ClientGone
from sixfold.config import SchedulerConfig
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import DeadlineExceeded, EngineDead, NotReady, Overloaded, RequestFailed
from sixfold.kv_cache import Journal, KVCacheManager
from sixfold.messages import GenerateRequest, Sampling, WorkerFacts
from sixfold.transport import codecs

LATEST_S = 600.0
"""A run that is not over by then will never be."""

TOKEN_BYTES = [b"</s>", *(bytes([c]) for c in b"abcdefghijklmnop"), b" the", "é".encode(), b"\xf0\x9f", b"\x98\x80"]
TOKEN_BYTES += [b"\n", b"\xff", b"ab", b"cde", b"<", b"<stop>", b"op>", b"st"]
assert len(TOKEN_BYTES) == VOCAB
TOKENIZER = SimpleNamespace(token_bytes=TOKEN_BYTES, control_ids=frozenset({END_ID}))
STOPS = ("ab", "<stop>", "é", "cd", "the e", "\U0001f600", "\n")


def alone(request: GenerateRequest, choice: int, capacity: int, stops: tuple[str, ...]) -> tuple[list[int], str, str]:
    """(tokens, text, finish reason) of a choice that nobody disturbs, made as simply as can be."""
    tokens, reason = expected_output(request, choice, capacity)
    decoder, text = text_codecs.getincrementaldecoder("utf-8")("replace"), ""
    for n, token in enumerate(tokens, 1):
        text += "" if token == END_ID else decoder.decode(TOKEN_BYTES[token])
        # A stop string within a single token's text: the one that ends first counts, of those the longest.
        ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        if ends:
            end, length = min(ends)
            return tokens[:n], text[: end + length], "stop"
    return tokens, text + decoder.decode(b"", True), reason


class ServerSimulation:
    """One run. `run` raises where a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random = Random(seed)
        self._loop = VirtualLoop(LATEST_S)
        block_size = random.choice([2, 4, 16])
        num_blocks = random.randint(3, 24)
        depth = random.choice([1, 2])
        max_slots = random.randint(1, 6)
        self._capacity = num_blocks * block_size
        self._max_model_len = self._capacity + 20
        self._network = Network(
            self._loop, random, slowest_s=random.choice([0.0, 0.002, 0.03]), capacity=random.choice([60, 400, 1 << 20])
        )
        fake = FakeWorker(num_blocks, block_size, max_slots, depth)
        facts = WorkerFacts(1, num_blocks, max_slots, self._max_model_len, "virtual", 0, 0)
        self._worker = WorkerProcess(self._network, fake, facts, step_s=random.choice([0.0, 0.001, 0.01]))
        config = SchedulerConfig(
            max_num_seqs=random.randint(1, 6),
            max_num_batched_tokens=random.choice([1, 2, 3, 4, 7, 16, 64]),
            max_queued_requests=random.choice([4, 1000, 1000]),
            scheduling_policy=random.choice(["fcfs", "priority", "shortest", "fair"]),
        )
        caching, collides = random.random() < 0.8, random.random() < 0.3
        journal = memoryview(bytearray(Journal.size(num_blocks, block_size)))
        self._engine_of = lambda epoch: EngineProcess(
            self._network,
            self._worker,
            config,
            epoch=epoch,
            faults=self._faults,
            on_fault=self._on_own_fault,
            make_kv=lambda journal: KVCacheManager(
                num_blocks,
                block_size,
                enable_prefix_caching=caching,
                hash_key=b"simulation",
                digest=digest_of_three if collides else None,
                journal=journal,
            ),
            journal=journal,
            block_size=block_size,
            depth=depth,
        )
        self._stems = [[random.randrange(VOCAB) for _ in range(random.randint(1, 30))] for _ in range(3)]
        self._uids = itertools.count(1)
        self._epoch = 1
        self._faults = 0
        """Crashes of engines by their own fault."""
        self._engine = self._engine_of(self._epoch)
        self._is_restarting = False
        self._apis: list[ApiProcess] = []
        self.came: Counter[str] = Counter()
        """How often what happened: no promise shall hold because nothing did."""

    def run(self) -> Counter[str]:
        with mock.patch("time.monotonic", self._loop.time), mock.patch.object(codecs, "hello", hello_of_process):
            self._loop.run(self._main())
        return self.came

    async def _main(self) -> None:
        random = self._random
        for _ in range(random.choice([1, 1, 2])):
            await self._start_api()
        calls = [self._loop.create_task(self._call()) for _ in range(random.randint(1, 9))]
        troubles = []
        if random.random() < 0.4:
            troubles = [self._loop.create_task(self._crash_engine()) for _ in range(random.randint(1, 3))]
        if random.random() < 0.15:
            troubles.append(self._loop.create_task(self._replace_api()))
        if random.random() < 0.2:
            troubles.append(self._loop.create_task(self._forget_prefixes()))
        await asyncio.gather(*calls, *troubles)
        await asyncio.sleep(2.0)  # the last aborts are under way
        self._engine.check_left()
        for api in self._apis:
            api.check_left()
        assert not self._worker.fake.slots, "the worker still holds a slot"
        self.came += self._network.came
        stats = self._engine.core.stats()
        for name in ("preemptions", "cached_tokens", "wasted_rows", "mixed_steps"):
            self.came[name] += getattr(stats, name)

    # ---- processes --------------------------------------------------------------------------------------------------

    async def _start_api(self) -> None:
        api = ApiProcess(self._network, self._random.getrandbits(60), TOKENIZER, max_outstanding=1000)
        await self._loop.create_task(api.connect())  # in a context of its own
        self._apis.append(api)

    async def _crash_engine(self) -> None:
        await asyncio.sleep(self._random.random() * 0.2)
        if not self._engine.is_alive or self._is_restarting:
            return
        self._is_restarting = True
        match self._random.choice(("killed", "killed in a turn", "by its own fault", "replaced")):
            case "by its own fault":
                self._faults += 1
                self.came["engines' own faults"] += 1
            case "killed in a turn":
                self._engine.journal.dies_in = self._random.randrange(6)
            case "replaced":
                self.came["engines replaced"] += 1
                self._engine.server.leave()
                self._engine.wake()
        if not self._engine.journal.dies_in < 0 or self._engine.server._is_leaving:
            await asyncio.sleep(self._random.random() * 0.2)
        if self._engine.is_alive:
            self._engine.crash()
        await self._restart()

    def _on_own_fault(self) -> None:
        """The engine has ended because of what it was told."""
        self._faults += 1
        self.came["engines' own faults"] += 1
        if not self._is_restarting:
            self._is_restarting = True
            self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        self.came["engine crashes"] += 1
        await asyncio.sleep(self._random.random() * 0.2)
        self._epoch += 1
        self._engine = self._engine_of(self._epoch)
        self._is_restarting = False
        self.came["adopted blocks"] += self._engine.core.kv_cache.n_adopted
        assert not self._engine.core.kv_cache.n_rejected, "a record is not whole"

    async def _replace_api(self) -> None:
        await asyncio.sleep(self._random.random() * 0.1)
        self.came["API deaths"] += 1
        await self._start_api()
        self._apis.pop(0).kill()

    async def _forget_prefixes(self) -> None:
        await asyncio.sleep(self._random.random() * 0.2)
        if self._engine.is_alive:
            self.came["forgotten caches"] += 1
            try:
                self._engine.core.kv_cache.reset_prefix_cache()
            except KilledError:
                self._engine.crash()

    # ---- callers ----------------------------------------------------------------------------------------------------

    def _request(self) -> GenerateRequest:
        random, capacity = self._random, self._capacity
        prompt = random.choice(self._stems) + [random.randrange(VOCAB) for _ in range(random.randint(1, 8))]
        prompt = prompt[: random.randint(1, min(capacity, 50))]
        pooling = random.choice([""] * 8 + ["mean", "last"])
        deadline = random.choice([None] * 4 + [self._loop.time() + random.random() * 0.6])
        salt = random.choice([0, 0, 1])
        return GenerateRequest(
            uid=next(self._uids),
            prompt_token_ids=prompt,
            max_tokens=0 if pooling else random.randint(0, min(24, self._max_model_len - len(prompt))),
            n=1 if pooling else random.choice([1, 1, 1, 2, 3]),
            pooling=pooling,  # type: ignore[arg-type]
            sampling=Sampling(
                seed=random.randrange(3),
                stop_token_ids=(END_ID,) if random.random() < 0.5 else (),
                min_tokens=random.choice([0, 0, 3]),
                logprobs=random.choice([None, 2]),
            ),
            prompt_logprobs=random.choice([None, None, 1]),
            cache_salt=str(salt),
            script=(salt, random.choice([NO_FAULT] * 9 + [2])),
            priority=random.randrange(3),
            tenant=str(random.randrange(3)),
            deadline_s=deadline,
        )

    async def _call(self) -> None:
        """What an HTTP call does, from its request to its end."""
        random = self._random
        await asyncio.sleep(random.random() * 0.15)
        request = self._request()
        stops = tuple(random.sample(STOPS, random.choice([0, 0, 1, 2])))
        api = random.choice(self._apis)
        if random.random() < 0.95:
            await api.wait_ready()  # told to come again
        generation = Generation(api.context, [request], TextOptions(stop=stops))
        seen = [_Seen() for _ in range(request.n)]
        if random.random() < 0.2:
            self._loop.call_later(random.random() * 0.2, self._leave, generation, api, request)
        outcome = "done"

        def take(out: list[ChoiceDelta]) -> None:
            for delta in out:
                seen[delta.index].take(delta)
                if delta.finish_reason is not None:
                    self._network.ended[request.uid, delta.index] = self._loop.time()
            handle = api.engine._handles.get(request.uid)
            if handle is not None:
                for choice, tokens in zip(seen, handle._replay._tokens, strict=True):
                    assert tokens[: len(choice.tokens)] == choice.tokens, "a replay would begin at another token"

        try:
            await generation.start(_call(api.context, str(request.uid)))
            await generation.run(take)  # type: ignore[arg-type]
        except (ClientGone, DeadlineExceeded, EngineDead, NotReady, Overloaded, RequestFailed) as error:
            outcome = "poisoned" if getattr(error, "code", None) == "poisoned" else type(error).__name__
        finally:
            usage = generation.usage()
            self._leave(generation, api, request)
        self.came[outcome] += 1
        for choice in range(request.n):
            self._check(request, choice, stops, seen[choice], outcome)
        expected = [alone(request, choice, self._capacity, stops) for choice in range(request.n)]
        match outcome:
            case "done":
                assert all(choice.reason for choice in seen), "a choice has not ended"
                assert usage.prompt_tokens == len(request.prompt_token_ids)
                assert usage.completion_tokens == sum(len(tokens) for tokens, _, _ in expected)
            case "DeadlineExceeded":
                assert request.deadline_s is not None and request.deadline_s <= self._loop.time()
            case "EngineDead":
                assert api.dead is not None, "an engine's crash reaches a caller"
            case "NotReady":
                assert self.came["engine crashes"], "refused without a reason"
            case "poisoned":
                assert self._faults >= 2, "blamed without a reason"
            case "RequestFailed":
                assert any(reason == "error" for _, _, reason in expected), "failed without a reason"

    def _leave(self, generation: Generation, api: ApiProcess, request: GenerateRequest) -> None:
        """The caller is gone, or has all."""
        has_verdict = bool(generation._handles)  # whoever leaves before is not noticed earlier than it comes
        if generation in api.context.generations:
            generation.close()
        for choice in range(request.n if has_verdict else 0):
            self._network.ended.setdefault((request.uid, choice), self._loop.time())

    def _check(self, request: GenerateRequest, choice: int, stops: tuple[str, ...], seen: _Seen, outcome: str) -> None:
        tokens, text, reason = alone(request, choice, self._capacity, stops)
        if seen.reason:
            assert (seen.tokens, seen.text, seen.reason) == (tokens, text, reason), "other tokens than alone"
            self.came[reason] += 1
        else:
            assert seen.tokens == tokens[: len(seen.tokens)] and text.startswith(seen.text), "other tokens than alone"
        if request.pooling and outcome == "done":
            tags: list[int] = []
            extend_tags(tags, request.prompt_token_ids, request.script[0])
            assert seen.embedding == embedding(tags, request.pooling)
        n_logprobs = len(seen.tokens) if request.sampling.logprobs is not None else 0
        assert seen.n_logprobs == n_logprobs


def _call(context: ApiContext, label: str) -> Call:
    """Of a call what `Generation` needs: whose it is, and what it is called."""
    call: Any = SimpleNamespace(
        request_id=label,
        tenant=ANYBODY.tenant,
        caller=ANYBODY,
        permit=Permit(context.admission),
        record=None,
        fault=None,
        enter=lambda state, at_ns=0: None,
        wait_gone=lambda: asyncio.get_running_loop().create_future(),  # who leaves does so by `_leave`
    )
    return call


class _Seen:
    """What a caller has got of one choice."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.reason: str | None = None
        self.embedding = b""
        self.n_logprobs = 0

    def take(self, delta: ChoiceDelta) -> None:
        assert self.reason is None, "the choice has ended and speaks"
        self.tokens += delta.token_ids
        self.text += delta.text
        self.embedding += delta.embedding
        self.n_logprobs += len(delta.logprobs or ())
        self.reason = delta.finish_reason


def run_seed(seed: int) -> Counter[str]:
    """One run.

    Raises:
        AssertionError: a promise is broken.
    """
    return ServerSimulation(seed).run()
