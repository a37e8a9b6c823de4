"""Models by `org/name`, through huggingface_hub.

That library does the network and keeps the files: its settings hold (HF_ENDPOINT for a mirror, HF_TOKEN or a stored
login, HF_HUB_OFFLINE, HF_HOME for the place), an interrupted download goes on where it stopped, and other programs of
the same user share the files. What is fetched is data only: weights as safetensors or GGUF, JSON and templates.
Pickled weights and Python files are never fetched.

    org/name                 a folder of safetensors, or the only GGUF file of a repository
    org/name:Q4_K_M          of several GGUF files the one with this in its name
    org/name@revision        a branch, tag or commit
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sixfold.errors import DownloadError, ModelNotFound

__all__ = ["HubEntry", "HubName", "find", "list_cached", "pull", "remove"]

_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,200}))?(?::(?P<file>[\w.-]{1,200}))?",
    re.ASCII,
)
_FOLDER_FILES = ["*.safetensors", "*.json", "*.jinja"]
_OTHER_FILES = ["*/*", "consolidated*", "*.onnx*"]
"""Not fetched with a folder: what lies in folders of the repository, and a second copy of the weights."""
_PART = re.compile(r"-\d{5}-of-(\d{5})(?=\.gguf$)")
_SHA256 = re.compile("[0-9a-f]{64}")
_CHUNK_BYTES = 4 << 20
_CHOICES_SHOWN = 12


@dataclass(frozen=True)
class HubName:
    """A name of the form above, taken apart."""

    repo: str
    revision: str | None = None
    file: str = ""

    @classmethod
    def parse(cls, name: str) -> HubName | None:
        """None if it has another form."""
        match = _NAME.fullmatch(name)
        if match is None or ".." in name or match["repo"].endswith(".gguf"):
            return None
        return cls(match["repo"], match["revision"], match["file"] or "")


@dataclass(frozen=True)
class HubEntry:
    """A repository in the library's cache."""

    repo: str
    n_bytes: int


def find(name: HubName) -> Path | None:
    """The folder or GGUF file, if all of it is on this machine; no network.

    Raises:
        ModelNotFound: several GGUF files are here, and the name does not choose.
    """
    folder = _snapshot(name, [])
    if folder is None:
        return None
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    if _is_weights_folder(files):
        return None if name.file else _snapshot(name, _FOLDER_FILES)
    chosen = _chosen(name, files, or_none=True)
    return folder / chosen[0] if chosen else None


def pull(name: HubName, *, show_progress: bool) -> Path:
    """Fetch a model, or what is missing of it, and check its digests.

    Raises:
        ModelNotFound: there is no such repository, revision or file.
        DownloadError: it could not be fetched, needs permission, or arrived damaged.
    """
    import huggingface_hub

    with _explained(name), _quiet(not show_progress):
        files = _remote_files(name)
        if _is_weights_folder(files):
            if name.file:
                raise ModelNotFound(f"{name.repo} holds safetensors, not GGUF files; leave out `:{name.file}`")
            patterns, ignored, chosen = _FOLDER_FILES, _OTHER_FILES, None
        else:
            chosen = _chosen(name, files)
            patterns, ignored = [_literal(file) for file in chosen], []
        snapshot = huggingface_hub.snapshot_download(
            name.repo, revision=name.revision, allow_patterns=patterns, ignore_patterns=ignored or None
        )
    folder = Path(snapshot)
    _check_digests(folder)
    return folder if chosen is None else folder / chosen[0]


def list_cached() -> list[HubEntry]:
    """Repositories in the library's cache that hold safetensors or GGUF files."""
    return [HubEntry(repo.repo_id, repo.size_on_disk) for repo in _cached_repos()]


def remove(name: HubName) -> bool:
    """Delete every revision of a repository from the library's cache; True if there was one.

    Raises:
        DownloadError: the cache cannot be written.
    """
    found = [repo for repo in _cached_repos() if repo.repo_id == name.repo]
    for repo in found:
        try:
            shutil.rmtree(repo.repo_path)
        except OSError as error:
            raise DownloadError(f"cannot delete {repo.repo_path}: {error.strerror or error}") from error
    return bool(found)


def _cached_repos() -> list[Any]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    wanted = (".safetensors", ".gguf")
    return sorted(
        (
            repo
            for repo in repos
            if repo.repo_type == "model"
            and any(file.file_name.endswith(wanted) for revision in repo.revisions for file in revision.files)
        ),
        key=lambda repo: str(repo.repo_id),
    )


def _snapshot(name: HubName, patterns: list[str]) -> Path | None:
    """The library's folder of a revision, if all files that match the patterns are in it; no network."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            huggingface_hub.snapshot_download(
                name.repo,
                revision=name.revision,
                local_files_only=True,
                allow_patterns=patterns,
                ignore_patterns=_OTHER_FILES,
            )
        )
    except (LocalEntryNotFoundError, ValueError):  # a ValueError: not a name that the library accepts
        return None


def _remote_files(name: HubName) -> list[str]:
    """Paths in the repository."""
    from huggingface_hub import HfApi

    # `list_repo_files` would try for 23 seconds to reach a hub that is not there.
    info = HfApi().model_info(name.repo, revision=name.revision)
    return [sibling.rfilename for sibling in info.siblings or []]


def _is_weights_folder(files: Iterable[str]) -> bool:
    names = set(files)
    return "config.json" in names and any("/" not in name and name.endswith(".safetensors") for name in names)


def _chosen(name: HubName, files: Iterable[str], *, or_none: bool = False) -> list[str]:
    """The GGUF file, or all parts of the split one, that a name means, in order.

    Args:
        or_none: nothing found is an empty list; otherwise it is an error.

    Raises:
        ModelNotFound: none matches, or several do.
    """
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.endswith(".gguf") and "mmproj" not in PurePosixPath(file).name:
            models.setdefault(_PART.sub("", file), []).append(file)
    wanted = name.file.lower().removesuffix(".gguf")
    found = {model: parts for model, parts in models.items() if wanted in model.lower()}
    exact = {model: parts for model, parts in found.items() if PurePosixPath(model).stem.lower().endswith(wanted)}
    if wanted and len(exact) == 1:
        found = exact
    if len(found) == 1:
        [parts] = found.values()
        match = _PART.search(parts[0])
        if match is None or len(parts) == int(match[1]):
            return parts
        if or_none:
            return []
        raise ModelNotFound(f"{name.repo}: parts of {parts[0]} are missing")
    if not found and or_none:
        return []
    if not models:
        raise ModelNotFound(f"{name.repo} holds neither safetensors with a config.json nor GGUF files")
    shown = ", ".join(PurePosixPath(model).name for model in list(found or models)[:_CHOICES_SHOWN])
    if found:
        raise ModelNotFound(f"{name.repo} holds several GGUF files; choose one as `{name.repo}:PART_OF_NAME`: {shown}")
    raise ModelNotFound(f"{name.repo} holds no GGUF file with {name.file!r} in its name, but: {shown}")


def _literal(file: str) -> str:
    """A pattern for exactly this path."""
    return re.sub(r"([*?[])", r"[\1]", file)


def _check_digests(folder: Path) -> None:
    """Compare large files with the SHA-256 that the library keeps them under; small ones have another digest."""
    for path in folder.rglob("*"):
        blob = path.resolve()
        if not path.is_file() or not _SHA256.fullmatch(blob.name):
            continue
        digest = hashlib.sha256()
        with blob.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != blob.name:
            path.unlink()
            blob.unlink(missing_ok=True)
            raise DownloadError(f"{path.name} arrived with a wrong digest and was deleted; fetch it again")


@contextlib.contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Within it the library shows no progress bars."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if not quiet or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """Errors of the library as ours, in one sentence."""
    import httpx2
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{name.repo} is gated: accept its terms at {constants.ENDPOINT}/{name.repo} and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"there is no repository {name.repo} at {constants.ENDPOINT}, or it is private and HF_TOKEN is not set"
        ) from error
    except (errors.RevisionNotFoundError, errors.RevisionResolutionError) as error:
        raise ModelNotFound(f"{name.repo} has no revision {name.revision!r}") from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError(f"{name.repo} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        raise DownloadError(f"{constants.ENDPOINT} answers {status} for {name.repo}") from error
    except (errors.LocalEntryNotFoundError, httpx2.HTTPError) as error:
        raise DownloadError(f"{constants.ENDPOINT} cannot be reached; check the network or HF_ENDPOINT") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DownloadError(f"the disk is full; {name.repo} does not fit") from error
        raise DownloadError(f"{name.repo} could not be fetched: {error.strerror or error}") from error
