"""Every benchmark in turn; their figures as JSON in build/benchmarks/.

    python benchmarks/everything.py                                     about five minutes
    python benchmarks/everything.py --llama-bin PATH/TO/llama.cpp/build/bin

Without llama.cpp's tools the comparison with it is left out, and said to be.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from report import ROOT

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--llama-bin", default=os.environ.get("LLAMA_CPP_BIN", ""), help="folder of llama.cpp's tools")
    args = parser.parse_args()
    folder = ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        ("kernels", ["--rows", "1,2,4,8,64,512"]),
        ("engine_loop", []),
        ("startup", ["--model", args.model]),
        ("online", ["--model", args.model]),
        ("measuring", ["--model", args.model]),
    ]
    if shutil.which("llama-bench", path=args.llama_bin or None):
        runs.append(("offline", ["--model", args.model, "--llama-bin", args.llama_bin]))
    failed = [name for name, arguments in runs if _run(name, arguments, folder)]
    if len(runs) == 5:
        print("-- offline was left out: no llama-bench in PATH; name its folder with --llama-bin")
    print(f"-- figures: {folder}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _run(name: str, arguments: list[str], folder: Path) -> int:
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(folder / f"{name}.json")]
    print(f"-- {name}", flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
