"""Reuse: from the name of a block of tokens to the block that holds their keys and values.

Each sealed block is a *node* of a tree of prefixes, with a number of its own that is never used again:

    salt --- node 1 (tokens 0..15) --- node 2 (16..31)
                                  `-- node 5 (16..31, other tokens)

A lookup walks from the root: digest -> block, then it believes the block only if its content and its parent *node* are
the expected ones. So a hit is exact whatever the hash function does (a constant would only cost hits), and a block
whose parent was evicted cannot be reached through another parent of the same name.

What is entered and forgotten here is written to the journal at once, if there is one: the next engine adopts it.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from sixfold.kv_cache.journal import Journal, Sealed
from sixfold.kv_cache.token_chain import BlockName, Digest, TokenChain, block_digest, root_digest
from sixfold.messages import BlockId

__all__ = ["Adopted", "Parent", "PrefixIndex"]

Parent = int | bytes
"""Node above, or the salt's name for the first block of a sequence."""


class Adopted(NamedTuple):
    """What became of a journal's records."""

    blocks: list[BlockId]
    """Entered; those that shall be evicted first come first."""
    n_rejected: int
    """Not believed. What had lost its parent is not counted: it could not be found before either."""


class PrefixIndex:
    """One entry per sealed block; `_by_digest` and `_sealed` mirror each other, and the journal both."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._by_digest: dict[bytes, BlockId] = {}
        self._sealed: dict[BlockId, Sealed] = {}
        self._last_node = 0
        self._journal = journal

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
        sealed = Sealed(digest, content, parent, self._last_node)
        self._by_digest[digest] = block
        self._sealed[block] = sealed
        if self._journal is not None:
            self._journal.write(block, sealed)
        return self._last_node, displaced if displaced != block else None

    def forget(self, block: BlockId) -> None:
        """The block no longer holds what its entry says. No-op for a block that is not sealed."""
        sealed = self._sealed.pop(block, None)
        if sealed is not None:
            del self._by_digest[sealed.digest]
            if self._journal is not None:
                self._journal.clear(block)

    def adopt(self, digest: Digest) -> Adopted:
        """Enter, into an empty index, what an engine before has left in the journal. A record is believed whole or not
        at all, and only behind its parent; the others are cleared.

        Args:
            digest: the hash function, with the key of the engine before.
        """
        assert self._journal is not None and not self._sealed
        records = list(self._journal.read())
        n_rejected = sum(sealed is None for _, sealed in records)
        digests: dict[int, bytes] = {}
        whole = [(block, sealed) for block, sealed in records if sealed is not None]
        for block, sealed in sorted(whole, key=lambda record: record[1].node):
            above = digests.get(sealed.parent) if isinstance(sealed.parent, int) else root_digest(digest, sealed.parent)
            if above is None:
                continue
            name = block_digest(digest, above, sealed.content)
            if name != sealed.digest:  # a shorter one was filled up
                sealed = structs.replace(sealed, digest=sealed.digest[: len(name)])
            if name != sealed.digest or name in self._by_digest or sealed.node in digests:
                n_rejected += 1
                continue
            digests[sealed.node] = name
            self._by_digest[name] = block
            self._sealed[block] = sealed
        for block, _ in records:
            if block not in self._sealed:
                self._journal.clear(block)
        self._last_node = max((sealed.node for _, sealed in whole), default=0)
        return Adopted(self._by_age(), n_rejected)

    def _by_age(self) -> list[BlockId]:
        """The prefixes that grew last come last; within one, a block comes before those in front of it."""
        latest: dict[int, int] = {}
        by_node = sorted(self._sealed.items(), key=lambda entry: -entry[1].node)
        for _, sealed in by_node:
            newest = latest.setdefault(sealed.node, sealed.node)
            if isinstance(sealed.parent, int):
                latest[sealed.parent] = max(latest.get(sealed.parent, 0), newest)
        return [block for block, sealed in sorted(by_node, key=lambda entry: latest[entry[1].node])]

    def blocks(self) -> set[BlockId]:
        return set(self._sealed)

    def check(self) -> None:
        """Raises AssertionError when the two maps do not mirror each other."""
        assert {digest: self._sealed[block].digest for digest, block in self._by_digest.items()} == {
            sealed.digest: sealed.digest for sealed in self._sealed.values()
        }, "prefix index: the two maps disagree"
        assert len(self._by_digest) == len(self._sealed)
