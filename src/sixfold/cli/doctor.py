"""`sixfold doctor`: what this machine is, what is installed, and every setting with its value and origin."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import click

from sixfold import __version__
from sixfold.cli.settings import LOCAL, Resolved, SettingsCommand, resolve, setting_options, unknown_environment
from sixfold.config import settings
from sixfold.errors import ConfigError, ModelFileError, ModelNotFound, SixfoldError

__all__ = ["doctor"]

PACKAGES = ("numpy", "msgspec", "tokenizers", "jinja2", "starlette", "uvicorn", "httptools", "uvloop")


@click.command(cls=SettingsCommand, short_help="Show the machine, the versions and every setting.")
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options(*LOCAL, "api")
def doctor(model: str | None, as_json: bool, config_file: Path | None, **flags: Any) -> int:
    """Show the machine, the versions and every setting with its value and origin.

    Takes the arguments of `serve`, so that a command line can be looked at before it is used. Exit code 1: something
    is wrong, and the last lines say what.
    """
    misspelt: list[ConfigError] = []
    resolved = resolve({"model": model, **flags}, config_file, misspelt=misspelt)
    report = _report(resolved, misspelt)
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    return 1 if report["problems"] else 0


def _report(resolved: Resolved, misspelt: list[ConfigError]) -> dict[str, Any]:
    from sixfold.cli.machine import cores_allowed, cpu_name, memory_bytes

    problems: list[str] = []
    for error in misspelt:
        _add(problems, error)
    automatic = _automatic(resolved, problems)
    cores, share = cores_allowed()
    total, available = memory_bytes()
    return {
        "machine": {
            "cpu": cpu_name(),
            "architecture": platform.machine(),
            "cores": cores,
            "cores granted": share,
            "memory": total,
            "memory available": available,
            "instruction set": _instruction_set(problems),
        },
        "versions": {
            "sixfold": __version__,
            "python": platform.python_version(),
            "linux": platform.release(),
            **{name: _version(name, problems) for name in PACKAGES},
        },
        "models": _models(resolved.config.model.model, resolved.config.executor.executor, problems),
        "settings": {
            flag: {"value": resolved.values[f.name], "origin": resolved.origins[f.name]}
            | ({"means": automatic[f.name]} if f.name in automatic else {})
            for flag, (_, f) in settings().items()
        },
        "notes": _port_notes(resolved.config.api.host, resolved.config.api.port),
        "unknown environment variables": [n for n in unknown_environment() if n not in {e.param for e in misspelt}],
        "problems": problems,
    }


def _version(package: str, problems: list[str]) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        problems.append(f"The package {package} is not installed: make install")
        return None


def _instruction_set(problems: list[str]) -> str | None:
    """The build of the kernels that was chosen, as `avx512`."""
    from sixfold.engine.resolve import check_kernels

    try:
        check_kernels()
    except ConfigError as error:
        _add(problems, error)
        return None
    from sixfold import _native

    return f"{_native.default_isa()} (of {', '.join(_native.isas())})"


def _add(problems: list[str], error: SixfoldError) -> None:
    """A message as a line of its own. Those about a model file begin with its name, which stays as it is."""
    first = error.message[0] if isinstance(error, ModelFileError) else error.message[0].upper()
    end = "" if error.message.endswith("?") else "."
    sentence = f"{first}{error.message[1:]}{end}"
    if sentence not in problems:  # two sections may meet the same one
        problems.append(sentence)


def _models(wanted: str, executor: str, problems: list[str]) -> dict[str, Any]:
    from sixfold import model_store

    entries = model_store.list_models()
    here, known = [entry.name for entry in entries if entry.cached], [entry.name for entry in entries]
    if executor != "scripted" and not model_store.can_pull(wanted):
        try:
            model_store.resolve(wanted)
        except ModelNotFound as error:
            _add(problems, error)
    return {"cache": str(model_store.cache_dir()), "known": known, "here": here}


def _automatic(resolved: Resolved, problems: list[str]) -> dict[str, Any]:
    """Name of a setting that is left to Sixfold -> what it becomes with this model, which must be here."""
    from sixfold import model_store
    from sixfold.engine.launch import recommended_sampling
    from sixfold.engine.resolve import resolve as resolve_model

    config = resolved.config
    try:
        if config.executor.executor != "scripted":
            model_store.resolve(config.model.model)
        found = resolve_model(config)
        recommended = recommended_sampling(found)
    except ModelNotFound:
        return {}  # `_models` says so where it is a problem
    except SixfoldError as error:
        _add(problems, error)
        return {}
    values = {f.name: getattr(getattr(found, owner) if owner else found, f.name) for owner, f in settings().values()}
    automatic = {
        name: values[name]
        for name, given in resolved.values.items()
        if type(given) is int and given == 0 and values[name] != 0
    }
    if recommended:
        automatic["generation_config"] = ", ".join(f"{name} {value}" for name, value in recommended.items())
    return automatic


def _port_notes(host: str, port: int) -> list[str]:
    import socket

    if port == 0:
        return []
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return [f"`serve` cannot listen on {host}:{port} now: {error.strerror or error}"]
    return []


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    for title in ("machine", "versions"):
        console.print(f"[bold]{title}[/bold]")
        for name, value in report[title].items():
            console.print(f"  {name:18}{_shown(name, value)}", markup=False)
    models = report["models"]
    console.print("[bold]models[/bold]")
    console.print(f"  {'cache':18}{models['cache']}", markup=False)
    console.print(f"  {'here':18}{', '.join(models['here']) or 'none'}", markup=False)
    table = Table("setting", "value", "origin", title="settings", title_justify="left", title_style="bold")
    for flag, entry in report["settings"].items():
        style = None if entry["origin"] == "default" else "bold"
        means = f" (here {entry['means']})" if "means" in entry else ""
        table.add_row(flag, _shown(flag, entry["value"]) + means, entry["origin"], style=style)
    console.print(table)
    for name in report["unknown environment variables"]:
        console.print(f"note: {name} is of Kubernetes, and nothing reads it (enableServiceLinks)", markup=False)
    for note in report["notes"]:
        console.print(f"note: {note}", markup=False)
    if os.environ.get("SIXFOLD_ISA"):
        console.print(f"note: SIXFOLD_ISA={os.environ['SIXFOLD_ISA']} forces the instruction set", markup=False)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", markup=False, style="red")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "no limit" if name == "cores granted" else "unknown"
    if name.startswith("memory"):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
