"""Models by `org/name`, through huggingface_hub.

That library does the network and keeps the files: its settings hold (HF_ENDPOINT for a mirror, HF_TOKEN or a stored
login, HF_HUB_OFFLINE, HF_HOME for the place), a connection that breaks off is taken up again, and other programs of the
same user share the files. Files come one after the other in the caller's thread, the weights last, so that Ctrl-C ends
it at once; whole files stay for the next attempt. What is fetched is data only: weights as safetensors or GGUF, JSON
and templates. Pickled weights and Python files are never fetched.

    org/name                 a folder of safetensors, or the only GGUF file of a repository
    org/name:Q4_K_M          of several GGUF files the one with this in its name
    org/name@revision        a branch, tag or commit
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sixfold.errors import DownloadError, ModelNotFound

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

__all__ = ["HubEntry", "HubName", "find", "list_cached", "pull", "remove"]

_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,200}))?(?::(?P<file>[\w.-]{1,200}))?",
    re.ASCII,
)
_FOLDER_FILES = ["*.safetensors", "*.json", "*.jinja"]
_OTHER_FILES = ["*/*", "consolidated*", "*.onnx*"]
"""Not fetched with a folder: what lies in folders of the repository, and a second copy of the weights."""
_WEIGHTS = (".safetensors", ".gguf")
_PART = re.compile(r"-\d{5}-of-(\d{5})(?=\.(?:gguf|safetensors)$)")
_SHA256 = re.compile("[0-9a-f]{64}")
_CHUNK_BYTES = 4 << 20
_UNREACHABLE = "{} cannot be reached; check the network or HF_ENDPOINT"
_HINTS = {
    401: "it wants a login; set HF_TOKEN",
    403: "the token may not read it",
    404: "a file is missing",
    429: "too many requests; try again later",
}
"""Status of an answer -> what it means."""
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
        if match is None or ".." in name or "--" in match["repo"] or match["repo"].endswith((".gguf", ".git")):
            return None
        return cls(match["repo"], match["revision"], match["file"] or "")


@dataclass(frozen=True)
class HubEntry:
    """A repository in the library's cache."""

    repo: str
    n_bytes: int
    complete: bool
    """Whether one of its revisions holds a whole model."""


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
        return None if name.file or not _has_all_parts(files) else _snapshot(name, _FOLDER_FILES)
    chosen = _chosen(name, files, or_none=True)
    return folder / chosen[0] if chosen else None


def pull(name: HubName, *, show_progress: bool) -> Path:
    """Fetch a model, or what is missing of it, and check its digests.

    Raises:
        ModelNotFound: there is no such repository, revision or file.
        DownloadError: it could not be fetched, needs permission, or arrived damaged.
    """
    _check_endpoint()
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and (here := find(name)) is not None:
        return here
    with _explained(name):
        files = _remote_files(name)
        if is_folder := _is_weights_folder(files):
            chosen = _folder_files(name, files)
        else:
            chosen = _chosen(name, files)
        paths, revision, bar = [], name.revision, _progress_bar(show_progress)
        for file in chosen:
            paths.append(Path(huggingface_hub.hf_hub_download(name.repo, file, revision=revision, tqdm_class=bar)))
            revision = paths[-1].parents[file.count("/")].name  # the commit: of all files, even if the branch moves on
    for path in paths:
        _check_digest(path)
    return paths[0].parent if is_folder else paths[0]


def list_cached() -> list[HubEntry]:
    """Repositories in the library's cache that hold safetensors or GGUF files."""
    found = []
    for repo in _cached_repos():
        revisions = [[file.file_name for file in revision.files] for revision in repo.revisions]
        models = [files for files in revisions if any(file.endswith(_WEIGHTS) for file in files)]
        if models:
            found.append(HubEntry(repo.repo_id, repo.size_on_disk, any(map(_has_all_parts, models))))
    return found


def remove(name: HubName) -> bool:
    """Delete a repository from the library's cache, with what a broken fetch left; True if it was there.

    Raises:
        DownloadError: the cache cannot be written.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache, folder_name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=name.repo, repo_type="model")
    folder = cache / folder_name
    if not os.path.isdir(folder):  # False where it cannot be looked, too
        return False
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise DownloadError(f"cannot delete {folder}: {error.strerror or error}") from error
    shutil.rmtree(cache / ".locks" / folder_name, ignore_errors=True)
    return True


def _cached_repos() -> list[Any]:
    """All models in the library's cache; what is broken there, or cannot be read, is left out."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):  # a ValueError: HF_HUB_CACHE is a file
        return []
    return sorted((repo for repo in repos if repo.repo_type == "model"), key=lambda repo: str(repo.repo_id))


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


def _check_endpoint() -> None:
    """The library would fail when it is imported, and in words of its own.

    Raises:
        DownloadError: HF_ENDPOINT is not an address.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise DownloadError(f"HF_ENDPOINT is {endpoint!r}; it must be an address like https://huggingface.co") from None


def _remote_files(name: HubName) -> list[str]:
    """Paths in the repository."""
    from huggingface_hub import HfApi

    # `list_repo_files` would try for 23 seconds to reach a hub that is not there.
    info = HfApi().model_info(name.repo, revision=name.revision)
    files = [sibling.rfilename for sibling in info.siblings or []]
    return [file for file in files if not {"", ".", ".."} & set(file.split("/"))]  # none that leads out of the cache


def _is_weights_folder(files: Iterable[str]) -> bool:
    names = set(files)
    return "config.json" in names and any("/" not in name and name.endswith(".safetensors") for name in names)


def _folder_files(name: HubName, files: Iterable[str]) -> list[str]:
    """What is fetched of a folder, the weights last: where they are, the rest is.

    Raises:
        ModelNotFound: the name asks for a GGUF file.
    """
    if name.file:
        raise ModelNotFound(f"{name.repo} holds safetensors, not GGUF files; leave out `:{name.file}`")

    def matches(file: str, patterns: list[str]) -> bool:
        return any(fnmatchcase(file, pattern) for pattern in patterns)

    wanted = [file for file in files if matches(file, _FOLDER_FILES) and not matches(file, _OTHER_FILES)]
    return sorted(wanted, key=lambda file: (file.endswith(_WEIGHTS), file))


def _has_all_parts(files: Iterable[str]) -> bool:
    """Whether no model in numbered parts lacks one."""
    parts: dict[tuple[str, int], int] = {}
    for file in files:
        if match := _PART.search(file):
            model = (_PART.sub("", file), int(match[1]))
            parts[model] = parts.get(model, 0) + 1
    return all(count == total for (_, total), count in parts.items())


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


def _check_digest(path: Path) -> None:
    """Compare a large file with the SHA-256 that the library keeps it under; small ones have another digest.

    Raises:
        DownloadError: they differ; the file is gone.
    """
    blob = path.resolve()
    if not _SHA256.fullmatch(blob.name):
        return
    digest = hashlib.sha256()
    with blob.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise DownloadError(f"{path.name} arrived with a wrong digest and was deleted; fetch it again")


def _progress_bar(shown: bool) -> type[Any]:
    """The library's, shown or not, whatever standard error is."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": not shown})  # type: ignore[no-untyped-call]

    return Bar


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
        raise _refusal(name, error) from error
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refusal(name, error.__cause__) from error
        raise DownloadError(_UNREACHABLE.format(constants.ENDPOINT)) from error
    except httpx2.HTTPError as error:
        raise DownloadError(_UNREACHABLE.format(constants.ENDPOINT)) from error
    except UnicodeEncodeError as error:
        raise DownloadError("the token of the hub (HF_TOKEN, or a stored login) is not ASCII") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DownloadError(f"the disk is full; {name.repo} does not fit") from error
        reason = error.strerror or str(error).partition("\n")[0]
        place = f" ({error.filename})" if error.filename else ""
        raise DownloadError(f"{name.repo} could not be fetched: {reason}{place}") from error


def _refusal(name: HubName, error: HfHubHTTPError) -> DownloadError:
    """What a status of the hub's answer means."""
    from huggingface_hub import constants

    status = error.response.status_code
    hint = _HINTS.get(status, "try again later" if status >= 500 else "")
    return DownloadError(f"{constants.ENDPOINT} answers {status} for {name.repo}" + (f": {hint}" if hint else ""))
