"""What a piece of work leaves to the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def garbage_of(*kinds: type[Any]) -> Iterator[Callable[[], list[Any]]]:
    """Nothing is collected within; the value gives the objects of `kinds` that have come since and are still there.

    What other tests of the process keep is not among them.
    """
    gc.collect()
    before = [thing for thing in gc.get_objects() if isinstance(thing, kinds)]  # held, so that no id comes back
    known = {id(thing) for thing in before}
    gc.disable()
    try:
        yield lambda: [thing for thing in gc.get_objects() if isinstance(thing, kinds) and id(thing) not in known]
    finally:
        gc.enable()
        before.clear()
