"""Models by name: which are known, where their files lie, how they get there.

Runs in: the command line and the supervisor, before anything else starts.
Owns: the cache folder (`SIXFOLD_CACHE`, default ~/.cache/sixfold). Models by `org/name` lie in the hub library's own.
May import: errors.
Start reading at: store.py for `resolve`, `pull`, `list_models` and `remove`; known.py and hub.py for what they find.
"""

from sixfold.model_store.known import KNOWN, KnownModel
from sixfold.model_store.store import ModelEntry, cache_dir, can_pull, list_models, pull, remove, resolve

__all__ = ["KNOWN", "KnownModel", "ModelEntry", "cache_dir", "can_pull", "list_models", "pull", "remove", "resolve"]
