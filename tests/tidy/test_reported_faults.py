"""Faults of other servers that need company, a death or a signal to show: each has a test that carries its id."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FAULTS = {
    "O03": "a failure after the stream has begun",
    "O23": "hostile schemas",
    "O32": "a client leaves and its work stays",
    "O33": "one request id twice",
    "O34": "seeded output changes after preemption",
    "O35": "cache shared between salts",
    "O37": "a hash collision serves another's prefix",
    "O38": "wrong text under eviction",
    "O39": "a request larger than the pool blocks the queue",
    "O40": "prefill starves decode, or the reverse",
    "O41": "an unbounded queue",
    "O42": "health is green with a dead engine",
    "O43": "orphans after the parent is killed",
    "O44": "a shared tokenizer fails under threads",
    "O46": "pickle on an internal socket",
    "O50": "counters fall",
    "O51": "gauges freeze when all leave",
    "O55": "NaN logits streamed as text",
    "O56": "penalties touch the wrong tokens",
    "O57": "one request's parameters applied to its batch",
    "O59": "greedy text depends on the batch",
}


def test_each_has_a_test() -> None:
    names = " ".join(
        match for path in TESTS.rglob("test_*.py") for match in re.findall(r"def (test_\w+)", path.read_text())
    )
    missing = [fault for fault in FAULTS if not re.search(f"_{fault}_", names, re.IGNORECASE)]
    assert missing == []
