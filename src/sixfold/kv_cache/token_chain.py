"""Names for the full blocks of one token sequence: a chain of keyed digests.

    tokens     | 0 .. 15 | 16 .. 31 | 32 .. 37
    content      c0        c1         (not full: no name yet)
    digest       d0 = H(d_salt + c0)  d1 = H(d0 + c1)       d_salt = H("salt:" + name of the salt)

A digest names everything from the sequence's beginning to the block's end, salt included. The key differs between two
starts of the server unless it is pinned, so nobody outside can construct two prompts with one name; and even then the
prefix index compares contents before it believes a name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import blake2b

__all__ = ["BlockName", "Digest", "TokenChain", "block_digest", "keyed_digest", "root_digest", "salt_name"]

Digest = Callable[[bytes], bytes]
BlockName = tuple[bytes, bytes]
"""(digest of everything up to the block's end, content: the block's token ids as 4-byte integers)"""

DIGEST_BYTES = 16
"""128 bits: a chance collision among 2**40 blocks has probability below 2**-48."""


def keyed_digest(key: bytes) -> Digest:
    """Return BLAKE2b with this key (at most 64 bytes)."""

    keyed = blake2b(digest_size=DIGEST_BYTES, key=key)

    def digest(data: bytes) -> bytes:
        state = keyed.copy()
        state.update(data)
        return state.digest()

    return digest


def salt_name(salt: str, key: bytes) -> bytes:
    """What stands for a salt, however long it is: 256 bits under the key, which nobody finds two salts for."""
    return blake2b(salt.encode(), digest_size=32, key=key).digest()


def root_digest(digest: Digest, salt: bytes) -> bytes:
    """What the digests of sequences with this salt (`salt_name`) begin with."""
    return digest(b"salt:" + salt)


def block_digest(digest: Digest, above: bytes, content: bytes) -> bytes:
    """Of a block behind what `above` is the digest of."""
    return digest(above + content)


class TokenChain:
    """The names of a growing sequence's full blocks, each computed once, when it is first asked for.

    Args:
        token_ids: the sequence itself; it may grow at the end, and nothing else may happen to it.
        block_size: tokens per block.
        salt: the name of its salt: sequences share blocks only when they are equal.
        digest: the hash function.
        twin: the chain of a sequence whose first `n_common_blocks` blocks hold the same tokens: they are named there.
    """

    __slots__ = ("_block_size", "_content", "_digest", "_n_twin", "_names", "_token_ids", "_twin", "salt")

    def __init__(
        self,
        token_ids: list[int],
        block_size: int,
        salt: bytes,
        digest: Digest,
        twin: TokenChain | None = None,
        n_common_blocks: int = 0,
    ) -> None:
        self._token_ids = token_ids
        self._block_size = block_size
        self._content = f"{block_size}i"
        self._digest = digest
        self._names: list[BlockName] = []
        self._twin = twin
        self._n_twin = n_common_blocks if twin is not None else 0
        self.salt = salt

    def name(self, index: int) -> BlockName:
        """Name of block `index`, whose tokens must all be known."""
        if index < self._n_twin:
            assert self._twin is not None
            return self._twin.name(index)
        while len(self._names) <= index - self._n_twin:
            self._names.append(self._next_name())
        return self._names[index - self._n_twin]

    def _next_name(self) -> BlockName:
        index = self._n_twin + len(self._names)
        start, end = index * self._block_size, (index + 1) * self._block_size
        assert end <= len(self._token_ids), "only a full block has a name"
        content = struct.pack(self._content, *self._token_ids[start:end])
        above = self.name(index - 1)[0] if index else root_digest(self._digest, self.salt)
        return block_digest(self._digest, above, content), content
