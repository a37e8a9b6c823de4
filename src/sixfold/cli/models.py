"""`sixfold pull`, `list` and `rm`: the models kept on this machine."""

from __future__ import annotations

import click

from sixfold.errors import DownloadError, ModelNotFound
from sixfold.sizes import size_text

__all__ = ["list_command", "pull", "rm"]


@click.command(short_help="Fetch a model.")
@click.argument("name")
def pull(name: str) -> int:
    """Fetch the model NAME and check its digest.

    NAME is a known one (`sixfold list`), kept in SIXFOLD_CACHE (default ~/.cache/sixfold), or org/name on the Hugging
    Face hub: a folder of safetensors, or with org/name:Q4_K_M one of several GGUF files; org/name@revision is another
    branch, tag or commit. HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean to
    huggingface_hub.
    """
    from sixfold import model_store
    from sixfold.model_file import synthetic

    if synthetic.is_synthetic(name):
        raise ModelNotFound(f"{name} is made on this machine when it is first used: there is nothing to fetch")
    click.echo(str(model_store.pull(name)))
    return 0


@click.command("list", short_help="List models and which are here.")
def list_command() -> int:
    """List the known models, those pulled from the hub and the synthetic ones that were made.

    Name, size, licence, and whether all of it is here.
    """
    from sixfold import model_store
    from sixfold.model_file import synthetic

    rows = [
        (entry.name, size_text(entry.n_bytes), entry.licence, "here" if entry.cached else "")
        for entry in model_store.list_models()
    ]
    synthetic.remove_leftovers(model_store.cache_dir())
    made = synthetic.list_cached(model_store.cache_dir())
    rows += [(name, size_text(n_bytes), "", "here") for name, n_bytes in made]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, size, licence, here in rows:
        click.echo(f"{name:{widths[0]}}  {size:>{widths[1]}}  {licence:{widths[2]}}  {here}".rstrip())
    return 0


@click.command(short_help="Delete a model from the cache.")
@click.argument("name")
def rm(name: str) -> int:
    """Delete the model NAME from the cache: as `sixfold list` names it, or org/name with all its files and revisions.

    A server that runs it goes on, and cannot be started again.
    """
    from sixfold import model_store
    from sixfold.model_file import synthetic

    removed = _remove_synthetic(name) if synthetic.is_synthetic(name) else model_store.remove(name)
    if not removed:
        raise ModelNotFound(f"{name} is not on this machine: there is nothing to remove")
    click.echo(f"removed {name}")
    return 0


def _remove_synthetic(name: str) -> bool:
    from sixfold import model_store
    from sixfold.model_file.synthetic import SyntheticModel, remove_leftovers

    path = SyntheticModel.parse(name).place(model_store.cache_dir())
    remove_leftovers(model_store.cache_dir())
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DownloadError(f"cannot delete {path}: {error.strerror or error}") from error
    return True
