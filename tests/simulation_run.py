"""Run the simulation of a whole server under many seeds: `python -m tests.simulation_run --runs 10000 --seed 1`.

A seed that breaks a promise is printed with the command that repeats it; such a seed belongs into
`tests/property/test_server_simulation.py`, list `REGRESSIONS`, together with the repair.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.server_simulation import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first broken promise")
    given = parser.parse_args()
    came: Counter[str] = Counter()
    n_broken = 0
    started_s = time.process_time()
    for seed in range(given.seed, given.seed + given.runs):
        try:
            came += run_seed(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            n_broken += 1
            traceback.print_exc()
            print(f"seed {seed} breaks a promise; again: python -m tests.simulation_run --runs 1 --seed {seed}")
            if not given.keep_going:
                break
    print(f"{given.runs} runs, {n_broken} broken, {time.process_time() - started_s:.1f} s of CPU;", end=" ")
    print(", ".join(f"{kind} {n}" for kind, n in came.most_common()))
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
