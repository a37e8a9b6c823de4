"""What is refused before the server starts: openness that nobody asked for, files that others may change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sixfold.api.access.exposure import check_exposure, is_loopback
from sixfold.api.access.keys import load_keys, new_key
from sixfold.config import ApiConfig
from sixfold.errors import ConfigError


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write(tmp_path / "keys.toml", f'[alice]\nsha256 = "{new_key()[1]}"\n')


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]", "LOCALHOST"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    assert check_exposure(ApiConfig(host=host)) == []


def test_a_key_file_that_all_can_read_is_told_of(keys: str) -> None:
    os.chmod(keys, 0o644)
    assert "chmod 600" in check_exposure(ApiConfig(api_key_file=keys))[0]
    assert "unencrypted" in check_exposure(ApiConfig(host="0.0.0.0", api_key_file=keys))[1]
    os.chmod(keys, 0o640)
    assert check_exposure(ApiConfig(api_key_file=keys)) == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "10.0.0.1", "box", "localhost.example", "127.0.0.1.x"]
)
def test_threat_3_beyond_loopback_needs_keys_or_a_word(host: str, keys: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_exposure(ApiConfig(host=host))
    assert caught.value.param == "--host" and "--insecure-no-auth" in caught.value.message
    assert "asks for no key" in check_exposure(ApiConfig(host=host, insecure_no_auth=True))[0]
    assert "unencrypted" in check_exposure(ApiConfig(host=host, api_key_file=keys))[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("x", "not valid TOML"),
        ("key = 1", "[key]"),
        ("[a]", "[a] has no sha256: `sixfold key new a` makes"),
        ('a = "{d}"', "an entry is a line [NAME]"),
        ('[a]\nsha256 = "{d}"\n[b]\n[a]\n', "has two entries [a], the second in line 4: give one of them another name"),
        ("[a]\nsha256 = 5", "[a]: sha256 must be a string, not an integer"),
        ('[a]\nsha256 = "{d}"\nwieght = 2', "did you mean weight?"),
        ('[a]\nsha256 = "{d}"\nscope = "all"', "scope must be one of user, admin, not all"),
        ('[a]\nsha256 = "x"', "64 hexadecimal"),
        ('[a]\nsha256 = "{d}"\nscopes = "admin"', "scopes"),
        ('[a]\nsha256 = "{d}"\nscope = "root"', "scope"),
        ('[a]\nsha256 = "{d}"\nweight = 0', "weight"),
        ('[a]\nsha256 = "{d}"\ntokens_per_day = 0', "tokens_per_day"),
        ('[a]\nsha256 = "{d}"\nmax_concurrent = "2"', "max_concurrent"),
        ('[a]\nsha256 = "{d}"\ntenant = "x y"', "tenant"),
        ('["a b"]\nsha256 = "{d}"', "a name is"),
        ('[a]\nsha256 = "{d}"\n[b]\nsha256 = "{d}"', "the same sha256"),
    ],
)
def test_threat_4_wrong_key_files(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "keys.toml", text.format(d=64 * "a") if "{d}" in text else text)
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    assert says in caught.value.message and caught.value.param == "--api-key-file"


def test_threat_4_others_must_not_write_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.toml", f'[a]\nsha256 = "{64 * "a"}"', 0o666)
    with pytest.raises(ConfigError, match="written by others"):
        load_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(str(tmp_path / "none.toml"))


def test_a_new_key_is_long_and_its_own() -> None:
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50 and all(len(key) >= 54 and len(digest) == 64 for key, digest in keys)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    return make_certificate(folder)


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    os.chmod(key, 0o600)
    return str(cert), str(key)


def test_threat_16_certificate_and_key(tmp_path: Path, pair: tuple[str, str]) -> None:
    cert, key = pair
    assert check_exposure(ApiConfig(tls_cert=cert, tls_key=key)) == []
    other = tmp_path / "other"
    other.mkdir()
    wrong = make_certificate(other)[1]
    open_key = write(tmp_path / "open.pem", Path(key).read_text(), 0o644)
    for fields, says in (
        ({"tls_cert": cert}, "--tls-key is missing"),
        ({"tls_key": key}, "--tls-cert is missing"),
        ({"tls_cert": cert, "tls_key": wrong}, "no pair"),
        ({"tls_cert": cert, "tls_key": cert}, "open to other users"),
        ({"tls_cert": cert, "tls_key": open_key}, "open to other users"),
        ({"tls_cert": str(tmp_path / "none"), "tls_key": key}, "cannot be read"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_exposure(ApiConfig(**fields))
        assert says in caught.value.message and caught.value.param in ("--tls-cert", "--tls-key")
