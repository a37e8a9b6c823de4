"""API keys: the file that lists them, and who a call's caller is.

    [alice]                             a name, for logs and for `tenant`
    sha256 = "9f86d081884c7d65..."      of the key; the key itself is nowhere in the server
    scope = "admin"                     default: user
    tenant = "team-a"                   default: the name; keys of one tenant share stored responses and cached prompts
    weight = 2                          share of the engine under --scheduling-policy fair; default 1
    requests_per_minute = 600           these four: default none
    tokens_per_minute = 100000          prompt and completion
    tokens_per_day = 5000000
    max_concurrent = 8

`sixfold key new NAME` makes a key of 256 random bits, so a plain hash of it cannot be searched, and no salt is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from sixfold.api.admission.allowance import Allowance
from sixfold.api.admission.tallies import Tallies
from sixfold.errors import ConfigError, Unauthorized
from sixfold.logs import KEY_PREFIX

__all__ = ["ANYBODY", "ApiKey", "Caller", "KeyRing", "is_name", "load_keys", "new_key"]

MAX_KEYS = 1024
"""All of them are compared for each call: a microsecond for four."""

MAX_KEY_BYTES = 512
"""Of what a caller presents; nothing longer is hashed."""

MAX_FILE_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

_TWICE = re.compile(r"^Cannot declare \('(?P<name>[^']*)',\) twice \(at line (?P<line>\d+),")

_FLAG = "--api-key-file"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the file."""

    sha256: str
    scope: Literal["user", "admin"] = "user"
    tenant: str = ""
    weight: int = 1
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_concurrent: int | None = None


class Caller:
    """Who makes a call.

    Attributes:
        name: of the key; "": keys are not asked for.
        tenant: what is stored or cached for one is not there for another.
        allowance: what is left to the key; None: as much as there is.
    """

    __slots__ = ("allowance", "is_admin", "name", "tenant", "weight")

    def __init__(
        self, name: str, tenant: str, *, is_admin: bool, weight: int = 1, allowance: Allowance | None = None
    ) -> None:
        self.name = name
        self.tenant = tenant
        self.is_admin = is_admin
        self.weight = weight
        self.allowance = allowance

    def salted(self, cache_salt: str) -> str:
        """The salt of this caller's cached blocks. A tenant's is led by its length, so that no text which another one
        sends as `cache_salt` can make its own: how long an answer takes says nothing about other tenants' prompts."""
        return f"{len(self.tenant)}:{self.tenant}:{cache_salt}" if self.tenant else cache_salt


ANYBODY = Caller("", "", is_admin=True)
"""Every caller of a server without keys."""


class KeyRing:
    """The keys of one process.

    Args:
        tallies: of the keys, in their order, where several API processes share their limits.
    """

    def __init__(self, keys: dict[str, ApiKey], tallies: Tallies | None = None) -> None:
        tallies = tallies or Tallies.private(len(keys))
        self._callers = [
            (
                bytes.fromhex(key.sha256),
                Caller(
                    name,
                    key.tenant or name,
                    is_admin=key.scope == "admin",
                    weight=key.weight,
                    allowance=Allowance.of(key, tallies[i]),
                ),
            )
            for i, (name, key) in enumerate(keys.items())
        ]

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Who presents a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`; where both are there, the first
        counts.

        Raises:
            Unauthorized: no key, several, or an unknown one.
        """
        bearer = [value for name, value in headers if name == b"authorization"]
        plain = [value for name, value in headers if name == b"x-api-key"]
        if len(bearer) > 1 or len(plain) > 1:
            raise Unauthorized("the request has several API keys")
        if bearer:
            scheme, _, presented = bearer[0].partition(b" ")
            if scheme.lower() != b"bearer":
                raise Unauthorized("Authorization must be: Bearer, and an API key")
        elif plain:
            presented = plain[0]
        else:
            raise Unauthorized("no API key was sent; use the header Authorization: Bearer KEY", code="missing_api_key")
        return self._find(presented.strip())

    def callers(self) -> list[Caller]:
        """Whose keys these are."""
        return [caller for _, caller in self._callers]

    def _find(self, presented: bytes) -> Caller:
        """Compares with all keys, each in constant time, whether it has found one or not."""
        digest = hashlib.sha256(presented[:MAX_KEY_BYTES]).digest()
        found = None
        for known, caller in self._callers:
            if hmac.compare_digest(digest, known):
                found = caller
        if found is None or len(presented) > MAX_KEY_BYTES:
            raise Unauthorized("the API key is not valid")
        return found


def is_name(text: str) -> bool:
    """Whether a key, or a tenant, may be called so."""
    return bool(_NAME.fullmatch(text))


def new_key() -> tuple[str, str]:
    """A new key, and its SHA-256 in hexadecimal digits."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


def load_keys(path: str) -> dict[str, ApiKey]:
    """Read a key file.

    Returns:
        Name -> key, at least one.

    Raises:
        ConfigError: it cannot be read, others may write to it, or an entry is wrong; the message names the entry.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
        entries = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{_FLAG} {path} cannot be read: {error.strerror}", param=_FLAG) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if twice := _TWICE.search(str(error)):
            name, line = twice["name"][:64], twice["line"]
            raise ConfigError(
                f"{_FLAG} {path} has two entries [{name}], the second in line {line}: give one of them "
                "another name, or remove it",
                param=_FLAG,
            ) from None
        # The library's words quote nothing of the file but a character.
        raise ConfigError(f"{_FLAG} {path} is not valid TOML: {error}", param=_FLAG) from None
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{_FLAG} {path} can be written by others than its owner; chmod go-w", param=_FLAG)
    if len(data) > MAX_FILE_BYTES or len(entries) > MAX_KEYS:
        raise ConfigError(f"{_FLAG} {path} has more than {MAX_KEYS} keys or {MAX_FILE_BYTES} bytes", param=_FLAG)
    if not entries:
        raise ConfigError(f"{_FLAG} {path} has no key; `sixfold key new NAME` makes one", param=_FLAG)
    keys = {name: _checked(Path(path).name, name, entry) for name, entry in entries.items()}
    digests = {key.sha256 for key in keys.values()}
    if len(digests) < len(keys):
        raise ConfigError(f"{_FLAG} {path}: two entries have the same sha256", param=_FLAG)
    return keys


def _checked(file: str, name: str, entry: object) -> ApiKey:
    where = f"{_FLAG} {file}: [{name[:64]}]"
    if not is_name(name):
        raise ConfigError(f"{where}: a name is 1 to 64 letters, digits and ._-", param=_FLAG)
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: an entry is a line [NAME] and what `sixfold key new NAME` prints", param=_FLAG)
    if "sha256" not in entry:
        raise ConfigError(
            f"{where} has no sha256: `sixfold key new {name}` makes a key and prints the line for it", param=_FLAG
        )
    try:
        key = msgspec.convert(entry, ApiKey)
    except msgspec.ValidationError as error:
        from sixfold.api.http.type_fault import refusal  # a server with a right file does not wait for it

        raise ConfigError(f"{where}: {refusal(ApiKey, str(error)).message}", param=_FLAG) from None
    if not _DIGEST.fullmatch(key.sha256):
        raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits, as `sixfold key new` prints", param=_FLAG)
    if key.tenant and not is_name(key.tenant):
        raise ConfigError(f"{where}: tenant is 1 to 64 letters, digits and ._-", param=_FLAG)
    if not 1 <= key.weight <= 1000:
        raise ConfigError(f"{where}: weight must be between 1 and 1000", param=_FLAG)
    for field in ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "max_concurrent"):
        value = getattr(key, field)
        if value is not None and value < 1:
            raise ConfigError(f"{where}: {field} must be at least 1; leave it out for no limit", param=_FLAG)
    return key
