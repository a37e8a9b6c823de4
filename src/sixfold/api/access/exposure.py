"""Who can reach the server, and how: checked once, before a process is started.

127.0.0.1, localhost, ::1        no key needed: only this machine
any other address                a key file, or the word that none is wanted (--insecure-no-auth)
--tls-cert with --tls-key        https; without them, keys travel as they are: leave TLS to a proxy
"""

from __future__ import annotations

import ipaddress
import os
import stat

from sixfold.api.access.keys import load_keys
from sixfold.config import ApiConfig
from sixfold.errors import ConfigError

__all__ = ["check_exposure"]


def check_exposure(config: ApiConfig) -> list[str]:
    """
    Returns:
        What is legal, but may surprise: one sentence each.

    Raises:
        ConfigError: it would be open to everybody, or keys or certificate cannot be used.
    """
    cautions = []
    if config.api_key_file:
        load_keys(config.api_key_file)
        if os.stat(config.api_key_file).st_mode & stat.S_IROTH:
            cautions.append(f"every user of this machine can read --api-key-file {config.api_key_file}; chmod 600")
    _check_tls(config)
    if is_loopback(config.host):
        return cautions
    if not config.api_key_file and not config.insecure_no_auth:
        raise ConfigError(
            f"--host {config.host} can be reached from other machines, and there are no API keys: give --api-key-file "
            "(`sixfold key new` makes a key), or --insecure-no-auth if whoever reaches it may use it",
            param="--host",
        )
    if not config.api_key_file:
        return [*cautions, f"whoever reaches {config.host} may use this server: it asks for no key (--api-key-file)"]
    if not config.tls_cert:
        return [*cautions, "API keys travel unencrypted: use --tls-cert and --tls-key, or a proxy with TLS in front"]
    return cautions


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than `localhost` may be any."""
    name = host.strip().lower().strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check_tls(config: ApiConfig) -> None:
    if not config.tls_cert and not config.tls_key:
        return
    if not config.tls_cert or not config.tls_key:
        missing = "--tls-key" if config.tls_cert else "--tls-cert"
        raise ConfigError(f"{missing} is missing: https needs a certificate and its key", param=missing)
    for flag, path in (("--tls-cert", config.tls_cert), ("--tls-key", config.tls_key)):
        try:
            mode = os.stat(path).st_mode
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}", param=flag) from None
        if mode & (stat.S_IWGRP | stat.S_IWOTH) or (flag == "--tls-key" and mode & stat.S_IRWXO):
            raise ConfigError(f"{flag} {path} is open to other users (mode {mode & 0o777:o}); chmod 600", param=flag)
    import ssl  # a server without a certificate does not wait for it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password is never asked for: nobody may be there to type it.
        context.load_cert_chain(config.tls_cert, config.tls_key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"--tls-cert {config.tls_cert} and --tls-key {config.tls_key} are no pair of PEM files without a password: "
            f"{reason}",
            param="--tls-cert",
        ) from None
