"""Damaged models of every kind down the whole path; `python -m tests.fuzz.whole_path` runs more of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.fuzz import corpus, whole_path

SEED, N_CASES = 52, 1000
LONGEST_S = 600.0


def test_o52_whole_path(tmp_path: Path) -> None:
    came: Counter[str] = Counter()
    for result in whole_path.run(SEED, 0, N_CASES, time.monotonic() + LONGEST_S, tmp_path):
        assert "fault" not in result.report, f"seed {SEED}, case {result.number}: {result.report}"
        came[result.report["came"].partition(":")[0]] += 1
    assert came.total() == N_CASES
    assert came["ModelFileError"] > N_CASES / 2 and came["served"] > N_CASES / 20


def test_the_corpus_is_sound(tmp_path: Path) -> None:
    models = [({"m.gguf": parts.encode()}, "m.gguf") for parts in corpus.ggufs().values()]
    models += [
        (files, min((name for name in files if name.endswith(".gguf")), default=""))
        for files in corpus.folders().values()
    ]
    for files, opened in models:
        assert whole_path.attempt(whole_path.written(tmp_path, files, opened)) == "served"
