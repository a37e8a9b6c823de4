"""What structured output costs: decode speed of rows under schemas against free rows, taken in turns in one process.

Each constrained row has a schema of its own: an object of ten fields with free strings. All rows draw with the same
temperature. The bar is 85 % of the free rows' speed.

    python benchmarks/structured.py [MODEL] [--rows 32] [--tokens 96] [--rounds 5] [--temperature 0.8]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from sixfold import LLM, SamplingParams, StructuredOutputs

FIELDS = "name title city country street summary reason author colour remark".split()


def schema(row: int) -> dict[str, object]:
    """Ten fields; strings without a bound, but for some that are long at least."""
    properties: dict[str, object] = {}
    for i, field in enumerate(FIELDS):
        kind = (i + row) % 5
        properties[f"{field}_{row}"] = (
            {"type": "string", "minLength": 60}
            if kind < 3
            else {"type": "array", "items": {"type": "string"}, "minItems": 3}
            if kind == 3
            else {"type": "string", "minLength": 20, "maxLength": 200}
        )
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def decode_speed(llm: LLM, params: list[SamplingParams]) -> float:
    """Tokens per second of the steps in which every row draws one."""
    streams = [llm.stream(f"Item {i} as JSON:", own) for i, own in enumerate(params)]
    for stream in streams:
        next(stream)
    began, n_tokens = time.perf_counter(), 0
    for _ in range(params[0].max_tokens or 0):
        for stream in streams:
            delta = next(stream, None)
            n_tokens += 0 if delta is None else len(delta.token_ids)
    took = time.perf_counter() - began
    for stream in streams:
        stream.close()
    return n_tokens / took


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", nargs="?", default="smollm2")
    arguments.add_argument("--rows", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=96)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--temperature", type=float, default=0.8)
    arguments.add_argument("--threads", type=int, default=0)
    given = arguments.parse_args()
    shares, free_speeds, bound_speeds = [], [], []
    with LLM(given.model, max_num_seqs=given.rows, max_model_len=1024, threads=given.threads) as llm:
        for round_ in range(given.rounds + 1):
            common = [
                {"temperature": given.temperature, "seed": 1000 * round_ + i, "max_tokens": given.tokens}
                for i in range(given.rows)
            ]
            free = decode_speed(llm, [SamplingParams(**own, ignore_eos=True) for own in common])
            bound = decode_speed(
                llm,
                [
                    SamplingParams(**own, structured_outputs=StructuredOutputs(json=schema(i)))
                    for i, own in enumerate(common)
                ],
            )
            if round_:  # the first round loads what is loaded once
                free_speeds.append(free)
                bound_speeds.append(bound)
                shares.append(bound / free)
    print(
        json.dumps(
            {
                "rows": given.rows,
                "free_tokens_per_s": round(statistics.median(free_speeds), 1),
                "structured_tokens_per_s": round(statistics.median(bound_speeds), 1),
                "share": round(statistics.median(shares), 3),
                "shares": [round(share, 3) for share in shares],
            }
        )
    )


if __name__ == "__main__":
    main()
