"""Damaged models down the whole path: opened, their text loaded, their weights packed, two tokens drawn.

    python -m tests.fuzz.whole_path --minutes 10 --seed 1      new cases until the time is over
    python -m tests.fuzz.whole_path --seed 1 --first 4711 --cases 1 --keep DIR      one of them again, its files kept

Each case follows from the seed and its number. They run in a child process, so that what must not happen can be told
apart: it ends by a signal, it takes too long, it takes memory beyond what files of a few hundred kB justify, or a
case ends with anything but an answer or a `SixfoldError`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import corpus
from tests.fuzz.mutations import changed, changed_parts, damage, with_special_bits, write_anew

CASE_S = 20.0
"""Longest that one may take, on a busy machine."""
BYTES_GROWTH_MAX = 50 << 20
"""Of the peak of resident memory in one case, whose files have at most 1.3 MB."""
ADDRESS_SPACE_MAX = 6 << 30
MESSAGE_CHARS_MAX = 1100

Fault = dict[str, Any]


# --- what a case is ---------------------------------------------------------------------------------------------------


def make_case(seed: int, number: int) -> tuple[str, dict[str, bytes], str]:
    """-> (which model, its files, the one to open; "" for the folder)."""
    rng = random.Random(f"{seed} {number}")
    if rng.random() < 0.6:
        name = rng.choice(list(corpus.ggufs()))
        parts = corpus.ggufs()[name]
        if rng.random() < 0.6:
            raw = changed_parts(parts, rng).encode()
        else:
            whole = parts.encode()
            # Mostly in metadata and directory: their end is where the first tensor's bytes begin.
            structure = len(whole) - sum(len(bytes(t.data)) for t in parts.tensors)
            raw = damage(whole, rng, structure)
        return name, {"m.gguf": raw}, "m.gguf"
    name = rng.choice(list(corpus.folders()))
    files = dict(corpus.folders()[name])
    for _ in range(rng.randint(1, 2)):
        file = rng.choice(list(files))
        files[file] = _damaged_file(file, files[file], rng)
    opened = min((file for file in files if file.endswith(".gguf")), default="")
    return name, files, opened


def _damaged_file(name: str, raw: bytes, rng: random.Random) -> bytes:
    kind = rng.random()
    if name.endswith(".json") and kind < 0.7:
        with contextlib.suppress(ValueError):  # it was damaged before
            return json.dumps(changed(json.loads(raw), rng)).encode()
    if name.endswith(".safetensors"):
        structure = 8 + int.from_bytes(raw[:8], "little")
        if kind < 0.3:
            return with_special_bits(raw, rng)
        if kind < 0.7 and structure < len(raw):
            with contextlib.suppress(ValueError):  # it was damaged before
                header = json.dumps(changed(json.loads(raw[8:structure]), rng)).encode()
                return len(header).to_bytes(8, "little") + header + raw[structure:]
        return damage(raw, rng, max(structure % (1 << 32), 1))
    return damage(raw, rng, 1 << 14)


# --- the child --------------------------------------------------------------------------------------------------------


def attempt(path: Path) -> str:
    """-> what came of it: "served", or the message of a refusal."""
    from sixfold import LLM, SamplingParams
    from sixfold.errors import SixfoldError

    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    try:
        with LLM(str(path), threads=1, max_num_seqs=2, num_kv_blocks=8, max_num_batched_tokens=32) as llm:
            llm.tokenizer.decode(llm.tokenizer.encode("hé <s> 🙂\n\n<|im_end|>", parse_control=True))
            llm.generate("he", params)
            if llm.text.chat_template is not None:
                llm.chat([{"role": "user", "content": "he"}], params)
            llm.core.check()
        return "served"
    except SixfoldError as error:
        return f"{type(error).__name__}: {error.message}"


def tables_bytes(path: Path) -> int:
    """What the rotary positions of the context take while they are made: a file may ask for a long one."""
    from sixfold.engine.resolve import DEFAULT_MODEL_LEN_MAX
    from sixfold.errors import ModelFileError
    from sixfold.model_file import open_model

    try:
        config = open_model(path).config
    except ModelFileError:
        return 0
    n_tables = 1 if config.rope == config.rope_local else 2
    return (n_tables + 1) * min(config.context, DEFAULT_MODEL_LEN_MAX) * config.rope_dims * 4


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("there is no VmHWM")


def child(seed: int, first: int, cases: int, folder: Path) -> None:
    """Says `number` before a case and `number {"fault" or "came"}` after it, a line each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    warnings.simplefilter("error")
    attempt(written(folder, {"m.gguf": corpus.quantized_gguf("q4_1").encode()}, "m.gguf"))
    for number in range(first, first + cases):
        print(number, flush=True)
        name, files, opened = make_case(seed, number)
        path = written(folder, files, opened)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = peak_bytes()
        report: Fault = {"model": name}
        try:
            report["came"] = attempt(path)
        except Exception as error:  # noqa: BLE001  that is what is looked for
            report["fault"] = f"{type(error).__name__}: {error}"
        growth = peak_bytes() - before
        if growth > BYTES_GROWTH_MAX + tables_bytes(path):
            report["fault"] = f"{growth >> 20} MB of memory; {report.get('fault') or report['came']}"
        if len(report.get("came", "")) > MESSAGE_CHARS_MAX:
            report["fault"] = f"a message of {len(report['came'])} characters: {report['came'][:200]}"
        print(number, json.dumps(report), flush=True)


def written(folder: Path, files: dict[str, bytes], opened: str) -> Path:
    for old in folder.iterdir():
        old.unlink()
    for name, raw in files.items():
        write_anew(folder / name, raw)
    return folder / opened


# --- the parent -------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    number: int
    report: Fault


def run(seed: int, first: int, cases: int, until: float, folder: Path) -> Iterator[Result]:
    """Results of cases in order; a child that ended or hangs is one, and the next child goes on behind it."""
    end = first + cases
    while first < end and time.monotonic() < until:
        arguments = ["--child", str(folder), "--seed", str(seed), "--first", str(first), "--cases", str(end - first)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.whole_path", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
        )
        try:
            for result in _results(process, first):
                first = result.number + 1
                yield result
                if time.monotonic() > until:
                    return
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _results(process: subprocess.Popen[bytes], first: int) -> Iterator[Result]:
    assert process.stdout is not None
    running, rest = first, b""
    while True:
        if not select.select([process.stdout], [], [], CASE_S)[0]:
            yield Result(running, {"fault": f"takes more than {CASE_S:g} s"})
            return
        data = os.read(process.stdout.fileno(), 1 << 16)
        if not data:
            status = process.wait()
            if status:
                cause = f"signal {-status}" if status < 0 else f"status {status}"
                yield Result(running, {"fault": f"the process ended ({cause})"})
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number, _, report = line.partition(b" ")
            running = int(number)
            if report:
                yield Result(running, json.loads(report))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--keep", type=Path, help="leave the files of the last case here")
    parser.add_argument("--verbose", action="store_true", help="what came of each case")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.seed, given.first, given.cases, given.child)
        return 0
    came: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        until = time.monotonic() + 60 * given.minutes
        for result in run(given.seed, given.first, given.cases, until, folder):
            report = result.report
            if "fault" in report or given.verbose:
                print(
                    f"case {result.number} ({report.get('model', '?')}): {report.get('fault') or report['came']}",
                    flush=True,
                )
            came["faults" if "fault" in report else report["came"].partition(":")[0]] += 1
    print(f"seed {given.seed}: {came.total()} cases;", ", ".join(f"{kind} {n}" for kind, n in came.most_common()))
    return 1 if came["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
