"""Reuse: from the name of a block of tokens to the block that holds their keys and values.

Each sealed block is a *node* of a tree of prefixes, with a number of its own that is never used again:

    salt "" --- node 1 (tokens 0..15) --- node 2 (16..31)
                                      `-- node 5 (16..31, other tokens)

A lookup walks from the root: digest -> block, then it believes the block only if its content and its parent *node* are
the expected ones. So a hit is exact whatever the hash function does (a constant would only cost hits), and a block
whose parent was evicted cannot be reached through another parent of the same name.
"""

from __future__ import annotations

from typing import NamedTuple

from sixfold.kv_cache.token_chain import BlockName, TokenChain
from sixfold.messages import BlockId

__all__ = ["Parent", "PrefixIndex"]

Parent = int | str
"""Node above, or the salt for the first block of a sequence."""


class _Sealed(NamedTuple):
    digest: bytes
    content: bytes
    parent: Parent
    node: int


class PrefixIndex:
    """One entry per sealed block; `_by_digest` and `_sealed` mirror each other."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, BlockId] = {}
        self._sealed: dict[BlockId, _Sealed] = {}
        self._last_node = 0

    def __contains__(self, block: BlockId) -> bool:
        return block in self._sealed

    def match(self, chain: TokenChain, n_blocks_max: int) -> tuple[list[BlockId], list[int]]:
        """Blocks, and their nodes, that hold the longest known beginning of `chain`, at most `n_blocks_max`."""
        blocks: list[BlockId] = []
        nodes: list[int] = []
        parent: Parent = chain.salt
        for index in range(n_blocks_max):
            digest, content = chain.name(index)
            block = self._by_digest.get(digest)
            if block is None:
                break
            sealed = self._sealed[block]
            if sealed.content != content or sealed.parent != parent:
                break
            blocks.append(block)
            nodes.append(sealed.node)
            parent = sealed.node
        return blocks, nodes

    def seal(self, block: BlockId, name: BlockName, parent: Parent) -> tuple[int, BlockId | None]:
        """Enter a block whose content is final.

        When an equal prefix is already known its holder stays and `block` remains anonymous. Another prefix of the same
        name gives way: it collided, or lost its own parent and cannot be found any more.

        Returns:
            (node of this prefix, block that had to give way or None).
        """
        digest, content = name
        displaced = self._by_digest.get(digest)
        if displaced is not None:
            sealed = self._sealed[displaced]
            if sealed.content == content and sealed.parent == parent:
                return sealed.node, None
            self.forget(displaced)
        self._last_node += 1
        self._by_digest[digest] = block
        self._sealed[block] = _Sealed(digest, content, parent, self._last_node)
        return self._last_node, displaced if displaced != block else None

    def forget(self, block: BlockId) -> None:
        """The block no longer holds what its entry says. No-op for a block that is not sealed."""
        sealed = self._sealed.pop(block, None)
        if sealed is not None:
            del self._by_digest[sealed.digest]

    def blocks(self) -> set[BlockId]:
        return set(self._sealed)

    def check(self) -> None:
        """Raises AssertionError when the two maps do not mirror each other."""
        assert {digest: self._sealed[block].digest for digest, block in self._by_digest.items()} == {
            sealed.digest: sealed.digest for sealed in self._sealed.values()
        }, "prefix index: the two maps disagree"
        assert len(self._by_digest) == len(self._sealed)
