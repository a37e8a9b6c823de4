"""`sixfold show`: what a model is and what it needs, before anything of it is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sixfold.errors import ModelNotFound
from sixfold.sizes import size_text

if TYPE_CHECKING:
    from sixfold.config import Config

__all__ = ["show"]

_CHUNK_BYTES = 4 << 20


@click.command(short_help="Show what a model is and needs.")
@click.argument("name", metavar="MODEL")
@click.option("--max-model-len", type=int, default=0, help="Tokens of a sequence; 0: the model's own context.")
@click.option("--max-num-seqs", type=int, default=1, show_default=True, help="Sequences at the same time.")
@click.option(
    "--kv-cache-dtype",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Element type of the KV cache.",
)
@click.option(
    "--quantize",
    type=click.Choice(["none", "q8_0", "q4_1"]),
    default="none",
    show_default=True,
    help="Count float weights as this.",
)
@click.option("--digest", is_flag=True, help="Read the files and show their SHA-256 where it is not known.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    name: str, max_model_len: int, max_num_seqs: int, kv_cache_dtype: str, quantize: str, digest: bool, as_json: bool
) -> int:
    """Show the files, numbers and text rules of MODEL, and the memory that it needs for the given sequences.

    The memory is that of a server which has filled its KV cache. What may be taken is the least of the machine's free
    memory, the limits of control groups and those of `ulimit`. Exit code 1: it does not fit.
    """
    from sixfold.config import Config

    settings = {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "kv_cache_dtype": kv_cache_dtype}
    config = Config.from_flat({**settings, "model": name, "quantize": quantize})
    with _found(config, digest) as (path, place):
        report, need, source = _report(name, path, place, config, digest)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report, need, source)
    return 0 if report["memory"]["fits"] else 1


@contextlib.contextmanager
def _found(config: Config, digest: bool) -> Iterator[tuple[Path, Path]]:
    """(the file or folder of a model, where it is or would be).

    The two differ for a synthetic model that has not been made: it is not made to be looked at.

    Raises:
        ModelNotFound: no such model, or the digest is wanted of one that has not been made.
    """
    from sixfold import model_store
    from sixfold.engine.resolve import model_path
    from sixfold.model_file import synthetic

    name = config.model.model
    if synthetic.is_synthetic(name):
        model = synthetic.SyntheticModel.parse(name)
        place = model.place(model_store.cache_dir())
        if digest and not os.path.exists(place):
            raise ModelNotFound(
                f"{name} has not been made yet, so there is no file to read: `sixfold bench {name}`, or any other use, "
                f"makes it ({size_text(model.n_bytes)})"
            )
        with tempfile.TemporaryDirectory() as folder:
            yield (place if os.path.exists(place) else model.outline(Path(folder))), place
    else:
        path = model_path(config)
        yield path, path


def _report(name: str, path: Path, place: Path, config: Config, digest: bool) -> tuple[dict[str, Any], str, str]:
    """-> (the figures, the memory in words, who grants it)."""
    from sixfold.engine.free_memory import free_memory
    from sixfold.engine.memory import memory_need
    from sixfold.engine.resolve import open_usable

    model = open_usable(path, config)
    need = memory_need(model, config)
    free = free_memory(model.bytes_mapped, need.processes)
    c = model.config
    sampling, sampling_fault = _recommended(path)
    report = {
        "model": name,
        "path": str(place),
        "here": path == place,
        "files": [_file(file, name, digest) for file in _files(path)],
        "architecture": c.architecture,
        "layers": c.n_layers,
        "hidden": c.hidden,
        "heads": c.n_heads,
        "kv_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "vocabulary": c.vocab,
        "experts": c.n_experts,
        "context": c.context,
        "chat_template": _has_template(path),
        "sampling": sampling,
        "sampling_fault": sampling_fault,
        "memory": {
            "max_model_len": need.context,
            "max_num_seqs": need.sequences,
            "weights": need.weights,
            "kv_per_token": need.kv_per_token,
            "kv": need.kv,
            "working": need.working,
            "processes": need.processes,
            "total": need.total,
            "available": free.n_bytes,
            "fits": need.total <= free.n_bytes,
        },
    }
    return report, str(need), free.source


def _files(path: Path) -> list[Path]:
    """The weights: a GGUF file with its other parts, or a folder's safetensors."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    stem, marker, rest = path.name.partition("-00001-of-")
    return sorted(path.parent.glob(f"{stem}-*-of-{rest}")) if marker else [path]


def _file(path: Path, name: str, digest: bool) -> dict[str, Any]:
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "sha256": _known_digest(path, name) or (_digest(path) if digest else ""),
    }


def _known_digest(path: Path, name: str) -> str:
    """What the file was checked against when it came, if it did."""
    from sixfold import model_store

    if (known := model_store.KNOWN.get(name)) is not None:
        return known.sha256
    blob = path.resolve().name  # the hub's cache keeps large files under their digest
    return blob if len(blob) == 64 and not set(blob) - set("0123456789abcdef") else ""


def _digest(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            whole.update(chunk)
    return whole.hexdigest()


def _has_template(path: Path) -> bool:
    from sixfold.model_file import GGUFFile
    from sixfold.text import folder_template

    if path.is_dir():
        return folder_template(path) is not None
    return "tokenizer.chat_template" in GGUFFile.open(path).metadata


def _recommended(path: Path) -> tuple[dict[str, Any], str]:
    """-> (what the files recommend for sampling, the fault of a recommendation that no server would take, or "")."""
    from sixfold.errors import ModelFileError
    from sixfold.text import sampling_defaults

    try:
        return sampling_defaults(path), ""
    except ModelFileError as error:
        return {}, error.message


def _print(report: dict[str, Any], need: str, source: str) -> None:
    memory = report["memory"]
    experts = f", {report['experts']} experts" if report["experts"] else ""
    rows = [
        ("model", report["model"]),
        ("path", report["path"] if report["here"] else "not made yet: the first use makes it"),
        *(("file", _file_line(file, report["here"])) for file in report["files"]),
        ("architecture", f"{report['architecture']}, {report['layers']} layers of {report['hidden']}{experts}"),
        ("attention", f"{report['heads']} heads over {report['kv_heads']} KV heads of {report['head_dim']}"),
        ("vocabulary", f"{report['vocabulary']:,}"),
        ("context", f"{report['context']:,} tokens"),
        ("chat", "has a template" if report["chat_template"] else "no template: a base model, for completions only"),
        ("sampling", report["sampling_fault"] or _sampling(report["sampling"])),
        ("memory", need),
        (
            "available",
            f"{size_text(memory['available'])} {source}: {'it fits' if memory['fits'] else 'it does not fit'}",
        ),
    ]
    for title, value in rows:
        click.echo(f"{title:13} {value}")


def _sampling(recommended: dict[str, Any]) -> str:
    values = ", ".join(f"{name} {value}" for name, value in recommended.items())
    return f"{values}: of requests that do not give them" if values else "nothing is recommended"


def _file_line(file: dict[str, Any], here: bool) -> str:
    line = f"{file['name']}, {size_text(file['bytes'])}"
    if not here:
        return line
    return f"{line}, sha256 {file['sha256'] or 'unknown (--digest reads the file)'}"
