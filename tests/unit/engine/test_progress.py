"""Counters that every process of a server sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sixfold.engine.progress import MAX_API, Count, Progress


def test_what_one_process_writes_another_reads(tmp_path: Path) -> None:
    mine = Progress.create(str(tmp_path))
    assert not any(mine.counts)
    code = (
        "import sys; from sixfold.engine.progress import Count, Progress; "
        "Progress.open(sys.argv[1]).counts[Count.ENGINE_COMMITTED] = 2**64 - 1"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert mine.counts[Count.ENGINE_COMMITTED] == 2**64 - 1
    assert sum(value > 0 for value in mine.counts) == 1


def test_the_file_is_private_and_made_once(tmp_path: Path) -> None:
    Progress.create(str(tmp_path))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Progress.create(str(tmp_path))


def test_places_do_not_overlap() -> None:
    counters = Progress.private().counts
    singles = [count for count in Count if not count.name.startswith("API")]
    of_apis = [count for count in Count if count.name.startswith("API")]
    places = [*singles, *(first + i for first in of_apis for i in range(MAX_API))]
    assert len(set(places)) == len(places) and max(places) < len(counters)


def test_sums_over_api_processes() -> None:
    progress = Progress.private()
    for i in (0, 3, MAX_API - 1):
        progress.counts[Count.API_OPEN + i] = 2
        progress.counts[Count.API_SENT + i] = 5
    assert (progress.n_open, progress.n_sent) == (6, 15)


def test_restarts_by_role() -> None:
    progress = Progress.private()
    progress.counts[Count.RESTARTS_WORKER] = 3
    assert progress.restarts() == {"engine": 0, "worker": 3, "api": 0}


def test_private_counters_are_nobody_elses() -> None:
    one, other = Progress.private(), Progress.private()
    one.counts[Count.ENGINE_TURNS] += 1
    assert other.counts[Count.ENGINE_TURNS] == 0
