"""Models by name: which are known, where their files lie, how they get there.

Runs in: the command line and the supervisor, before anything else starts.
Owns: the cache folder (`SIXFOLD_CACHE`, default ~/.cache/sixfold).
May import: errors.
Start reading at: known.py for the models, store.py for `resolve`, `pull`, `list_models` and `remove`.
"""

from sixfold.model_store.known import KNOWN, KnownModel
from sixfold.model_store.store import ModelEntry, cache_dir, list_models, pull, remove, resolve

__all__ = ["KNOWN", "KnownModel", "ModelEntry", "cache_dir", "list_models", "pull", "remove", "resolve"]
