"""The time of a step by kind of operation."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.unit.executor.native.tiny_llama import Row, TinyLlama, block_tables, run

from sixfold import _native
from sixfold.executor.native.kernels import ThreadPool
from sixfold.executor.native.reference_types import Q8_0
from sixfold.observability.meter import Meter
from sixfold.observability.sites import SITES, WORKER_EMBED, WORKER_HEAD


def test_kinds_are_those_of_the_sites() -> None:
    names = [site.name for site in SITES[WORKER_EMBED : WORKER_HEAD + 1]]
    assert names == [f"worker.{kind}" for kind in _native.operation_kinds()]


def test_every_kind_of_the_model_is_counted_once_a_step(isa: str) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(ThreadPool(2, isa), model.kv_cache())
    meter = Meter.private()
    plain, _, _ = run(program, block_tables(1, 5), [Row([1, 2, 3], 0, 0)])
    program.count_times(np.asarray(meter.counters(WORKER_EMBED, WORKER_HEAD)))
    started = time.monotonic_ns()
    for _ in range(3):
        counted, _, _ = run(program, block_tables(1, 5), [Row([1, 2, 3], 0, 0)])
    took = time.monotonic_ns() - started
    totals = {SITES[i].name: meter.totals()[i] for i in range(WORKER_EMBED, WORKER_HEAD + 1)}
    assert {name: total.count for name, total in totals.items()} == {
        name: 0 if name == "worker.experts" else 3 for name in totals
    }
    assert 0 < sum(total.total_ns for total in totals.values()) < took
    np.testing.assert_array_equal(counted, plain)
    program.count_times(None)
    run(program, block_tables(1, 5), [Row([1, 2, 3], 0, 0)])
    assert meter.totals()[WORKER_EMBED].count == 3


@pytest.mark.parametrize("shape", [(7, 2), (8, 1)])
def test_memory_of_another_shape_is_refused(isa: str, shape: tuple[int, int]) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(ThreadPool(1, isa), model.kv_cache())
    with pytest.raises(ValueError, match="a row of at least two numbers"):
        program.count_times(np.zeros(shape, np.uint64))
