"""Settings from four places: default < TOML file < environment < flag, with the origin of each value.

The list of settings is `config.settings()`; flags, environment variables (`SIXFOLD_` + name) and TOML keys are made
from it, so a new field of the configuration is a new flag without a line here.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from sixfold.config import NOUNS, TYPES, Config, settings
from sixfold.errors import ConfigError

__all__ = [
    "DEFAULT",
    "ENVIRONMENT_PREFIX",
    "TITLES",
    "Resolved",
    "SettingsCommand",
    "names",
    "resolve",
    "setting_options",
    "unknown_environment",
]

ENVIRONMENT_PREFIX = "SIXFOLD_"
DEFAULT = "default"
OUTSIDE_SETTINGS = frozenset({"SIXFOLD_API_KEY", "SIXFOLD_CACHE", "SIXFOLD_CONFIG", "SIXFOLD_ISA"})
"""Environment variables that are no settings: read before, or far below, the configuration."""

_SERVICE_LINK = re.compile(
    r"SIXFOLD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes tells of a service called sixfold, or sixfold-something, to its neighbours."""
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")
"""What it says in the one of them that is a setting's, too: SIXFOLD_PORT."""
_OF_TESTS = "SIXFOLD_TEST_"

LOCAL = ("model", "scheduler", "cache", "executor", "")
"""Parts of the configuration that matter without HTTP."""

TITLES = {
    "model": "Model",
    "scheduler": "Scheduler",
    "cache": "KV cache",
    "executor": "Executor",
    "api": "HTTP API",
    "": "Whole program",
}
"""Part of the configuration -> heading in `--help` and in settings.md."""

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Resolved:
    """The configuration, and where each value came from."""

    config: Config
    values: dict[str, Any]
    """Name -> value, every setting in the order of `config.settings()`."""
    origins: dict[str, str]
    """Name -> `default`, the TOML file's path, the environment variable's name, or the flag."""

    def chosen(self, parts: tuple[str, ...] = LOCAL) -> dict[str, Any]:
        """Values that somebody chose (origin is not the default), of the given parts of the configuration."""
        owners = {f.name: owner for owner, f in settings().values()}
        return {n: v for n, v in self.values.items() if self.origins[n] != DEFAULT and owners[n] in parts}


class SettingsCommand(click.Command):
    """A command whose help shows its settings below its own options, under a heading for each part."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        owners = {f.name: owner for owner, f in settings().values()}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *TITLES.values())}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                owner = owners.get(param.name or "")
                sections["Options" if owner is None else TITLES[owner]].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def names() -> dict[str, type]:
    """Setting's name -> Python type."""
    return {f.name: TYPES[str(f.type)] for _, f in settings().values()}


def setting_options(
    *parts: str, skip: tuple[str, ...] = ("model",), hide: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """Decorator: `--config`, and a flag for each setting of the named parts of the configuration ("" is its top level).

    The command receives the flags in its keyword arguments, None where one was not given: pass them on to `resolve`.

    Args:
        skip: names of settings that get no flag.
        hide: names of settings that get a flag which the help does not show.
    """

    def decorate(command: Command) -> Command:
        for flag, (owner, f) in reversed(list(settings().items())):
            if owner in parts and f.name not in skip:
                command = _option(flag, f, hidden=f.name in hide)(command)
        config = click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            envvar="SIXFOLD_CONFIG",
            help="TOML file of settings, e.g. `max_num_seqs = 8`.",
        )
        return config(command)

    return decorate


def _option(flag: str, f: dataclasses.Field[Any], *, hidden: bool) -> Callable[[Command], Command]:
    kind = TYPES[str(f.type)]
    choices = f.metadata["choices"]
    shown = "" if f.default == "" else f"  [default: {str(f.default).lower() if kind is bool else f.default}]"
    help_text = f.metadata["help"][:1].upper() + f.metadata["help"][1:] + shown
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", f.name, default=None, help=help_text, hidden=hidden)
    value = click.Choice(choices) if choices else kind
    return click.option(flag, f.name, type=value, default=None, help=help_text, hidden=hidden)


def resolve(
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    misspelt: list[ConfigError] | None = None,
) -> Resolved:
    """Put the four sources together.

    Args:
        flags: setting's name -> value, None for "not given".
        config_file: TOML file, or None.
        environment: default: the process's own.
        misspelt: gets the errors about variables that nothing reads; None: the first is raised.

    Raises:
        ConfigError: an unknown key or variable, a value of the wrong type or out of range; the message names its
            origin.
    """
    kinds = names()
    values = {f.name: f.default for _, f in settings().values()}
    origins = dict.fromkeys(values, DEFAULT)

    def take(found: Mapping[str, Any], origin: Callable[[str], str]) -> None:
        for name, value in found.items():
            values[name], origins[name] = value, origin(name)

    environment = os.environ if environment is None else environment
    for fault in _misspelt(environment):
        if misspelt is None:
            raise fault
        misspelt.append(fault)
    if config_file is not None:
        take(_from_toml(config_file, kinds), lambda name: str(config_file))
    take(_from_environment(environment, kinds), _variable)
    take({name: value for name, value in flags.items() if value is not None}, lambda name: "flag")
    for name, value in values.items():
        if isinstance(value, str) and not _is_text(value):
            error = ConfigError(f"--{name.replace('_', '-')} is not valid UTF-8", param=f"--{name.replace('_', '-')}")
            raise _with_origin(error, origins)
    try:
        config = Config.from_flat({name: values[name] for name in values if origins[name] != DEFAULT})
    except ConfigError as error:
        raise _with_origin(error, origins) from None
    return Resolved(config, values, origins)


def _is_text(value: str) -> bool:
    """Bytes of the command line or the environment that are no text arrive as halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def unknown_environment(environment: Mapping[str, str] | None = None) -> list[str]:
    """`SIXFOLD_...` variables that nothing reads.

    Kubernetes sets some for its own ends; `doctor` lists them. All others are refused by `resolve`.
    """
    known = _known_variables()
    found = os.environ if environment is None else environment
    return sorted(
        name
        for name, text in found.items()
        if name.startswith(ENVIRONMENT_PREFIX) and (name not in known or _is_service_address(name, text))
    )


def _known_variables() -> set[str]:
    return {_variable(name) for name in names()} | OUTSIDE_SETTINGS


def _is_service_address(name: str, text: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None and _SERVICE_ADDRESS.fullmatch(text) is not None


def _misspelt(environment: Mapping[str, str]) -> Iterator[ConfigError]:
    """An error for each variable that nothing reads and Kubernetes has not set."""
    for name in unknown_environment(environment):
        if not _SERVICE_LINK.fullmatch(name) and not name.startswith(_OF_TESTS):
            own = {known.removeprefix(ENVIRONMENT_PREFIX) for known in _known_variables()}
            near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), sorted(own), n=1)
            hint = f"; did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""
            yield ConfigError(f"nothing reads the environment variable {name[:64]!r}{hint}", param=name[:64])


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _from_environment(environment: Mapping[str, str], kinds: Mapping[str, type]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = environment.get(_variable(name))
        if text is None or _is_service_address(_variable(name), text):
            continue
        try:
            found[name] = _WORDS[text.strip().lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{_variable(name)} is {text!r}; it must be {NOUNS[kind]}", param=name) from None
    return found


def _from_toml(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", param="--config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", param="--config") from None
    found: dict[str, Any] = {}
    for key, value in entries.items():
        name = key.replace("-", "_")
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{path}: there is no setting {key!r}{hint}", param=key)
        kind = kinds[name]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:  # not isinstance: for Python, true is an int
            raise ConfigError(f"{path}: {key} must be {NOUNS[kind]}", param=key)
        found[name] = value
    return found


def _with_origin(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """Say where a bad value came from, when it was not a flag: the user may not have typed it just now."""
    origin = origins.get((error.param or "").lstrip("-").replace("-", "_"), DEFAULT)
    suffix = "" if origin in (DEFAULT, "flag") else f" (set by {origin})"
    return ConfigError(error.message + suffix, param=error.param, code=error.code)
