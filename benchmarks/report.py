"""What every benchmark prints around its numbers: the machine, the commit, the command, a table."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sixfold.cli.output_file import check_output
from sixfold.errors import ConfigError

__all__ = ["ROOT", "header", "output_file", "table"]

ROOT = Path(__file__).resolve().parent.parent
LOAD_BEFORE = os.getloadavg()[0]
"""Before the benchmark itself adds to it."""


def header() -> str:
    """One line each: machine, commit, command. A load average well above 0 says: do not trust the numbers."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"machine: {_cpu()}, {cores} cores, Linux {os.uname().release}, load average before {LOAD_BEFORE:.1f}\n"
        f"commit:  {_commit()}\n"
        f"command: {shlex.join(['python', *sys.argv])}\n"
    )


def output_file(name: str) -> str:
    """Type of `--json`: found out before hours of measurement, not behind them. "" is no file.

    Raises:
        argparse.ArgumentTypeError: it could not be written.
    """
    try:
        if name:
            check_output(Path(name), "--json")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.message.removeprefix("--json ")) from None
    return name


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, numbers with as many digits as they deserve."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    return "\n".join("| " + " | ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return "-" if value is None else str(value)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), os.uname().machine)


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit} (with changes)" if git("status", "--porcelain", "--untracked-files=no") else commit
