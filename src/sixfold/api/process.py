"""The API process: text on one side, the engine's sockets on the other, HTTP between them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys

from sixfold.api.logs import SafeFormatter
from sixfold.engine.client import EngineClient
from sixfold.engine.launch import load_text, read_run_files
from sixfold.engine.life import become_child, report_ready
from sixfold.engine.progress import Progress
from sixfold.engine.replay import Poisoned
from sixfold.errors import SixfoldError

__all__ = ["main", "set_up_logging"]

logger = logging.getLogger("sixfold.api.process")  # the module runs under another name


def main(argv: list[str]) -> int:
    """`python -m sixfold.api.process RUN_DIR LIFE_FD LISTEN_FD READY_FD INDEX`."""
    run_dir, life_fd, listen_fd, ready_fd, index = argv[0], int(argv[1]), int(argv[2]), int(argv[3]), argv[4]
    # What is made before the first request stays, the vocabulary above all: it is never searched for garbage.
    gc.disable()
    become_child(f"api {index}", life_fd, run_dir)
    import uvloop

    status = 0
    try:
        uvloop.run(_serve(run_dir, listen_fd, ready_fd, int(index)))
    except* SixfoldError as errors:
        status = 1
        for error in errors.exceptions:
            print(f"sixfold: api {index}: {error}", file=sys.stderr)
    return status


async def _serve(run_dir: str, listen_fd: int, ready_fd: int, index: int) -> None:
    from sixfold.api.server import ApiServer, serve

    run = read_run_files(run_dir)
    set_up_logging(run.config.api.log_level, index)
    text = load_text(run.config)
    progress = Progress.open(run_dir)
    engine = EngineClient(
        run.engine_path,
        run.config,
        text,
        config_digest=run.digest,
        progress=progress,
        poisoned=Poisoned.open(run_dir),
        api_server=index,
    )
    loop = asyncio.get_running_loop()

    def started(server: ApiServer) -> None:
        loop.add_signal_handler(signal.SIGTERM, server.stop)
        loop.add_signal_handler(signal.SIGUSR1, server.drain, run.config.api.drain_timeout_s)

    http = socket.socket(fileno=listen_fd)
    host, port = http.getsockname()[:2]
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                serve(
                    engine,
                    run.config.api,
                    [http],
                    api_server=index,
                    run_dir=run_dir,
                    restarts=progress.restarts,
                    on_started=started,
                )
            )
            await engine.connect()
            gc.freeze()
            gc.enable()
            report_ready(ready_fd, chats=text.chat_template is not None)
            logger.info("serving %s on %s port %d", engine.model_name, host, port)
    finally:
        engine.close()
        gc.unfreeze()  # so that what the compiled part made is freed at the end, and not reported as leaked
        logger.info("stopped")


def set_up_logging(level: str, index: int) -> None:
    """Messages of this process to standard error: its own from `level` on, those of libraries from warnings on.

    Args:
        level: value of `--log-level`.
        index: this process's number.
    """
    own = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler()
    handler.setFormatter(
        SafeFormatter(f"%(asctime)s %(levelname)s api {index} %(name)s: %(message)s", messages=own <= logging.DEBUG)
    )
    logging.basicConfig(level=max(own, logging.WARNING), handlers=[handler])
    logging.getLogger("sixfold").setLevel(own)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
