"""Some cells of the kill matrix (all: `python -m tests.chaos.matrix`), and that the docs say what the code does."""

from __future__ import annotations

import importlib

import pytest
from tests.chaos.cells import CELLS, PAGE, Cell, expected, page_table
from tests.chaos.clients import Answer
from tests.chaos.matrix import Observation, try_cell


def test_the_docs_have_the_matrix() -> None:
    assert page_table() in PAGE.read_text(), "run: python -m tests.chaos.cells"


def test_every_cell_has_an_outcome() -> None:
    assert len(CELLS) == 96
    assert all(expected(cell).text for cell in CELLS)


@pytest.mark.parametrize(
    "cell",
    [
        Cell("api", "TERM", "loading"),
        Cell("api", "STOP", "streaming"),
        Cell("api", "TERM", "decode"),
        Cell("worker", "STOP", "draining"),
        Cell("supervisor", "KILL", "prefill"),
    ],
    ids=str,
)
def test_a_cell(cell: Cell) -> None:
    seen = try_cell(cell)
    assert not seen.differs(cell, expected(cell)), seen


def test_a_difference_is_seen() -> None:
    cell = Cell("engine", "KILL", "streaming")
    right = Observation(["whole"] * 5, None, {"engine": 1})
    assert not right.differs(cell, expected(cell))
    wrong = [
        Observation(["whole", "broken"], None, {"engine": 1}),
        Observation(["whole", "wrong content"], None, {"engine": 1}),
        Observation(["whole"], None, {"engine": 0}),
        Observation(["whole"], 4, {"engine": 1}),
        Observation(["whole"], None, {"engine": 1}, ["left: file x"]),
    ]
    assert all(seen.differs(cell, expected(cell)) for seen in wrong)


def test_of_two_ways_one_is_gone_as_a_whole() -> None:
    cell = Cell("api", "memory", "streaming")
    right = [
        Observation(["whole", "error 500"], survived=True),
        Observation(["whole", "broken"], restarts={"api": 1}, survived=False),
    ]
    assert not any(seen.differs(cell, expected(cell)) for seen in right)
    wrong = [
        Observation(["whole", "broken"], survived=True),
        Observation(["whole"], restarts={"api": 1}, survived=True),
        Observation(["broken"], survived=False),
    ]
    assert all(seen.differs(cell, expected(cell)) for seen in wrong)
    cell = Cell("supervisor", "memory", "starting")
    assert not Observation(exit=4, all_started=False).differs(cell, expected(cell))
    assert not Observation(exit=4, all_started=True).differs(cell, expected(cell))
    assert Observation(all_started=False).differs(cell, expected(cell))


def test_a_part_of_an_answer_and_what_is_none() -> None:
    whole = Answer("whole", {0: ["abc", [1, 2, 3], [], "stop"]})
    assert Answer("broken", {0: ["ab", [1, 2], [], None]}).is_part_of(whole)
    assert Answer("broken", {}).is_part_of(whole)
    assert not Answer("broken", {0: ["ax", [1, 9], [], None]}).is_part_of(whole)
    assert not Answer("broken", {0: ["ab", [1, 2], [], "length"]}).is_part_of(whole)


@pytest.mark.parametrize("command", ["matrix", "random_faults"])
def test_the_commands_outside_the_suite_can_be_started(command: str) -> None:
    assert importlib.import_module(f"tests.chaos.{command}").main
