"""KV cache manager: which block holds which tokens, who uses it, and what may be reused. It never sees a tensor.

Runs in: engine process.
Owns: the block pool (reference counts, free blocks, eviction order), every block table, the prefix index and
    its journal.
May import: messages, errors.
Start reading at: manager.py, then block_pool.py (capacity), prefix_index.py (reuse) and journal.py (reuse by
    the next engine).
"""

from sixfold.kv_cache.block_table import BlockTable, Grant, Prefix, StepBlocks
from sixfold.kv_cache.journal import Journal, owner_of
from sixfold.kv_cache.manager import KVCacheManager

__all__ = ["BlockTable", "Grant", "Journal", "KVCacheManager", "Prefix", "StepBlocks", "owner_of"]
