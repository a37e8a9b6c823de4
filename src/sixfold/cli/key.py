"""`sixfold key new`: an API key for a caller, and the entry for the server's key file."""

from __future__ import annotations

import os
import stat

import click

__all__ = ["key"]


@click.group(short_help="Make API keys.")
def key() -> None:
    """API keys for `sixfold serve --api-key-file`."""


@key.command(short_help="Make a key.")
@click.argument("name")
@click.option(
    "--admin",
    is_flag=True,
    help="Scope admin: also /metrics, what `top`, `waits`, `trace` and the page show of all requests, and their abort.",
)
def new(name: str, admin: bool) -> None:
    """Make a key for NAME.

    The key goes to standard output and is shown this once. The entry for the key file, which has only the key's hash,
    goes to standard error. A new file that one of them goes to is made readable by nobody else:

    \b
    sixfold key new alice 2>>keys.toml
    """
    from sixfold.api.access.keys import is_name, new_key
    from sixfold.errors import ConfigError

    if not is_name(name):
        raise ConfigError(f"{name[:64]!r} is no name for a key: 1 to 64 letters, digits and ._-", param="NAME")
    made, digest = new_key()
    quoted = f'"{name}"' if "." in name else name
    scope = '\nscope = "admin"' if admin else ""
    are_private = [_keep_private(fd) for fd in (1, 2)]
    click.echo(f'[{quoted}]\nsha256 = "{digest}"{scope}\n', err=True)
    click.echo(made)
    if not all(are_private):
        click.echo("# others can read the file that this, or the key, went to: chmod 600\n", err=True)


def _keep_private(fd: int) -> bool:
    """Whether what is written to a descriptor is for nobody else. A file that the shell has just made becomes so; one
    that holds something already is left as it is."""
    try:
        status = os.fstat(fd)
    except OSError:
        return True  # closed: nothing is written
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return True
    if status.st_size or status.st_uid != os.geteuid():
        return False
    os.fchmod(fd, 0o600)
    return True
