"""What a server's processes are told at their start, through files in the run directory (0700)."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from pathlib import Path

import msgspec

from sixfold.config import Config
from sixfold.errors import ConfigError
from sixfold.roles import ENGINE, WORKER, slug

__all__ = ["RunFiles", "ServerStart", "hash_key_of", "read_run_files", "socket_paths", "write_run_files"]


class ServerStart(msgspec.Struct, frozen=True):
    """When a server was started: one moment for all its processes, whichever of them were started again since."""

    monotonic_s: float
    unix_s: int

    @classmethod
    def now(cls) -> ServerStart:
        return cls(time.monotonic(), int(time.time()))


class RunFiles(msgspec.Struct, frozen=True):
    """What a child process is told at its start, through a file in the run directory (0700)."""

    config: Config
    epoch: int
    """Of the first engine; of those that follow, see `Count.EPOCH`."""
    digest: str
    """Of the configuration: processes of different configurations refuse each other."""
    worker_path: str
    engine_path: str
    hash_key: str
    """Of the prefix cache, hexadecimal: every engine of this server gives a block the same name."""
    start: ServerStart
    faults: int = 0
    """Crashes so far of an engine or a worker that were of their own making; see `Count.FAULTS`."""


def socket_paths(run_dir: str) -> tuple[str, str]:
    """Where the worker and the engine listen."""
    return os.path.join(run_dir, f"{slug(WORKER)}.sock"), os.path.join(run_dir, f"{slug(ENGINE)}.sock")


def write_run_files(run_dir: str, config: Config, *, epoch: int) -> RunFiles:
    """Once in a server's life: what changes with each engine is in `Progress`, so that a full disk keeps nobody from
    being started again."""
    if config.api.api_key_file:
        # Its own copy, so that every API process knows the same keys, whatever becomes of the file meanwhile.
        keys = Path(run_dir, "keys.toml")
        keys.touch(mode=0o600)
        keys.write_bytes(_read_keys(config.api.api_key_file))
        config = dataclasses.replace(config, api=dataclasses.replace(config.api, api_key_file=str(keys)))
    worker_path, engine_path = socket_paths(run_dir)
    run = RunFiles(
        config=config,
        epoch=epoch,
        digest=secrets.token_hex(8),
        worker_path=worker_path,
        engine_path=engine_path,
        hash_key=hash_key_of(config).hex(),
        start=ServerStart.now(),
    )
    path = Path(run_dir, "run.json")
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(run))
    return run


def read_run_files(run_dir: str, told_fd: int = -1) -> RunFiles:
    """Of a server's child.

    Args:
        told_fd: read end of a pipe that ends when the file is there; it is closed.
    """
    if told_fd >= 0:
        os.read(told_fd, 1)
        os.close(told_fd)
    return msgspec.json.decode(Path(run_dir, "run.json").read_bytes(), type=RunFiles)


def hash_key_of(config: Config) -> bytes:
    """Pinned by `--seed`, else random: nobody outside can construct two prompts of one name."""
    return config.seed.to_bytes(16, "little", signed=True) if config.seed else secrets.token_bytes(16)


def _read_keys(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        message = f"--api-key-file {path} cannot be read: {e.strerror}"
        raise ConfigError(message, param="--api-key-file") from e
