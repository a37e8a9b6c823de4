"""Totals by site, the ring of intervals, and what a reader in another process sees of both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sixfold.observability import sites
from sixfold.observability.meter import MAX_SITES, N_BUCKETS, RING, Meter, Stay
from sixfold.observability.sites import ENGINE_COMMIT, ENGINE_RESULT, SITES, Kind

ROOT = Path(__file__).resolve().parents[3]


def test_a_reader_sees_what_the_writer_counts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Meter.open(str(tmp_path), "engine")
    writer = Meter.create(str(tmp_path), "engine")
    reader = Meter.open(str(tmp_path), "engine")
    assert reader.recent() == []
    writer.add(ENGINE_COMMIT, 1000, 1200, step=7, uid=1 << 62)
    writer.add(ENGINE_COMMIT, 2000, 2100)
    totals = reader.totals()[ENGINE_COMMIT]
    assert (totals.count, totals.total_ns, totals.longest_ns) == (2, 300, 200)
    assert totals.buckets[:2] == (1, 1)
    assert reader.recent() == [
        Stay(1000, 1200, ENGINE_COMMIT, 7, 1 << 62),
        Stay(2000, 2100, ENGINE_COMMIT, 0, 0),
    ]
    assert reader.recent(1500) == reader.recent()[1:]
    assert reader.pid == os.getpid()


def test_the_next_process_of_a_role_goes_on_counting(tmp_path: Path) -> None:
    first = Meter.create(str(tmp_path), "engine")
    first.add(ENGINE_COMMIT, 0, 500)
    first.enter(ENGINE_RESULT, 10)
    reader = Meter.open(str(tmp_path), "engine")
    second = Meter.create(str(tmp_path), "engine")
    second.add(ENGINE_COMMIT, 1000, 1100)
    totals = reader.totals()
    assert (totals[ENGINE_COMMIT].count, totals[ENGINE_COMMIT].total_ns) == (2, 600)
    assert totals[ENGINE_RESULT].n_waiting == 0, "who waited there is dead"
    assert len(reader.recent()) == 2


def test_a_meter_of_other_sites_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Meter.create(str(tmp_path), "engine")
    older.add(ENGINE_COMMIT, 0, 500)
    monkeypatch.setattr("sixfold.observability.meter.DIGEST", 4711)
    reader = Meter.open(str(tmp_path), "engine")
    assert reader.totals()[ENGINE_COMMIT].count == 0 and reader.recent() == []
    Meter.create(str(tmp_path), "engine").add(ENGINE_COMMIT, 0, 500)
    assert reader.totals()[ENGINE_COMMIT].count == 1


def waiting(meter: Meter) -> tuple[int, int, int]:
    totals = meter.totals()[ENGINE_RESULT]
    return totals.n_waiting, totals.since_ns, totals.uid


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "step", "uid"),
    [(5000, 4000, 0, 0), (0, 1000, -1, 0), (0, 1000, 1 << 48, 0), (0, 1000, 3, 1 << 64), (0, 1000, 3, -1)],
)
def test_nothing_that_is_told_ends_the_process_or_takes_time_back(
    start_ns: int, end_ns: int, step: int, uid: int
) -> None:
    meter = Meter.private()
    meter.add(ENGINE_COMMIT, 0, 100)
    meter.add(ENGINE_COMMIT, start_ns, end_ns, step, uid)
    meter.tally(ENGINE_COMMIT, -500)
    meter.leave(ENGINE_RESULT, 0, 10)  # nobody had entered
    totals = meter.totals()
    assert totals[ENGINE_COMMIT].count == 3 and totals[ENGINE_COMMIT].total_ns >= 100
    assert totals[ENGINE_RESULT].n_waiting == 0
    told = meter.recent()[1]
    assert told.start_ns <= told.end_ns == end_ns and told.site == ENGINE_COMMIT and told.step in (0, 3)


def test_who_waits_now_is_seen_before_the_wait_ends() -> None:
    meter = Meter.private()
    meter.enter(ENGINE_RESULT, 100, uid=5)
    meter.enter(ENGINE_RESULT, 200, uid=6)
    assert waiting(meter) == (2, 100, 5)
    meter.leave(ENGINE_RESULT, 100, 300, uid=5)
    assert waiting(meter) == (1, 100, 5)
    meter.leave(ENGINE_RESULT, 200, 300, uid=6)
    assert waiting(meter) == (0, 0, 0)
    assert meter.totals()[ENGINE_RESULT].count == 2


def test_the_ring_keeps_the_latest() -> None:
    meter = Meter.private()
    for i in range(RING + 10):
        meter.add(ENGINE_COMMIT, i, i + 1, step=i)
    kept = meter.recent()
    assert [interval.step for interval in kept] == list(range(11, RING + 10))
    assert meter.totals()[ENGINE_COMMIT].count == RING + 10


@given(st.lists(st.integers(0, 1 << 45), max_size=50))
def test_every_length_has_its_bucket(lengths: list[int]) -> None:
    meter = Meter.private()
    for length in lengths:
        meter.add(ENGINE_COMMIT, 10**15, 10**15 + length)
    totals = meter.totals()[ENGINE_COMMIT]
    bounds = [128 << bucket for bucket in range(N_BUCKETS - 1)]
    for bucket, bound in enumerate(bounds):
        assert sum(totals.buckets[: bucket + 1]) == sum(length < bound for length in lengths)
    assert sum(totals.buckets) == totals.count == len(lengths)
    assert totals.total_ns == sum(lengths) and totals.longest_ns == max(lengths, default=0)


def test_every_site_is_explained() -> None:
    assert len(SITES) <= MAX_SITES
    assert len({site.name for site in SITES}) == len(SITES)
    constants = {name.lower().replace("_", ".", 1): value for name, value in vars(sites).items() if name.isupper()}
    for index, site in enumerate(SITES):
        assert constants.get(site.name, index) == index
        assert site.what
        wanted = {Kind.INVARIANT: {"protects", "test"}, Kind.OVERLAPPABLE: {"meanwhile"}, Kind.SHRINKABLE: {"lever"}}
        reasons = {name for name in ("protects", "test", "meanwhile", "lever") if getattr(site, name)}
        assert reasons == wanted.get(site.kind, set()), site.name
