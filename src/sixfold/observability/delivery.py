"""What it takes to deliver a batch of deltas to their callers, by kind of work: text, events, writing.

Looking at the clock around each of these would cost more than a hundredth of what they cost. So the whole of every
batch is timed, and one batch in SAMPLED is taken apart; the parts are shares of the whole.
"""

from __future__ import annotations

from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import API_DELIVER, API_DETOKENIZE, API_RENDER, API_ROUTE, API_WRITE

__all__ = ["SAMPLED", "Delivery"]

SAMPLED = 8


class Delivery:
    """Follows the batches of one API process.

    Attributes:
        splits: this batch is taken apart: whoever does a part of the work adds its time below.
        detokenize_ns, render_ns, write_ns: of the batch, so far.
    """

    __slots__ = ("_n_batches", "detokenize_ns", "meter", "render_ns", "splits", "write_ns")

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter or Meter.private()
        self._n_batches = 0
        self.splits = False
        self.detokenize_ns = self.render_ns = self.write_ns = 0

    def begin(self) -> None:
        """A batch is here, decoded."""
        self._n_batches += 1
        self.splits = self._n_batches % SAMPLED == 0

    def end(self, began_ns: int, step: int) -> None:
        """Everybody has had his part of it."""
        ended_ns = now()
        meter = self.meter
        meter.add(API_DELIVER, began_ns, ended_ns, step)
        if self.splits:
            self.splits = False
            parts_ns = self.detokenize_ns + self.render_ns + self.write_ns
            meter.tally(API_DETOKENIZE, self.detokenize_ns)
            meter.tally(API_RENDER, self.render_ns)
            meter.tally(API_WRITE, self.write_ns)
            meter.tally(API_ROUTE, max(0, ended_ns - began_ns - parts_ns))
            self.detokenize_ns = self.render_ns = self.write_ns = 0
