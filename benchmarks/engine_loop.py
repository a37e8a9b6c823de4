"""What the engine process costs beside the forward pass: CPU time per decode step, everything in it.

    python benchmarks/engine_loop.py [--rows 1,8,64] [--step-ms 0,10] [--json result.json]

The real engine process, between a worker that answers each step with a token per row, `--step-ms` after it came (a
forward pass that costs nothing), and an API process that takes the outputs. With 0 ms the engine never sleeps and its
caches stay warm; with 10 ms it wakes for each step, as beside a real model. Every row is a request of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

from report import header, output_file, table
from serving import cpu_s

from sixfold.config import Config
from sixfold.engine.engine_process import EngineServer
from sixfold.engine.launch import build_core, open_journal
from sixfold.engine.life import become_child
from sixfold.engine.resolve import resolve
from sixfold.engine.run_files import RunFiles, write_run_files
from sixfold.executor.remote import RemoteExecutor
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import decode_step, encode
from sixfold.messages import SAMPLE, GenerateRequest, Sampling, StepResult, WorkerFacts
from sixfold.transport import FrameSocket, accept, codecs, connect, listen

CONTEXT = 2048
PROMPT_TOKENS = 128
WARMING_STEPS = 128
"""Until every prompt is read: 256 tokens of them in a step."""
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--step-ms", default="0,10")
    parser.add_argument("--steps", type=int, default=150, help="measured at a time; the median of five is printed")
    parser.add_argument("--json", type=output_file, default="", help="write the figures to this file")
    args = parser.parse_args()
    if WARMING_STEPS + ROUNDS * args.steps > CONTEXT - PROMPT_TOKENS - WARMING_STEPS:
        parser.error("--steps: the rows would end before the measurement")
    rows = []
    for step_ms in [float(part) for part in args.step_ms.split(",")]:
        for n_rows in [int(part) for part in args.rows.split(",")]:
            with tempfile.TemporaryDirectory() as run_dir:
                seconds = _measure(run_dir, n_rows, step_ms / 1e3, args.steps)
            rows.append((n_rows, step_ms, *(1e6 * f(seconds) for f in (min, statistics.median, max))))
    print(header())
    columns = ("rows", "ms between steps", "engine us/step: best", "median", "worst")
    print(table(columns, rows))
    if args.json:
        Path(args.json).write_text(json.dumps({"header": header(), "columns": columns, "results": rows}, indent=1))
    return 0


def _measure(run_dir: str, n_rows: int, step_s: float, n_steps: int) -> list[float]:
    """CPU seconds per step of the engine process, once per round."""
    config = resolve(
        Config.from_flat(
            {"model": "scripted", "max_num_seqs": n_rows, "max_model_len": CONTEXT, "num_kv_blocks": 1 << 14}
        )
    )
    run = write_run_files(run_dir, config, epoch=1)
    with listen(run.worker_path) as worker, listen(run.engine_path) as engine:
        life_read, life_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            worker.close()
            os.close(life_write)
            become_child("engine", life_read, run_dir)
            _run_engine(run, engine)
        os.close(life_read)
        try:
            loop = _Loop(run, worker, n_rows, step_s)
            loop.run(until=WARMING_STEPS)
            seconds = []
            for _ in range(ROUNDS):
                before, first = cpu_s(pid), loop.n_steps
                loop.run(until=loop.n_steps + n_steps)
                seconds.append((cpu_s(pid) - before) / (loop.n_steps - first))
            return seconds
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            os.close(life_write)


def _run_engine(run: RunFiles, listener: object) -> None:
    try:
        executor = RemoteExecutor(run.worker_path, epoch=run.epoch, config_digest=run.digest)
        journal = open_journal(os.memfd_create("journal"), run, executor.facts, executor.instance)
        core = build_core(run.config, executor, epoch=1, hash_key=bytes.fromhex(run.hash_key), journal=journal)
        EngineServer(core, executor, listener, run).run()  # type: ignore[arg-type]
    except BaseException:  # noqa: BLE001 - the forked process ends here, whatever happened
        traceback.print_exc()
    finally:
        os._exit(1)


class _Loop:
    """The worker and the API process of one engine."""

    def __init__(self, run: RunFiles, listener: object, n_rows: int, step_s: float) -> None:
        self.n_steps = 0
        self._step_s = step_s
        config = run.config
        channels: dict[str, FrameSocket] = {}
        while len(channels) < 2:
            channel = accept(listener)  # type: ignore[arg-type]
            assert channel is not None
            greeting = codecs.decode_hello(channel.receive_one().body, config_digest=run.digest)
            channels[greeting.role] = channel
        facts = WorkerFacts(os.getpid(), config.cache.num_kv_blocks, n_rows, CONTEXT, "none", 0, 0)
        self._worker_control, self._steps = channels["worker-control"], channels["worker-steps"]
        self._worker_control.send(codecs.CONTROL, codecs.encode(facts), block=True)
        self._control, self._outputs = connect(run.engine_path), connect(run.engine_path)
        self._control.send(codecs.HELLO, codecs.hello("api-control", run.digest), block=True)
        self._outputs.send(codecs.HELLO, codecs.hello("api-outputs", run.digest), block=True)
        for uid in range(n_rows):
            prompt = [uid + 2, *range(PROMPT_TOKENS - 1)]
            request = GenerateRequest(
                uid=(1 << 62) + uid,
                prompt_token_ids=prompt,
                max_tokens=CONTEXT - PROMPT_TOKENS,
                sampling=Sampling(seed=uid, temperature=0.0),
                arrival_s=time.monotonic(),
            )
            self._control.send(codecs.CONTROL, codecs.encode(request), block=True)
        self._selector = selectors.DefaultSelector()
        for channel in (self._steps, self._control, self._outputs):
            self._selector.register(channel, selectors.EVENT_READ)

    def run(self, until: int) -> None:
        """Answer steps until so many have been."""
        while self.n_steps < until:
            for key, _ in self._selector.select():
                channel = key.fileobj
                assert isinstance(channel, FrameSocket)
                frames = channel.receive()
                if frames is None:
                    sys.exit("the engine ended")
                if channel is self._steps:
                    for frame in frames:
                        self._answer(StepArrays.unpack(decode_step(frame.body)))

    def _answer(self, step: StepArrays) -> None:
        if self._step_s:
            time.sleep(self._step_s)
        ids = [7 if flags & SAMPLE else -1 for flags in step.flags.tolist()]
        keys = step.columns[:3].tolist()
        result = StepResult(
            engine_epoch=step.engine_epoch,
            step_id=step.step_id,
            slots=keys[0],
            generations=keys[1],
            incarnations=keys[2],
            token_ids=ids,
            status=[0] * len(ids),
        )
        self._steps.send(codecs.RESULT, encode(result), block=True)
        self.n_steps += 1


if __name__ == "__main__":
    sys.exit(main())
