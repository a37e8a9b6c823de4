"""Matrix products next to what the machine can do: GMAC/s and GB/s per shape, weight type and number of rows.

    python benchmarks/kernels.py                                          SmolLM2's shapes in the types of its file
    python benchmarks/kernels.py --models all --types all --json result.json
    SIXFOLD_ISA=avx2 python benchmarks/kernels.py --rows 1,8,64 --threads 1

One pass multiplies as many copies of a matrix as fill `--megabytes` (fewer with many rows, where multiplying
dominates), one after the other and cut into chunks for the threads as a model's are: weights come from memory, as in a
decode step. Peaks are measured between the shapes: int8 and bf16 multiply-adds in registers, and a prefetched read of
96 MB over and over. Of passes and peaks the best counts: on a machine that does other work the rest is noise.

`limit %` is the share of the roofline: of the peak or of the bandwidth, whichever binds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from report import header, output_file, table

from sixfold.executor.native import kernels
from sixfold.model_file.random_blocks import RANDOM_TYPES, random_blocks
from sixfold.model_file.tensor_types import TENSOR_TYPES

SHAPES = {
    "smollm2": {
        "qkv": (960, 576),
        "o": (576, 576),
        "gate_up": (3072, 576),
        "down": (576, 1536),
        "head": (49152, 576),
    },
    "gemma3-270m": {
        "qkv": (1536, 640),
        "o": (640, 1024),
        "gate_up": (4096, 640),
        "down": (640, 2048),
        "head": (262144, 640),
    },
    "llama-1b": {"qkv": (3072, 2048), "o": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)},
}
"""Model -> matrix -> (outputs, inputs)."""
ROWS = (*range(1, 13), 32, 64, 256, 512)
READ_BYTES = 96 << 20
PASS_MACS = 8e9
"""Of one pass, at the least: shorter ones are all start and end."""


class Result(NamedTuple):
    """The best pass over one matrix."""

    matrix: str
    kind: str
    rows: int
    gmac_s: float
    gb_s: float


def main() -> int:
    args = _arguments()
    results: list[Result] = []
    limits: list[kernels.Limits] = []
    for model in args.models:
        for name, (n, k) in SHAPES[model].items():
            limits.append(kernels.measure_limits(kernels.ThreadPool(args.threads), READ_BYTES))
            for kind in args.types:
                if k % TENSOR_TYPES[RANDOM_TYPES[kind]].block_values:
                    continue
                label = f"{model} {name} {n} x {k}"
                print(f"{label} {kind} ...", file=sys.stderr, flush=True)
                results += _measure(args, label, kind, n, k)
    best = kernels.Limits(*(max(getattr(x, field) for x in limits) for field in kernels.Limits.__slots__))
    isa = kernels.ThreadPool(1).isa
    print(header())
    print(
        f"{isa}, {args.threads} threads: int8 {best.int8_macs_per_s / 1e9:.0f} GMAC/s, bf16 "
        f"{best.bf16_macs_per_s / 1e9:.0f} GMAC/s, memory read {best.bytes_read_per_s / 1e9:.1f} GB/s\n"
    )
    rows = [(r.matrix, r.kind, r.rows, r.gmac_s, r.gb_s, *_shares(r, best, isa)) for r in results]
    print(table(("matrix", "type", "rows", "GMAC/s", "GB/s", "of peak %", "of bandwidth %", "limit %"), rows))
    if args.json:
        found = {
            "header": header(),
            "isa": isa,
            "threads": args.threads,
            "limits": {field: getattr(best, field) for field in kernels.Limits.__slots__},
            "results": [r._asdict() for r in results],
        }
        Path(args.json).write_text(json.dumps(found, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2", help=f"of {', '.join(SHAPES)}; or all")
    parser.add_argument("--types", default="q4_1,q8_0", help=f"of {', '.join(RANDOM_TYPES)}; or all")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=96, help="of weights in one pass")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=output_file, default="", help="write all figures to this file")
    args = parser.parse_args()
    args.rows = [int(part) for part in args.rows.split(",")]
    for option, known in (("models", SHAPES), ("types", RANDOM_TYPES)):
        names = list(known) if getattr(args, option) == "all" else getattr(args, option).split(",")
        for name in names:
            if name not in known:
                parser.error(f"--{option}: there is no {name!r}, only {', '.join(known)}")
        setattr(args, option, names)
    return args


def _measure(args: argparse.Namespace, label: str, kind: str, n: int, k: int) -> list[Result]:
    ggml_type = RANDOM_TYPES[kind]
    raw = np.concatenate(list(random_blocks(f"{label} {kind}", ggml_type, n * k, k**-0.5)))
    pool = kernels.ThreadPool(args.threads)
    copies = [kernels.pack_matrix(pool, [kernels.Matrix(ggml_type, raw, n, k)])]
    while len(copies) * copies[0].n_bytes < args.megabytes * 1e6:
        copies.append(kernels.pack_matrix(pool, [kernels.Matrix(ggml_type, raw, n, k)]))
    results = []
    for rows in args.rows:
        some = copies[: max(1, round(PASS_MACS / (rows * n * k)))]
        seconds = min(kernels.measure_products(pool, some, rows, args.rounds))
        gmacs, gigabytes = len(some) * rows * n * k / 1e9, len(some) * some[0].n_bytes / 1e9
        results.append(Result(label, kind, rows, gmacs / seconds, gigabytes / seconds))
    return results


def _shares(r: Result, limits: kernels.Limits, isa: str) -> tuple[float, float, float]:
    """In percent: of the multiply peak, of the bandwidth, of the one that binds."""
    bf16 = limits.bf16_macs_per_s
    # Where there are no products of bf16 they are made of float32 ones.
    peaks = {"f32": bf16 / 2 if isa == "avx512" else bf16, "f16": bf16, "bf16": bf16}
    of_peak = r.gmac_s * 1e11 / peaks.get(r.kind, limits.int8_macs_per_s)
    of_bandwidth = r.gb_s * 1e11 / limits.bytes_read_per_s
    return of_peak, of_bandwidth, max(of_peak, of_bandwidth)


if __name__ == "__main__":
    sys.exit(main())
