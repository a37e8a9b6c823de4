"""`sixfold pull`, `list` and `rm`: the models kept on this machine."""

from __future__ import annotations

import click

from sixfold.errors import ModelNotFound

__all__ = ["list_command", "pull", "rm"]


@click.command(short_help="Fetch a model.")
@click.argument("name")
def pull(name: str) -> int:
    """Fetch the model NAME and check its digest.

    NAME is a known one (`sixfold list`), kept in SIXFOLD_CACHE (default ~/.cache/sixfold), or org/name on the Hugging
    Face hub: a folder of safetensors, or with org/name:Q4_K_M one of several GGUF files. HF_TOKEN, HF_ENDPOINT,
    HF_HOME and HF_HUB_OFFLINE mean what they mean to huggingface_hub.
    """
    from sixfold import model_store

    click.echo(str(model_store.pull(name)))
    return 0


@click.command("list", short_help="List models and which are here.")
def list_command() -> int:
    """List the known models and those pulled from the hub: name, size, licence, and whether it is here."""
    from sixfold import model_store

    rows = [
        (entry.name, f"{entry.n_bytes / 1e6:,.0f} MB", entry.licence, "here" if entry.cached else "")
        for entry in model_store.list_models()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, size, licence, here in rows:
        click.echo(f"{name:{widths[0]}}  {size:>{widths[1]}}  {licence:{widths[2]}}  {here}".rstrip())
    return 0


@click.command(short_help="Delete a model from the cache.")
@click.argument("name")
def rm(name: str) -> int:
    """Delete the model NAME from the cache."""
    from sixfold import model_store

    if not model_store.remove(name):
        raise ModelNotFound(f"{name} is not on this machine: there is nothing to remove")
    click.echo(f"removed {name}")
    return 0
