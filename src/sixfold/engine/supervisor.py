"""`sixfold serve`: starts the processes, watches them, stops them. Holds no model and no request.

It owns the listening sockets and the run directory. When a child dies, all of them are stopped and the exit status
is not zero; the first cause counts. Children leave Ctrl-C to the supervisor: the first one stops everything within
two seconds, the second one kills. SIGTERM drains before that: what is in flight may finish.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import setproctitle

import sixfold
from sixfold.config import Config
from sixfold.engine.example import curl_line
from sixfold.engine.launch import cautions, resolve, write_run_files
from sixfold.engine.life import CHATS
from sixfold.errors import ConfigError
from sixfold.transport import listen

__all__ = ["serve"]

EXIT_OK = 0
EXIT_CHILD_DIED = 4
STOP_S = 2.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""SIGHUP: the terminal was closed."""
_BACKLOG = 2048


@dataclass(frozen=True)
class Child:
    role: str
    process: subprocess.Popen[bytes]
    pidfd: int


def serve(config: Config, work: Callable[[str], None] | None = None) -> int:
    """Serve until a signal or the death of a child. Prints the address and a line to try once requests are answered.

    Args:
        work: what this server is for, where that is not to wait for callers: instead of printing, it is called with
            the server's URL in a thread of its own, and the server stops when it returns. It must not raise. It may
            still run when this function returns, after a signal or a death.

    Returns:
        The exit status: 0 after SIGINT or SIGTERM, or when `work` has returned; 4 when a child died.

    Raises:
        ModelNotFound, ModelFileError, ConfigError: before any process was started.
    """
    config = resolve(config)
    for caution in cautions(config):
        print(f"sixfold: {caution}", file=sys.stderr)
    setproctitle.setproctitle("sixfold: supervisor")
    run_dir = _run_directory()
    try:
        with _http_socket(config) as http:
            return _Supervisor(config, run_dir, http, work).run()
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _run_directory() -> str:
    """A new private directory (0700) for sockets, under XDG_RUNTIME_DIR where that can be used."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        # A socket's path has at most 107 bytes.
        if parent and os.path.isdir(parent) and os.access(parent, os.W_OK) and len(parent) < 70:
            return tempfile.mkdtemp(prefix="sixfold-", dir=parent)
    raise ConfigError("no directory for sockets: XDG_RUNTIME_DIR and TMPDIR cannot be used")


def _http_socket(config: Config) -> socket.socket:
    """The listening HTTP socket; it belongs to the supervisor, so that it outlives any API process."""
    host, port = config.api.host, config.api.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as e:
        reason = e.strerror or str(e)
        if isinstance(e, socket.gaierror) or e.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"--host {host} is no address of this machine: {reason}; 127.0.0.1 is this machine alone, "
                "0.0.0.0 every address that it has",
                param="--host",
            ) from e
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another with --port", param="--port"
        ) from e
    return sock


class _Supervisor:
    def __init__(
        self, config: Config, run_dir: str, http: socket.socket, work: Callable[[str], None] | None = None
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._http = http
        self._work = work
        self._children: list[Child] = []
        self._signals: list[int] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._life_read, self._life_write = os.pipe2(os.O_CLOEXEC)

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            ready = self._start()
            status = self._watch(ready)
            if status == EXIT_OK and self._signals and self._signals[0] == signal.SIGTERM:
                self._drain()
        finally:
            self._stop()
        return status

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"s")

    def _start(self) -> list[int]:
        """Start all children at once; the order in which they become ready sorts itself out at the sockets.

        Returns:
            Read ends of the API processes' readiness pipes.
        """
        run = write_run_files(self._run_dir, self._config, epoch=1)
        with listen(run.worker_path) as worker, listen(run.engine_path) as engine:
            self._spawn("worker 0", "sixfold.engine.worker_process", worker.fileno())
            self._spawn("engine", "sixfold.engine.engine_process", engine.fileno())
        ready = []
        for i in range(self._config.api.api_server_count):
            read, write = os.pipe2(os.O_CLOEXEC)
            self._spawn(f"api {i}", "sixfold.api.process", self._http.fileno(), write, str(i))
            os.close(write)
            ready.append(read)
        return ready

    def _spawn(self, role: str, module: str, fd: int, *more: int | str) -> None:
        fds = [self._life_read, fd, *(x for x in more if isinstance(x, int))]
        arguments = [self._run_dir, *map(str, fds), *(x for x in more if isinstance(x, str))]
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._children.append(Child(role, process, os.pidfd_open(process.pid)))

    def _watch(self, ready: list[int]) -> int:
        """Wait for signals, deaths and the end of the work; announce when every API process is ready."""
        waiting = set(ready)
        done = -1
        poll = select.poll()
        for fd in (self._wake_read, *waiting, *(child.pidfd for child in self._children)):
            poll.register(fd, select.POLLIN)
        try:
            while True:
                for fd, _ in poll.poll():
                    if fd in (self._wake_read, done):
                        return EXIT_OK
                    if fd in waiting:
                        poll.unregister(fd)
                        if report := os.read(fd, 1):
                            waiting.discard(fd)
                            if not waiting:
                                if self._work is None:
                                    name = self._config.model.served_model_name
                                    _announce(name, self._url(), chats=report == CHATS)
                                else:
                                    done = self._begin(self._work)
                                    poll.register(done, select.POLLIN)
                    else:
                        child = next(c for c in self._children if c.pidfd == fd)
                        status = child.process.wait()
                        cause = f"signal {-status}" if status < 0 else f"status {status}"
                        if -status == signal.SIGBUS:
                            cause += ": was the model's file cut short or its disk lost?"
                        print(f"sixfold: {child.role} ended unexpectedly ({cause}); stopping", file=sys.stderr)
                        return EXIT_CHILD_DIED
        finally:
            for fd in (*ready, *([done] if done >= 0 else [])):
                os.close(fd)

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

    def _drain(self) -> None:
        """SIGTERM asks for an orderly end: new work is refused, what is in flight may finish. Over when all API
        processes have ended, at the latest with their time; cut short by another signal or any other death."""
        apis = [child for child in self._children if child.role.startswith("api")]
        for child in apis:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGUSR1)
        end_s = time.monotonic() + self._config.api.drain_timeout_s + STOP_S
        signals = len(self._signals)
        while any(child.process.poll() is None for child in apis):
            others_live = all(child.process.poll() is None for child in self._children if child not in apis)
            if not others_live or len(self._signals) > signals or time.monotonic() > end_s:
                return
            time.sleep(0.02)

    def _stop(self) -> None:
        """End the children: API processes first, so that they can tell their clients; then each before the one that
        it would miss.

        Politely, and after STOP_S or a second signal by SIGKILL.
        """
        deadline = time.monotonic() + STOP_S
        signals = len(self._signals)
        for role in ("api", "engine", "worker"):
            group = [c for c in self._children if c.role.startswith(role)]
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
        for fd in (self._wake_read, self._wake_write, self._life_read, self._life_write):
            os.close(fd)


def _announce(model: str, url: str, *, chats: bool) -> None:
    line = curl_line(url, model, chats=chats)
    print(f"Sixfold {sixfold.__version__} serves {model} on {url} (Ctrl-C stops)\n\n{line}", flush=True)
