"""What every child process of a server does first: a name, signals, and an end when its supervisor ends.

The supervisor holds the only write end of a pipe; each child watches the read end in a thread of its own. When the
supervisor is gone, however it died, the kernel closes the pipe and the child exits at once: no orphans.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable

import setproctitle

from sixfold.logs import last_words

__all__ = [
    "CHATS",
    "EXIT_NO_MEMORY",
    "EXIT_RESTART",
    "EXIT_SUPERVISOR_GONE",
    "EXIT_WORKER_GONE",
    "become_child",
    "report_ready",
    "run_child",
]

EXIT_WORKER_GONE = 8
"""Of an engine whose worker went away: not its own fault, and it is wanted again."""

EXIT_SUPERVISOR_GONE = 9

EXIT_RESTART = 10
"""Of an engine that was asked to make room for the next one, and has."""
EXIT_NO_MEMORY = 11
"""Of a process that could not get memory."""

CHATS, CONTINUES = b"c", b"t"
"""What an API process reports when it is ready: its model answers conversations, or continues texts alone."""


def become_child(role: str, life_fd: int, run_dir: str) -> None:
    """Name the process `sixfold: <role>`, leave Ctrl-C to the supervisor, die with it.

    Args:
        life_fd: read end of the supervisor's pipe; nothing is ever written to it.
        run_dir: removed with the supervisor, which cannot do it itself when it was killed.
    """
    setproctitle.setproctitle(f"sixfold: {role}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_watch, args=(life_fd, run_dir), name="sf: life", daemon=True).start()


def run_child(role: str, main: Callable[[list[str]], int]) -> int:
    """Run a process's `main` with its arguments. Returns: the exit status; without memory, that and a sentence."""
    try:
        return main(sys.argv[1:])
    except MemoryError:
        last_words(role, "no memory is left")
        return EXIT_NO_MEMORY


def report_ready(ready_fd: int, *, chats: bool) -> None:
    """Tell the supervisor that this process serves, and whether the model has a chat template."""
    os.write(ready_fd, CHATS if chats else CONTINUES)
    os.close(ready_fd)


def _watch(life_fd: int, run_dir: str) -> None:
    os.read(life_fd, 1)
    shutil.rmtree(run_dir, ignore_errors=True)
    sys.stderr.flush()
    os._exit(EXIT_SUPERVISOR_GONE)
