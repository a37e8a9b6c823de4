"""`sixfold serve`: starts the processes, watches them, starts them again, stops them. Holds no model and no request.

It owns the listening sockets and the run directory. A child that dies is started again, each by itself: the others
find the new one at the same socket (docs/reliability.md). One that dies before the server was ever ready, or again
and again, ends the server with a status that is not zero; the first such cause counts. Children leave Ctrl-C to the
supervisor: the first one stops everything within two seconds, the second one kills. SIGTERM drains
before that: what is in flight may finish, and whatever dies or hangs meanwhile is started again as at any other time.
SIGUSR1 replaces the engine, and streams go on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import setproctitle

import sixfold
from sixfold.config import BLOCK_SIZE, Config
from sixfold.engine.example import TOKENS, curl_line
from sixfold.engine.life import CHATS, EXIT_RESTART, EXIT_WORKER_GONE
from sixfold.engine.listening import listen_for_http
from sixfold.engine.progress import Count, Progress
from sixfold.engine.resolve import cautions, resolve
from sixfold.engine.restarts import Restarts, is_own_fault
from sixfold.engine.run_directory import run_directory
from sixfold.engine.run_files import socket_paths, write_run_files
from sixfold.engine.service_manager import ServiceManager
from sixfold.engine.unread import has_unread
from sixfold.engine.watchdog import AwakeClock, Watchdog
from sixfold.log_stream import LogStream
from sixfold.logs import READY, last_words, set_up_logging
from sixfold.roles import ENGINE, SUPERVISOR, WORKER, api_index, api_role, is_api, kind_of
from sixfold.transport import listen

__all__ = ["serve"]

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_NOT_ALIVE = 4
EXIT_INTERRUPTED = 130
STOP_S = 2.0
FIRST_EPOCH = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""SIGHUP: the terminal was closed."""
STOP_WANTED, ENGINE_WANTED = b"s", b"r"
"""What a signal handler writes into the pipe that wakes the loop."""
_LOOK_S = 0.25
"""Between two looks of the watchdog."""
WORKER_DEATH_S = 0.05
"""From the end of a worker's sockets to that of its process, at most."""


@dataclass(frozen=True)
class Child:
    role: str
    process: subprocess.Popen[bytes]
    pidfd: int


def serve(config: Config, work: Callable[[str], None] | None = None, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal, or until a child cannot be kept alive. Prints the address and a line to try once requests
    are answered.

    Args:
        work: what this server is for, where that is not to wait for callers: instead of printing, it is called with
            the server's URL in a thread of its own, and the server stops when it returns. It must not raise. It may
            still run when this function returns, after a signal or a death.
        warnings: about the address; printed once it is had.

    Returns:
        The exit status: 0 after SIGINT or SIGTERM, or when `work` has returned, and 130 where a signal came before
        that; 4 when a child died before the server was ready, or too often, or when this process has no memory left.

    Raises:
        ModelNotFound, ModelFileError, ConfigError: before anything was loaded.
    """
    set_up_logging(SUPERVISOR, config.api.log_level, config.api.log_format)
    with run_directory() as run_dir, listen_for_http(config.api) as http:
        for warning in warnings:
            logger.warning("%s", warning)
        host, port = http.getsockname()[:2]
        setproctitle.setproctitle(f"sixfold: supervisor {host} port {port}")  # which of several servers to signal
        try:
            return _Supervisor(config, run_dir, http, work).run()
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            last_words(SUPERVISOR, "no memory is left")
            return EXIT_NOT_ALIVE


class _Supervisor:
    def __init__(
        self, config: Config, run_dir: str, http: socket.socket, work: Callable[[str], None] | None = None
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._http = http
        self._work = work
        self._progress = Progress.create(run_dir)
        self._progress.counts[Count.EPOCH] = FIRST_EPOCH
        port = http.getsockname()[1]
        self._watchdog = Watchdog(self._progress, config.hang_timeout_s, has_unread=lambda pid: has_unread(pid, port))
        self._stuck: set[str] = set()
        """Roles whose process was ended because it hung by itself."""
        self._manager = ServiceManager()
        self._roles = [WORKER, ENGINE, *map(api_role, range(config.api.api_server_count))]
        now_s = time.monotonic()
        self._awake = AwakeClock(now_s)
        self._drained_s: float | None = None
        """When draining is over at the latest; None: it has not begun."""
        self._restarts = {role: Restarts(now_s) for role in self._roles}
        self._children: dict[str, Child] = {}
        self._due: dict[str, float] = {}
        """Roles without a process -> when theirs is started."""
        self._unready: dict[int, str] = {}
        """Read ends of readiness pipes -> API process that has not written yet."""
        self._told_to_leave: Child | None = None
        """The engine that makes room for the next one. A second signal might meet it while its interpreter ends, which
        no longer handles any: it would look like a crash."""
        self._chats = False
        self._is_announced = False
        self._done = -1
        self._signals: list[int] = []
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._life_read, self._life_write = os.pipe2(os.O_CLOEXEC)
        self._told_read, self._told_write = os.pipe2(os.O_CLOEXEC)
        self._journal = os.memfd_create("sixfold-journal", os.MFD_CLOEXEC)
        """What an engine tells the next one of the worker's KV blocks; it holds prompts, and no disk ever does."""
        # Open as long as the server lives: who connects while a process is started again waits in the backlog.
        worker_path, engine_path = socket_paths(run_dir)
        self._listeners = {WORKER: listen(worker_path), ENGINE: listen(engine_path)}

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_wish)
        self._poll.register(self._wake_read, select.POLLIN)
        try:
            for role in self._roles:  # at once; the order in which they become ready sorts itself out at the sockets
                self._start(role)
            self._tell()
            status = self._watch()
            return EXIT_INTERRUPTED if status == EXIT_OK and self._work is not None and self._signals else status
        finally:
            self._stop()

    def _tell(self) -> None:
        """Find out what exactly is served, and let the children know. They were born before that, because what they
        import takes them as long.

        Raises: what `serve` raises.
        """
        self._config = resolve(self._config)
        for caution in cautions(self._config):
            logger.warning("%s", caution)
        write_run_files(self._run_dir, self._config, epoch=FIRST_EPOCH)
        self._close_told()

    def _close_told(self) -> None:
        if self._told_write >= 0:
            os.close(self._told_write)
            self._told_write = -1

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, STOP_WANTED)

    def _on_wish(self, _number: int, _frame: object) -> None:
        """Somebody wants another engine."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, ENGINE_WANTED)

    # -- births ---------------------------------------------------------------------------------------------------

    def _start(self, role: str) -> None:
        index = api_index(role)
        if index is not None:
            read, write = os.pipe2(os.O_CLOEXEC)
            try:
                self._spawn(role, "sixfold.api.process", self._http.fileno(), write, str(index))
            except OSError:
                os.close(read)
                raise
            finally:
                os.close(write)
            self._unready[read] = role
            self._poll.register(read, select.POLLIN)
        elif role == ENGINE:
            self._spawn(role, "sixfold.engine.engine_process", self._listeners[role].fileno(), self._journal)
        else:
            self._spawn(role, "sixfold.engine.worker_process", self._listeners[role].fileno())

    def _start_again(self, role: str) -> bool:
        """A process that the machine does not give now, for want of memory, process numbers or descriptors, is a crash
        like others: the rest of the server lives. Returns whether the server goes on."""
        try:
            self._start(role)
        except OSError as e:
            pause_s = self._restarts[role].crashed(time.monotonic(), self._work_done(role))
            facts = {"child": role, "reason": e.strerror or str(e)}
            if pause_s is None:
                logger.error("%(child)s cannot be started (%(reason)s), again and again; stopping", facts)
                return False
            logger.error("%(child)s cannot be started (%(reason)s); trying again", facts)
            self._due[role] = time.monotonic() + pause_s
        return True

    def _work_done(self, role: str) -> int:
        """What rises as long as a process of this role is of use."""
        return self._progress.n_sent if is_api(role) else self._progress.counts[Count.ENGINE_COMMITTED]

    def _spawn(self, role: str, module: str, fd: int, *more: int | str) -> None:
        fds = [self._life_read, self._told_read, fd, *(x for x in more if isinstance(x, int))]
        arguments = [self._run_dir, *map(str, fds), *(x for x in more if isinstance(x, str))]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        child = self._children[role] = Child(role, process, pidfd)
        self._poll.register(child.pidfd, select.POLLIN)
        self._watchdog.started(role, process.pid)

    # -- the loop -------------------------------------------------------------------------------------------------

    def _watch(self) -> int:
        """Wait for signals, deaths, hangs and the end of the work. Returns: the exit status."""
        while True:
            ready = [fd for fd, _ in self._poll.poll(self._wait_ms())]
            if self._done in ready or (self._wake_read in ready and not self._goes_on()):
                return EXIT_OK
            for fd in ready:
                if fd in self._unready:
                    self._on_readiness(fd)
            for child in [c for c in self._children.values() if c.pidfd in ready]:
                if not self._on_death(child):
                    return EXIT_NOT_ALIVE
            now_s = time.monotonic()
            for role in [role for role, due_s in self._due.items() if due_s <= now_s]:
                del self._due[role]
                if not self._start_again(role):
                    return EXIT_NOT_ALIVE
            if self._is_drained(now_s):
                return EXIT_OK
            self._look(now_s)

    def _replace_engine(self) -> None:
        """Let the engine end its step and go; `_on_death` starts the next one. One that does not turn its loop yet is
        new already."""
        engine = self._children.get(ENGINE)
        if engine is None or engine is self._told_to_leave:
            return
        if self._is_announced and self._progress.counts[Count.ENGINE_TURNS]:
            logger.warning("the engine is replaced, as SIGUSR1 asks")
            self._told_to_leave = engine
            engine.process.send_signal(signal.SIGUSR1)

    def _wait_ms(self) -> float | None:
        """Until there is something to do without an event; None: never."""
        waits_s = [due_s - time.monotonic() for due_s in self._due.values()]
        if self._config.hang_timeout_s:
            waits_s.append(_LOOK_S)
        if self._is_announced and self._manager.period_s is not None:
            waits_s.append(self._manager.period_s)
        if self._drained_s is not None:
            waits_s.append(self._drained_s - time.monotonic())
        return max(0, math.ceil(1e3 * min(waits_s))) if waits_s else None

    def _look(self, now_s: float) -> None:
        """Tell the service manager that this process turns; end a process that hangs, so that it is started again."""
        if self._is_announced and self._manager.period_s is not None:
            self._manager.alive()
        role = self._watchdog.hanging(self._awake.at(now_s))
        child = self._children.get(role or "")
        if child is None:
            return
        if self._watchdog.is_stopped:
            how = "stopped by a signal"
        else:
            how = f"for {self._config.hang_timeout_s:g} s"
            self._stuck.add(child.role)
        logger.error(
            "%(child)s did nothing while it was waited for, %(how)s; ending it", {"child": child.role, "how": how}
        )
        child.process.kill()

    def _on_readiness(self, fd: int) -> None:
        """An API process serves, or has ended without a word."""
        report = os.read(fd, 1)
        self._poll.unregister(fd)
        os.close(fd)
        role = self._unready.pop(fd)
        if report:
            self._watchdog.is_ready(role)
        self._chats = self._chats or report == CHATS
        if report and not self._unready and not self._is_announced:
            self._is_announced = True
            self._manager.ready(f"serving {self._config.model.served_model_name} on {self._url()}")
            if self._work is None:
                _announce(self._config, self._url(), chats=self._chats)
            else:
                self._done = self._begin(self._work)
                self._poll.register(self._done, select.POLLIN)

    # -- deaths ---------------------------------------------------------------------------------------------------

    def _on_death(self, child: Child) -> bool:
        """A child has died. Returns whether the server goes on."""
        status = child.process.wait()
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.role]
        self._watchdog.ended(child.role)
        if status == EXIT_RESTART and child.role == ENGINE:
            self._forget(child.role, status)
            self._due[child.role] = time.monotonic()
            return True
        cause = f"signal {-status}" if status < 0 else f"status {status}"
        if -status == signal.SIGBUS:
            cause += ": was the model's file cut short or its disk lost?"
        facts = {"child": child.role, "cause": cause, "child_pid": child.process.pid}
        if not self._is_announced:
            logger.error("%(child)s ended unexpectedly (%(cause)s); stopping", facts)
            return False
        if not all(map(os.path.exists, socket_paths(self._run_dir))):
            # Nobody could find anybody any more: whoever runs this server shall see it.
            logger.error(
                "%(child)s ended (%(cause)s), and files of the run directory have been removed; stopping", facts
            )
            return False
        if self._drained_s is not None and is_api(child.role):
            if status not in (0, -signal.SIGUSR1):  # the wish to drain ends one that was just starting
                logger.error("%(child)s ended unexpectedly (%(cause)s) before it had drained", facts)
            return True
        pause_s = self._restarts[child.role].crashed(time.monotonic(), self._work_done(child.role))
        if pause_s is None:
            logger.error(
                "%(child)s ended unexpectedly (%(cause)s), again and again without any work done between; stopping",
                facts,
            )
            return False
        if child.role == ENGINE and status == EXIT_WORKER_GONE:
            # Its worker's death has a line of its own, and has to be seen before the next engine starts.
            pause_s = max(pause_s, WORKER_DEATH_S)
        else:
            logger.error("%(child)s ended unexpectedly (%(cause)s); starting it again", facts)
        self._forget(child.role, status)
        self._due[child.role] = time.monotonic() + pause_s
        return True

    def _forget(self, role: str, status: int) -> None:
        """What the dead process had said of itself holds no more, and its successor is told what happened."""
        counts = self._progress.counts
        is_own = is_own_fault(status) or role in self._stuck
        self._stuck.discard(role)
        index = api_index(role)
        if index is not None:
            counts[Count.RESTARTS_API] += 1
            for count in (Count.API_OPEN, Count.API_TURNS):
                counts[count + index] = 0
            return
        if role == ENGINE:
            counts[Count.RESTARTS_ENGINE] += 1
            for count in (Count.ENGINE_TURNS, Count.ENGINE_BUSY, Count.ENGINE_OUTSTANDING, Count.ENGINE_ATTACHING):
                counts[count] = 0
            counts[Count.EPOCH] += 1
            counts[Count.FAULTS] += is_own and status not in (EXIT_WORKER_GONE, EXIT_RESTART)
        else:
            counts[Count.RESTARTS_WORKER] += 1
            for count in (Count.WORKER_LOADED, Count.WORKER_TURNS, Count.WORKER_SERVES):
                counts[count] = 0
            counts[Count.FAULTS] += is_own

    # -- the end --------------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[[str], None]) -> int:
        """Start the work's thread. Returns: a descriptor whose end of file is the work's end."""
        url = self._url()
        read, write = os.pipe2(os.O_CLOEXEC)

        def run() -> None:
            try:
                work(url)
            finally:
                os.close(write)

        threading.Thread(target=run, name="sf: work", daemon=True).start()
        return read

    def _url(self) -> str:
        host, port = self._http.getsockname()[:2]
        scheme = "https" if self._config.api.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _goes_on(self) -> bool:
        """Something was asked for by a signal. Returns whether the server goes on for now."""
        asked = os.read(self._wake_read, select.PIPE_BUF)
        if ENGINE_WANTED in asked:
            self._replace_engine()
        return STOP_WANTED not in asked or self._drains_on()

    def _drains_on(self) -> bool:
        """The first SIGTERM asks for an orderly end, in which new work is refused and what is in flight may finish.
        Returns whether the server goes on until then."""
        if self._drained_s is not None:
            logger.warning("another signal; what is still in flight ends now")
            return False
        if self._signals[0] != signal.SIGTERM or not self._is_announced:
            return False
        timeout_s = self._config.api.drain_timeout_s
        if not self._progress.n_open:
            logger.info("SIGTERM: nothing is in flight; stopping")
        elif not timeout_s:
            logger.warning("SIGTERM: what is in flight ends now")
        else:
            logger.warning(
                "SIGTERM: what is in flight may end within %(seconds)g s; another signal ends it now",
                {"seconds": timeout_s},
            )
        self._drained_s = time.monotonic() + timeout_s + STOP_S
        self._due = {role: due_s for role, due_s in self._due.items() if not is_api(role)}
        for child in self._children.values():
            if is_api(child.role):
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGUSR1)
        return len(self._signals) == 1

    def _is_drained(self, now_s: float) -> bool:
        if self._drained_s is None:
            return False
        return now_s > self._drained_s or not any(is_api(role) for role in self._children)

    def _stop(self) -> None:
        """End the children: API processes first, so that they can tell their clients; then each before the one that
        it would miss.

        Politely, and after STOP_S or a second signal by SIGKILL.
        """
        self._manager.stopping()
        deadline = time.monotonic() + STOP_S
        signals = len(self._signals)
        for kind in ("api", "engine", "worker"):
            group = [c for c in self._children.values() if kind_of(c.role) == kind]
            for child in group:
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
            for child in group:
                while child.process.poll() is None:
                    if time.monotonic() > deadline or len(self._signals) > signals:
                        child.process.kill()
                        child.process.wait()
                        break
                    time.sleep(0.01)
                os.close(child.pidfd)
        for listener in self._listeners.values():
            listener.close()
        pipes = (self._wake_read, self._wake_write, self._told_read, self._life_read, self._life_write, self._journal)
        for fd in (*pipes, *self._unready, *([self._done] if self._done >= 0 else [])):
            os.close(fd)


def _announce(config: Config, url: str, *, chats: bool) -> None:
    model = config.model.served_model_name
    if config.api.log_format == "json":  # for a program, which reads one stream
        READY.info("serving %(model)s on %(url)s", {"model": model, "url": url, "version": sixfold.__version__})
        return
    text = f"Sixfold {sixfold.__version__} serves {model} on {url} (Ctrl-C stops)\n"
    if config.cache.num_kv_blocks * BLOCK_SIZE >= TOKENS:
        text += "\n" + curl_line(url, model, chats=chats, keys=bool(config.api.api_key_file))
    _say(text)


def _say(text: str) -> None:
    """On standard output. Whoever started the server may not read it, or be gone: nobody waits for him, and callers
    need no words."""
    with contextlib.suppress(OSError):
        stream = LogStream(1, str)
        stream.write(text)
        stream.close()
