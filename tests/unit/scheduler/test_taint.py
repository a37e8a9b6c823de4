"""Blocks of a row that failed: nobody finds them again, whatever has become of their choice."""

from __future__ import annotations

from tests.simulation import Simulation


def test_O55_a_row_that_fails_behind_a_stop_string_taints_its_blocks_too() -> None:
    """The choice has had its end when the result comes that says so."""
    sim = Simulation(pipeline_depth=2)
    uid = sim.add(range(12), 8, fault_at=3)
    while len(sim.outputs[uid, 0]) < 3:
        sim.step()
    sim.finish_at(uid, 0, 2)
    sim.run()
    again = sim.add(range(12), 8)
    sim.run()
    assert sim.first_deltas[again, 0].n_cached == 0
