"""The grammars of a worker's slots: built beside the forward pass of the step that admits them, asked for masks beside
the later ones.

The matcher's state before a step is known when the step begins, so a thread of its own computes the step's masks while
the program runs (`begin`), and the sampler waits for them only when the logits are there (`masks`). What is built is
waited for in the same step (`finish`), though its row may not draw yet: how much may be new in one step is the
scheduler's to bound, and nothing of it piles up for a later one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sixfold.messages import Sampling
from sixfold.structured import GrammarError, Matcher, MatcherFactory

__all__ = ["GrammarSlots"]

Words = npt.NDArray[np.int32]


class _Grammar:
    """One slot's: not built yet, alive, or failed."""

    __slots__ = ("matcher", "output", "sampling", "why_failed")

    def __init__(self, sampling: Sampling, output: list[int]) -> None:
        self.sampling = sampling
        self.output = output
        self.matcher: Matcher | None = None
        self.why_failed = ""

    def fail(self, error: GrammarError) -> None:
        self.why_failed = str(error) or "unknown"
        self.matcher = None


class GrammarSlots:
    """Not thread-safe: between `begin` and `masks` nothing else may be called.

    Args:
        n_vocab: width of the logits.
        factory: makes matchers for the model's vocabulary. They allow its end tokens by themselves, exactly where the
            answer may end.
    """

    def __init__(self, max_slots: int, n_vocab: int, factory: MatcherFactory) -> None:
        self._factory = factory
        self._slots: dict[int, _Grammar] = {}
        self._new: list[int] = []
        """Slots whose grammar is not built yet; may hold one that was freed since."""
        self._words: Words = np.zeros((0, (n_vocab + 31) // 32), np.int32)
        self._max_slots = max_slots
        self._work: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._begun: list[int] | None = None
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def admit(self, slot: int, sampling: Sampling, output: Sequence[int]) -> None:
        """The grammar of a slot that begins, or begins again behind `output`; it is built with the next `begin`."""
        self.free(slot)
        if sampling.grammar:
            self._slots[slot] = _Grammar(sampling, list(output))
            self._new.append(slot)

    def free(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def prepare(self) -> bool:
        """See `Sampler.prepare`."""
        return self._factory.prepare()

    def begin(self, slots: Sequence[int]) -> None:
        """Build what is new and compute the masks of a step's rows, in the background; slots without a grammar are
        passed over."""
        wanted = [slot for slot in slots if slot in self._slots]
        if not wanted and not self._new:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sf: grammars", daemon=True)
            self._thread.start()
        self._begun = wanted
        self._done.clear()
        self._work.put(wanted)

    def masks(self, slots: Sequence[int]) -> tuple[Words, dict[int, int]]:
        """Masks of the slots that have a grammar: the words, and slot -> row of them. A slot whose grammar has failed
        has none: it is in `failed`."""
        wanted = [slot for slot in slots if slot in self._slots]
        begun = self._begun
        self.finish()
        if begun != wanted:
            self._compute(wanted)
        return self._words, {slot: i for i, slot in enumerate(wanted)}

    def finish(self) -> None:
        """Wait for what was begun, in a step that draws nothing. Idempotent."""
        if self._begun is not None:
            self._begun = None
            self._done.wait()
            if self._fault is not None:
                raise self._fault

    def failed(self, slot: int) -> bool:
        grammar = self._slots.get(slot)
        return grammar is not None and bool(grammar.why_failed)

    def observe(self, slot: int, token_id: int) -> None:
        """A token was drawn. One that ends the choice is not the grammar's business."""
        grammar = self._slots.get(slot)
        if grammar is None or grammar.matcher is None or token_id in grammar.sampling.stop_token_ids:
            return
        try:
            grammar.matcher.advance([token_id])
        except GrammarError as error:
            grammar.fail(error)

    def close(self) -> None:
        """End the thread. Idempotent."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (wanted := self._work.get()) is not None:
            try:
                self._compute(wanted)
            except BaseException as error:  # noqa: BLE001 - the step's thread raises it
                self._fault = error
            self._done.set()

    def _compute(self, wanted: list[int]) -> None:
        if not len(self._words):
            self._words = np.zeros((self._max_slots, self._words.shape[1]), np.int32)
        for slot in self._new:
            new = self._slots.get(slot)
            if new is not None and new.matcher is None and not new.why_failed:
                self._build(new)
        self._new.clear()
        for i, slot in enumerate(wanted):
            grammar, words = self._slots[slot], self._words[i]
            if grammar.matcher is None:
                continue
            try:
                grammar.matcher.mask(words)
                self._forbid_early_stops(grammar, grammar.matcher, words)
            except GrammarError as error:
                grammar.fail(error)

    def _build(self, grammar: _Grammar) -> None:
        """From the text and the tokens so far. Each token's mask is computed again, though nobody asks for it: limits
        count what masks build, too, and are to be reached at the same token as the first time."""
        try:
            matcher = self._factory(grammar.sampling.grammar)
            for token_id in grammar.output:
                matcher.mask(self._words[0])
                matcher.advance([token_id])
            grammar.matcher = matcher
        except GrammarError as error:
            grammar.fail(error)

    def _forbid_early_stops(self, grammar: _Grammar, matcher: Matcher, words: Words) -> None:
        """The caller's own stop tokens end the answer where the grammar lets it end, and nowhere else."""
        own = [i for i in grammar.sampling.stop_token_ids if i not in self._factory.vocabulary.end_ids]
        if not own:
            return
        bits = words.view(np.uint32)
        may_end = matcher.may_end
        for token_id in own:
            bit = np.uint32(1 << token_id % 32)
            if may_end:
                bits[token_id // 32] |= bit
            else:
                bits[token_id // 32] &= ~bit
