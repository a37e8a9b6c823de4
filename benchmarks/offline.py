"""Tokens per second without HTTP, next to llama.cpp.

    python benchmarks/offline.py --llama-bin ~/llama.cpp/build/bin
    python benchmarks/offline.py --llama-bin ... --model path.gguf --decode 1,8,32 --rounds 5 --json result.json
    python benchmarks/offline.py --llama-bin ... --llama-model q4_0.gguf     its file in a type that suits it better

Both sides run in alternation in every round, so that what else the machine does meets both; the ratio is that of the
medians, and the spread of the rounds' own ratios is printed beside it. llama.cpp's tools are yours to bring: a build
for this CPU (`-DGGML_NATIVE=ON`) with `llama-bench` and `llama-batched-bench`.

    prefill_N      llama-bench -p N -n 0              sixfold bench --prefill N
    decode_B       llama-batched-bench -npl B         sixfold bench --decode B      (decoding alone, after the prompts)
    decode_1_empty llama-bench -p 0 -n OUTPUT         sixfold bench --decode 1 --prompt-tokens 1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import header, output_file, table

Speeds = dict[str, float]
EMPTY = "decode_1_empty"


def main() -> int:
    args = _arguments()
    model = _model_file(args.model)
    their_model = Path(args.llama_model) if args.llama_model else model
    rounds: list[tuple[Speeds, Speeds]] = []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds} ...", file=sys.stderr, flush=True)
        rounds.append((_llama(args, their_model), _sixfold(args, model)))
    print(header())
    rows = []
    for name in rounds[0][1]:
        theirs, ours = ([side[name] for side in sides] for sides in zip(*rounds, strict=True))
        ratios = [o / t for t, o in zip(theirs, ours, strict=True)]
        ratio = statistics.median(ours) / statistics.median(theirs)
        spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
        rows.append((name, statistics.median(theirs), statistics.median(ours), ratio, spread))
    print(table(("tokens/s", "llama.cpp", "sixfold", "ratio", "rounds"), rows))
    if args.json:
        Path(args.json).write_text(json.dumps({"header": header(), "rounds": rounds}, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="known name or .gguf file, read by both sides")
    parser.add_argument("--llama-model", default="", help="another .gguf file for llama.cpp")
    parser.add_argument("--llama-bin", default=os.environ.get("LLAMA_CPP_BIN", ""), help="folder of llama.cpp's tools")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--decode", default="1,8")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=output_file, default="", help="write every round's figures to this file")
    args = parser.parse_args()
    for tool in ("llama-bench", "llama-batched-bench"):
        found = shutil.which(tool, path=args.llama_bin or None)
        if found is None:
            parser.error(f"there is no {tool} in {args.llama_bin or 'PATH'}; name its folder with --llama-bin")
        setattr(args, tool.replace("-", "_"), found)
    return args


def _model_file(name: str) -> Path:
    from sixfold import model_store

    return Path(name) if Path(name).is_file() else model_store.pull(name)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}\nexit status {done.returncode}")
    return done.stdout


def _llama(args: argparse.Namespace, model: Path) -> Speeds:
    speeds: Speeds = {}
    common = ["-m", str(model), "-t", str(args.threads)]
    for count in _counts(args.prefill):
        speeds[f"prefill_{count}"] = _llama_bench(args, [*common, "-p", str(count), "-n", "0"])
    batches = _counts(args.decode)
    context = max(batches) * (args.prompt_tokens + args.output_tokens)
    shape = ["-npp", str(args.prompt_tokens), "-ntg", str(args.output_tokens), "-npl", ",".join(map(str, batches))]
    command = [args.llama_batched_bench, *common, *shape, "-c", str(context), "--output-format", "jsonl"]
    for line in _run(command).splitlines():
        if line.startswith("{"):
            entry: dict[str, Any] = json.loads(line)
            speeds[f"decode_{entry['pl']}"] = entry["speed_tg"]
    speeds[EMPTY] = _llama_bench(args, [*common, "-p", "0", "-n", str(args.output_tokens)])
    return speeds


def _llama_bench(args: argparse.Namespace, arguments: list[str]) -> float:
    [entry] = json.loads(_run([args.llama_bench, *arguments, "-r", "3", "-o", "json"]))
    return float(entry["avg_ts"])


def _sixfold(args: argparse.Namespace, model: Path) -> Speeds:
    shape = ["--prefill", args.prefill, "--decode", args.decode, "--prompt-tokens", str(args.prompt_tokens)]
    report = _sixfold_bench(args, model, shape)
    speeds = {name: value for name, value in report.items() if name.startswith(("prefill_", "decode_"))}
    empty = _sixfold_bench(args, model, ["--prefill", "1", "--decode", "1", "--prompt-tokens", "1"])
    return {**speeds, EMPTY: empty["decode_1"]}


def _sixfold_bench(args: argparse.Namespace, model: Path, shape: list[str]) -> dict[str, Any]:
    settings = ["--output-tokens", str(args.output_tokens), "--threads", str(args.threads)]
    command = [sys.executable, "-m", "sixfold", "bench", str(model), *shape, *settings, "--json"]
    report: dict[str, Any] = json.loads(_run(command))
    return report


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main())
