"""KV cache manager: which block holds which tokens, who uses it, and what may be reused. It never sees a tensor.

Runs in: engine process.
Owns: the block pool (reference counts, free blocks, eviction order), every block table, the prefix index.
May import: messages, errors.
Start reading at: manager.py, then block_pool.py (capacity) and prefix_index.py (reuse).
"""

from sixfold.kv_cache.block_table import BlockTable, Grant, Prefix, StepBlocks
from sixfold.kv_cache.manager import KVCacheManager

__all__ = ["BlockTable", "Grant", "KVCacheManager", "Prefix", "StepBlocks"]
