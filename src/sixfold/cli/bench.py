"""`sixfold bench`: tokens per second of a model on this machine, and what the machine could do at best."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sixfold.cli.prepare import prepare
from sixfold.cli.settings import LOCAL, SettingsCommand, resolve, setting_options
from sixfold.errors import ConfigError
from sixfold.sizes import size_text

if TYPE_CHECKING:
    from sixfold.llm import LLM

__all__ = ["bench"]

_PREFILL_DEFAULT = 512
_DECODE_DEFAULT = (1, 8, 32, 64)
_BREAKDOWN_DEFAULT = (8, 64, 256)


def _counts(_ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`1,8,32` -> (1, 8, 32)."""
    if value is None:
        return None
    try:
        counts = tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers like 1,8,32", param=param) from None
    if not counts:
        raise click.BadParameter("at least one number is needed", param=param)
    if any(count < 1 for count in counts):
        raise click.BadParameter("every number must be at least 1", param=param)
    return tuple(dict.fromkeys(counts))


@click.command(cls=SettingsCommand, short_help="Measure tokens per second.")
@click.argument("model", required=False)
@click.option(
    "--prefill",
    metavar="N,N,...",
    callback=_counts,
    help="Prompt lengths to time.  [default: 512, or what the model's context holds]",
)
@click.option(
    "--decode",
    metavar="N,N,...",
    callback=_counts,
    help="Batch sizes to time.  [default: 1,8,32,64; with --breakdown 8,64,256]",
)
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Prompt before decoding.")
@click.option("--output-tokens", type=click.IntRange(2), default=128, show_default=True, help="Tokens each decodes.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Prefills; the median counts.")
@click.option("--breakdown", is_flag=True, help="Show instead where the time of a step goes, in a server under load.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options(
    *LOCAL,
    hide=(
        "generation_config",
        "max_queued_requests",
        "max_queued_tokens",
        "scheduling_policy",
        "script",
        "served_model_name",
    ),
)
def bench(
    model: str | None,
    prefill: tuple[int, ...] | None,
    decode: tuple[int, ...] | None,
    prompt_tokens: int,
    output_tokens: int,
    repeat: int,
    breakdown: bool,
    as_json: bool,
    config_file: Path | None,
    **flags: Any,
) -> int:
    """Measure MODEL (default: smollm2): prefill of one prompt, then decoding alone at several batch sizes.

    The figures come from the scheduler, worker and sampler that serve requests, in one process and without HTTP.
    `tokens_sha256` is the hash of the greedy tokens of the first prompt; equal builds give equal hashes.
    With --breakdown a server is started and loaded over HTTP, and its own clocks say what each part of a step takes.
    """
    decode = decode or (_BREAKDOWN_DEFAULT if breakdown else _DECODE_DEFAULT)
    if breakdown:
        _refuse_given("prefill", "repeat")
        return _break_down(model, decode, prompt_tokens, output_tokens, as_json, config_file, flags)
    resolved = resolve({"model": model, **flags}, config_file)
    name = resolved.config.model.model
    prepare(resolved.config)
    chosen = resolved.chosen()
    # Room for the largest batch, unless the user said otherwise.
    chosen.setdefault("max_num_seqs", max(resolved.config.scheduler.max_num_seqs, *decode))
    from sixfold.llm import LLM

    with LLM(**{**chosen, "model": name}) as llm:
        report = _measure(llm, prefill, decode, prompt_tokens, output_tokens, repeat)
    report = {"model": name, "settings": resolved.chosen(), **report}
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print_table(report)
    return 0


def _refuse_given(*names: str) -> None:
    """Raises: click.UsageError: one of these options was given, and does nothing with --breakdown."""
    for name in names:
        if click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} has no place with --breakdown, which measures steps that decode.")


def _break_down(
    model: str | None,
    decode: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    as_json: bool,
    config_file: Path | None,
    flags: dict[str, Any],
) -> int:
    import msgspec

    from sixfold.cli.breakdown import break_down, print_breakdown
    from sixfold.cli.measurement import Prompts
    from sixfold.engine.launch import load_text
    from sixfold.engine.resolve import resolve as resolve_model

    own = {"host": "127.0.0.1", "port": 0, "api_key_file": "", "tls_cert": "", "tls_key": "", "drain_timeout_s": 0.0}
    asked = resolve({"model": model, **flags, **own}, config_file)
    if asked.config.scheduler.max_num_seqs < max(decode):
        asked = resolve({"model": model, **flags, **own, "max_num_seqs": max(decode)}, config_file)
    prepare(asked.config)
    config = resolve_model(asked.config)
    tokenizer = load_text(config).tokenizer
    prompts = Prompts([i for i in range(tokenizer.n_vocab) if not tokenizer.is_control(i)])
    found = break_down(config, prompts, decode, prompt_tokens, output_tokens)
    if as_json:
        click.echo(json.dumps({"model": asked.config.model.model, "breakdown": msgspec.to_builtins(found)}))
    else:
        print_breakdown(found)
    return 0


def _measure(
    llm: LLM,
    prefill: tuple[int, ...] | None,
    decode: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    repeat: int,
) -> dict[str, Any]:
    from sixfold.cli.machine import cpu_name, measured_limits
    from sixfold.cli.measurement import Prompts, measure_decode, measure_prefill, tokens_sha256

    core = llm.core
    facts = core.executor.facts
    room = facts.max_model_len - 1  # a prefill ends with a token
    if prefill is None:
        prefill = (min(_PREFILL_DEFAULT, room),)
    asked = {"--prefill": max(prefill), "--prompt-tokens and --output-tokens": prompt_tokens + output_tokens}
    for flags, n_tokens in asked.items():
        if n_tokens > room:
            raise ConfigError(
                f"{n_tokens} tokens of {flags} are too many: the model's context of {facts.max_model_len} "
                f"has room for {room}",
                param=flags.split()[0],
            )
    prompts = Prompts([i for i in range(llm.tokenizer.n_vocab) if not llm.tokenizer.is_control(i)])
    measure_decode(core, prompts, 1, prompt_tokens=32, output_tokens=16)  # warm-up: page faults, thread start

    speeds: dict[str, float] = {}
    for n_tokens in prefill:
        speeds[f"prefill_{n_tokens}"] = round(measure_prefill(core, prompts, n_tokens, repeat), 1)
    outputs: list[list[int]] = []
    agree = True
    for batch in decode:
        run = measure_decode(core, prompts, batch, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        speeds[f"decode_{batch}"] = round(run.tokens_per_s, 1)
        shared = min(len(outputs), len(run.outputs))
        agree = agree and outputs[:shared] == run.outputs[:shared]
        outputs = max(outputs, run.outputs, key=len)
    return {
        **speeds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prompt_token_ids": prompts.make("decode", 0, prompt_tokens),
        "tokens_sha256": tokens_sha256(outputs[0]),
        "tokens_agree": agree,
        "limits": measured_limits(llm.config.executor.threads),
        "bytes_weights": facts.bytes_weights,
        "isa": facts.isa,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": llm.config.executor.threads,
        "python": platform.python_version(),
    }


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    machine = f"{report['cpu']}, {report['threads']} threads on {report['cores']} cores, {report['isa']}"
    console.print(f"{Path(report['model']).name} on {machine}", markup=False)
    table = Table()
    table.add_column("measured")
    table.add_column("tokens/s", justify="right")
    table.add_column("what it is")
    for key, value in report.items():
        kind, _, count = key.partition("_")
        if kind == "prefill" and count.isdigit():
            table.add_row(key, f"{value:,.1f}", f"a prompt of {count} tokens")
        elif kind == "decode" and count.isdigit():
            after = f"after {report['prompt_tokens']} prompt tokens"
            what = f"one sequence, {after}" if count == "1" else f"{count} sequences together, {after} each"
            table.add_row(key, f"{value:,.1f}", what)
    console.print(table)
    limits, bytes_weights = report["limits"], report["bytes_weights"]
    read = f"memory read {limits['memory_read_gb_s']:,.1f} GB/s, int8 {limits['int8_gmac_s']:,.0f} GMAC/s"
    if bytes_weights:
        most = limits["memory_read_gb_s"] * 1e9 / bytes_weights
        read += f"; reading {size_text(bytes_weights)} of weights once a token allows {most:,.0f} tokens/s"
    console.print(f"limits: {read}")
    agree = "equal in every batch" if report["tokens_agree"] else "NOT EQUAL in every batch"
    console.print(f"tokens: sha256 {report['tokens_sha256']} ({agree})")
