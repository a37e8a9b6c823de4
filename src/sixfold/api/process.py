"""The API process: text on one side, the engine's sockets on the other, HTTP between them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from typing import Any

from sixfold.engine.client import RESTART_WAIT_S, EngineClient
from sixfold.engine.launch import load_text
from sixfold.engine.life import EXIT_NO_MEMORY, become_child, report_ready
from sixfold.engine.progress import Count, Progress
from sixfold.engine.replay import Poisoned
from sixfold.engine.run_files import RunFiles, read_run_files
from sixfold.errors import EngineDead, SixfoldError
from sixfold.logs import last_words, set_up_logging
from sixfold.observability.delivery import Delivery
from sixfold.observability.meter import Meter
from sixfold.observability.observatory import Observatory
from sixfold.roles import api_role

__all__ = ["main"]

logger = logging.getLogger("sixfold.api.process")  # the module runs under another name


def main(argv: list[str]) -> int:
    """`python -m sixfold.api.process RUN_DIR LIFE_FD TOLD_FD LISTEN_FD READY_FD INDEX`."""
    run_dir, index = argv[0], int(argv[5])
    life_fd, told_fd, listen_fd, ready_fd = map(int, argv[1:5])
    # What is made before the first request stays, the vocabulary above all: it is never searched for garbage.
    gc.disable()
    become_child(api_role(index), life_fd, run_dir)
    import uvloop

    run = read_run_files(run_dir, told_fd)
    set_up_logging(api_role(index), run.config.api.log_level, run.config.api.log_format)
    status = 0
    try:
        uvloop.run(_serve(run, run_dir, listen_fd, ready_fd, index))
    except* SixfoldError as errors:
        status = 1
        for error in errors.exceptions:
            logger.error("%s", error)
    return status


async def _serve(run: RunFiles, run_dir: str, listen_fd: int, ready_fd: int, index: int) -> None:
    from sixfold.api.server import ApiServer, serve

    text = load_text(run.config)
    progress = Progress.open(run_dir)
    role = api_role(index)
    delivery = Delivery(Meter.create(run_dir, role))
    engine = EngineClient(
        run.engine_path,
        run.config,
        text,
        config_digest=run.digest,
        progress=progress,
        poisoned=Poisoned.open(run_dir),
        api_server=index,
        delivery=delivery,
    )
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_without_memory)
    counts, turns = progress.counts, Count.API_TURNS + index

    def on_turn() -> None:
        counts[turns] += 1

    def started(server: ApiServer) -> None:
        loop.add_signal_handler(signal.SIGTERM, server.stop)
        loop.add_signal_handler(signal.SIGUSR1, server.drain, run.config.api.drain_timeout_s)

    connecting = asyncio.ensure_future(engine.connect())
    if counts[Count.ENGINE_TURNS]:
        # Started again, beside an engine that works: its callers wait in the backlog, instead of being refused.
        await asyncio.wait([connecting], timeout=RESTART_WAIT_S)
    http = socket.socket(fileno=listen_fd)
    host, port = http.getsockname()[:2]
    set_up_logging(role, run.config.api.log_level, run.config.api.log_format, holds_text=True)
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(
                serve(
                    engine,
                    run.config.api,
                    [http],
                    api_server=index,
                    run_dir=run_dir,
                    start=run.start,
                    restarts=progress.restarts,
                    observatory=Observatory(run_dir, run.config.api.api_server_count, index),
                    delivery=delivery,
                    on_started=started,
                    on_turn=on_turn,
                )
            )
            serving.add_done_callback(lambda _: engine.close())
            try:
                await connecting
                gc.freeze()
                gc.enable()
                report_ready(ready_fd, chats=text.chat_template is not None)
                logger.info(
                    "serving %(model)s on %(host)s port %(port)d",
                    {"model": engine.model_name, "host": host, "port": port},
                )
                await engine.gone()
            except EngineDead:
                if serving.done():
                    return  # it was told to end
                raise  # whoever runs the server shall see that this process cannot serve any more
    finally:
        engine.close()
        gc.unfreeze()  # so that what the compiled part made is freed at the end, and not reported as leaked
        logger.info("stopped")


def _end_without_memory(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a request's handler cannot get fails that request. When the loop itself gets no memory, nobody knows what
    is half done: this process ends, and its successor starts from nothing."""
    if isinstance(context.get("exception"), MemoryError):
        last_words("api", "no memory is left")
        os._exit(EXIT_NO_MEMORY)
    loop.default_exception_handler(context)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
