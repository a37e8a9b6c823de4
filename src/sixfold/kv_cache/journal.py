"""What the prefix index says, in memory that outlives the engine: the next engine reads there what each block holds.

One record per block, written by `PrefixIndex` whenever it enters or forgets a block, and by nobody else:

    | node u64 | parent u64 | digest 16 | salt 32 | content 4 * block_size | crc u32 |      parent 0: a first block

The order of writing is the whole protocol:

    sealed     a block's keys and values are in memory, the step's result says so   then the record, `node` last
    reused     `node` becomes 0                                                      then the step that writes is sent
    killed     anywhere between: the record is missing, or whole

So whatever the worker still computes for a dead engine, it writes no block that has a record. What cannot happen is
checked all the same, before a record is believed: checksum, digest (keyed, over all tokens up to the block's end), the
record of its parent. The header names the owner: server, configuration and the worker's process; under another owner
every record is void, for its memory is another one.

The memory belongs to no file system: prompts do not reach a disk.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from zlib import crc32

import msgspec

from sixfold.messages import BlockId

__all__ = ["OWNER_BYTES", "Journal", "Sealed", "owner_of"]

OWNER_BYTES = 32
_NODE = struct.Struct("Q")  # in the machine's order: written by one store
_VERSION = b"1"
NO_SALT = bytes(32)


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """What a block holds, and where it hangs in the tree of prefixes. There is one for every block that is retained:
    Python need not search them for garbage."""

    digest: bytes
    """Of everything up to the block's end."""
    content: bytes
    """Its token ids as 4-byte integers."""
    parent: int | bytes
    """Node above; the salt's name for the first block of a sequence."""
    node: int
    """From 1 on, never used again."""


def owner_of(hash_key: bytes, *facts: object) -> bytes:
    """The name of whoever may believe a journal: of the key of the digests, and of everything whose change makes the
    blocks others."""
    text = "\0".join(map(repr, (_VERSION, *facts)))
    return blake2b(text.encode(), digest_size=OWNER_BYTES, key=hash_key).digest()


class Journal:
    """Records of blocks 0 .. num_blocks - 1. One writer at a time: the supervisor starts an engine when the one before
    has ended.

    Args:
        memory: `size` bytes; zeros, or what an engine before has left.
    """

    def __init__(self, memory: memoryview, num_blocks: int, block_size: int) -> None:
        self._stride = _stride(block_size)
        self._content = struct.Struct(_content(block_size))
        self._record = struct.Struct(_content(block_size) + "I")
        self._memory = memory

    @staticmethod
    def size(num_blocks: int, block_size: int) -> int:
        """In bytes."""
        return OWNER_BYTES + num_blocks * _stride(block_size)

    @classmethod
    def open(cls, fd: int, num_blocks: int, block_size: int, owner: bytes) -> Journal:
        """The journal in a memory file.

        Args:
            owner: see `owner_of`; of another one's nothing is left, and the file gets its size.
        """
        size = cls.size(num_blocks, block_size)
        if os.pread(fd, OWNER_BYTES, 0) != owner or os.fstat(fd).st_size != size:
            os.ftruncate(fd, 0)
            os.ftruncate(fd, size)  # zeros, which take no memory until they are written
            os.pwrite(fd, owner, 0)
        return cls(memoryview(mmap.mmap(fd, size)), num_blocks, block_size)

    def write(self, block: BlockId, sealed: Sealed) -> None:
        """The block's content is in memory and final."""
        at = OWNER_BYTES + block * self._stride
        digest, content, parent, node = sealed.digest, sealed.content, sealed.parent, sealed.node
        above, salt = (0, parent) if isinstance(parent, bytes) else (parent, NO_SALT)
        crc = crc32(self._content.pack(node, above, digest, salt, content), block)
        # In the order of the addresses: the record loses its node before anything else.
        self._record.pack_into(self._memory, at, 0, above, digest, salt, content, crc)
        _NODE.pack_into(self._memory, at, node)

    def clear(self, block: BlockId) -> None:
        """The block may be written from now on."""
        _NODE.pack_into(self._memory, OWNER_BYTES + block * self._stride, 0)

    def read(self) -> Iterator[tuple[BlockId, Sealed | None]]:
        """Every block that has a record; None: it is not whole."""
        memory, crc_at = self._memory, self._content.size
        for block, node in enumerate(self._nodes().tolist()):
            if not node:
                continue
            at = OWNER_BYTES + block * self._stride
            _, parent, digest, salt, content, crc = self._record.unpack_from(memory, at)
            if crc != crc32(memory[at : at + crc_at], block):
                yield BlockId(block), None
            else:
                yield BlockId(block), Sealed(digest, content, parent or salt, node)

    def _nodes(self) -> memoryview:
        """[num_blocks] A pool may have a million blocks: they are not looked at one by one."""
        return self._memory.cast("Q")[OWNER_BYTES // 8 :: self._stride // 8]


def _content(block_size: int) -> str:
    """Format of a record without its checksum, in the machine's order."""
    return f"=QQ16s32s{4 * block_size}s"


def _stride(block_size: int) -> int:
    return -(-struct.calcsize(_content(block_size) + "I") // 8) * 8
