"""The whole server under seeds, and whether the simulation would notice if it were broken.

`python -m tests.simulation_run --runs 10000 --seed 1` runs more seeds, `python -m tests.mutations` tells of each way to
break the server how many seeds it takes to notice.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.mutations import MUTATIONS, RARE, Mutation, hunt
from tests.server_simulation import run_seed

SEEDS = range(401, 801)
MUTATION_SEEDS = 300
REGRESSIONS: list[int] = [1006, 3843]
"""Seeds that once broke a promise."""


def test_every_promise_holds_and_none_vacuously() -> None:
    came: Counter[str] = Counter()
    for seed in [*REGRESSIONS, *SEEDS]:
        try:
            came += run_seed(seed)
        except Exception as error:
            raise AssertionError(f"python -m tests.simulation_run --runs 1 --seed {seed}") from error
    for kind in ("preemptions", "cached_tokens", "wasted_rows", "mixed_steps", "stop", "length", "done"):
        assert came[kind] > 50, kind
    for kind in (
        "adopted blocks",
        "engine crashes",
        "engines replaced",
        "engines' own faults",
        "poisoned",
        "late steps",
        "late outputs",
        "repeated outputs",
        "foreign results",
        "API deaths",
        "ClientGone",
        "DeadlineExceeded",
        "RequestFailed",
        "Overloaded",
        "forgotten caches",
    ):
        assert came[kind] > 5, kind


def test_a_run_follows_from_its_seed() -> None:
    assert [run_seed(seed) for seed in (3, 4, 5)] == [run_seed(seed) for seed in (3, 4, 5)]


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m not in RARE], ids=lambda mutation: mutation.__name__)
def test_a_broken_server_is_noticed(mutation: Mutation) -> None:
    """So a promise that the seeds above keep is one that they could break."""
    assert hunt(mutation, range(1, MUTATION_SEEDS + 1)), f"python -m tests.mutations {mutation.__name__}"


def test_an_unbroken_server_is_not() -> None:
    assert hunt(lambda patch: None, range(1, 6)) is None
