"""Scheduler: decides who runs, how many tokens, when to preempt, and turns results into deltas.

Runs in: engine process.
Owns: every request and choice from `add` to its end, the waiting queue, the worker's slots, the steps outstanding.
May import: kv_cache, messages, config, errors. No clock of its own, no arrays, no text.
Start reading at: scheduler.py (the algorithm in ten lines), then planner.py (the decision), sequence.py (the state).
"""

from sixfold.scheduler.plan import Plan, Row
from sixfold.scheduler.scheduler import Scheduler

__all__ = ["Plan", "Row", "Scheduler"]
