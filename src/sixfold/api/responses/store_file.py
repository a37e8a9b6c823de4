"""Answers on disk: one SQLite file, bounded in bytes, entries and age. Several processes may have it open.

    responses(tenant, id, previous, expires, used, n_bytes, response, items)

An answer is kept with the items of its own call alone. What came before is found by following `previous`, so that a
long conversation takes room once, and deleting an answer deletes all that is known of it. When room is needed, what was
not used for the longest time goes first; reading a chain uses all of its links.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["MAX_ENTRIES", "ChainBroken", "ChainTooLong", "StoreFile", "Stored"]

MAX_ENTRIES = 1_000_000

ENTRY_BYTES = 1024
"""Of an entry beside its two documents, roughly: keys, indexes, half-filled pages."""

LARGEST_SHARE = 8
"""An entry may take this part of all room: one answer must not push out all others."""

BUSY_S = 1.0
"""Another process's transaction is waited for at most so long. Ours take less than a millisecond."""

SWEEP = 256
"""Expired entries that one call removes at most."""

INDEX_BYTES = 32768
"""The index of SQLite's write-ahead log at its smallest; it is lengthened by as much."""

INDEX_HEADER_BYTES = 136

LAYOUT = 1

_TABLES = """
CREATE TABLE responses (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    previous TEXT,
    expires REAL NOT NULL,
    used REAL NOT NULL,
    n_bytes INTEGER NOT NULL,
    response BLOB NOT NULL,
    items BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX by_use ON responses (used);
CREATE INDEX by_expiry ON responses (expires);
CREATE TABLE total (entries INTEGER NOT NULL, n_bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0, 0);
CREATE TRIGGER count_in AFTER INSERT ON responses BEGIN
    UPDATE total SET entries = entries + 1, n_bytes = n_bytes + NEW.n_bytes;
END;
CREATE TRIGGER count_out AFTER DELETE ON responses BEGIN
    UPDATE total SET entries = entries - 1, n_bytes = n_bytes - OLD.n_bytes;
END;
"""


class Stored(NamedTuple):
    """One kept answer."""

    id: str
    previous: str | None
    """The answer that it continues."""
    response: bytes
    """The document, as its caller got it."""
    items: bytes
    """JSON list: the input items of its call."""


class ChainBroken(Exception):
    """`args[0]`: the id of the link that is not there (any more)."""


class ChainTooLong(Exception):
    """More links, or more bytes, than were asked for at most."""


class StoreFile:
    """See the module's docstring. For one thread: SQLite's calls block.

    The file is opened by the first call, and made by the first that puts something in. Every method may raise
    `sqlite3.Error` or `OSError`.

    Args:
        max_bytes: of all entries together.
        ttl_s: age at which an answer is gone, in seconds.
        clock: seconds since 1970; processes share the file, and it outlives them.
    """

    def __init__(self, path: Path, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._open: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        """Which file the connection is to."""
        self._index = path.with_name(path.name + "-shm")
        self._index_bytes = INDEX_BYTES
        """Of the log's index, as far as it has grown while this connection was open."""

    def put(self, tenant: str, stored: Stored) -> bool:
        """Keep an answer; False where it alone takes too much room."""
        n_bytes = len(stored.response) + len(stored.items) + ENTRY_BYTES
        if n_bytes > self._max_bytes // LARGEST_SHARE:
            return False
        with self._writing() as db:
            now = self._clock()
            self._sweep(db, now)
            self._make_room(db, n_bytes)
            row = (tenant, stored.id, stored.previous, now + self._ttl_s, now, n_bytes, stored.response, stored.items)
            db.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return True

    def get(self, tenant: str, id: str) -> Stored | None:
        """The answer; None where there is none of this id, of this tenant."""
        stored = self._read(tenant, id)
        if stored is not None:
            self._use(tenant, [id])
        return stored

    def chain(self, tenant: str, id: str, *, max_links: int, max_bytes: int) -> list[Stored]:
        """The answer and all that it continues, the oldest first.

        Raises:
            ChainBroken, ChainTooLong
        """
        links: list[Stored] = []
        n_bytes = 0
        following: str | None = id
        while following is not None:
            stored = self._read(tenant, following)
            if stored is None:
                raise ChainBroken(following)
            n_bytes += len(stored.response) + len(stored.items)
            if len(links) == max_links or n_bytes > max_bytes:
                raise ChainTooLong
            links.append(stored)
            following = stored.previous
        self._use(tenant, [stored.id for stored in links])
        return links[::-1]

    def delete(self, tenant: str, id: str) -> bool:
        """Forget an answer; whether there was one."""
        if self._is_absent():
            return False
        with self._writing() as db:
            now = self._clock()
            self._sweep(db, now)
            found = db.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, id))
            return found.rowcount > 0

    def size(self) -> tuple[int, int]:
        """Entries and their bytes."""
        entries, n_bytes = self._db().execute("SELECT entries, n_bytes FROM total").fetchone()
        return entries, n_bytes

    def close(self) -> None:
        """The next call opens the file again."""
        db, self._open = self._open, None
        if db is not None:
            db.close()

    def _is_absent(self) -> bool:
        return self._identity() is None

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def _read(self, tenant: str, id: str) -> Stored | None:
        if self._is_absent():
            return None
        found = self._db().execute(
            "SELECT id, previous, response, items FROM responses WHERE tenant = ? AND id = ? AND expires > ?",
            (tenant, id, self._clock()),
        )
        row = found.fetchone()
        return None if row is None else Stored(*row)

    def _use(self, tenant: str, ids: list[str]) -> None:
        """Note that these were used. Nobody who reads has to wait, or to fail, for it."""
        db = self._db()
        db.execute("PRAGMA busy_timeout = 0")
        try:
            self._note_use(tenant, ids)
        except sqlite3.OperationalError:
            pass
        finally:
            db.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")

    def _note_use(self, tenant: str, ids: list[str]) -> None:
        with self._writing() as db:
            now = self._clock()
            self._sweep(db, now)
            rows = [(now, tenant, id) for id in ids]
            db.executemany("UPDATE responses SET used = ? WHERE tenant = ? AND id = ?", rows)

    def _sweep(self, db: sqlite3.Connection, now: float) -> None:
        db.execute(
            "DELETE FROM responses WHERE rowid IN (SELECT rowid FROM responses WHERE expires <= ? LIMIT ?)",
            (now, SWEEP),
        )

    def _make_room(self, db: sqlite3.Connection, n_bytes: int) -> None:
        while True:
            entries, held = db.execute("SELECT entries, n_bytes FROM total").fetchone()
            if entries < MAX_ENTRIES and held + n_bytes <= self._max_bytes:
                return
            oldest = "SELECT rowid FROM responses ORDER BY used, rowid LIMIT 1"
            db.execute(f"DELETE FROM responses WHERE rowid IN ({oldest})")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. It asks for the lock at once: what was read in it cannot change before it writes."""
        db = self._db()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _db(self) -> sqlite3.Connection:
        if self._open is not None and self._identity() != self._opened:
            self.close()  # somebody removed or replaced the file: what went into the old one would be lost
        if self._open is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # what people wrote is theirs
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            try:
                _prepare(db)
            except BaseException:
                db.close()
                raise
            self._open, self._opened, self._index_bytes = db, self._identity(), INDEX_BYTES
        self._mend_index()
        return self._open

    def _mend_index(self) -> None:
        """The index of the write-ahead log is mapped into all processes. SQLite only ever lengthens it: where somebody
        has cut it short, who reads it next would be ended by SIGBUS. With zeros for its header, SQLite finds that it is
        broken and makes it anew from the log."""
        try:
            n_bytes = os.stat(self._index).st_size
        except FileNotFoundError:
            return
        if n_bytes < self._index_bytes:
            os.truncate(self._index, self._index_bytes)
            with open(self._index, "r+b") as index:
                index.write(bytes(INDEX_HEADER_BYTES))
        self._index_bytes = max(n_bytes, self._index_bytes)


def _prepare(db: sqlite3.Connection) -> None:
    """Tables, and how this connection writes.

    Raises:
        sqlite3.DatabaseError: it is no file of ours.
    """
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut may take the latest answers, and nothing else
    db.execute("PRAGMA secure_delete = ON")  # what was deleted is gone from the file too
    db.execute(f"PRAGMA journal_size_limit = {4 << 20}")
    if _layout(db) == 0:
        db.execute("BEGIN EXCLUSIVE")
        try:
            if _layout(db) == 0:
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise sqlite3.DatabaseError("the file is a database of something else")
                for statement in _statements(_TABLES):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {LAYOUT}")
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
    if _layout(db) != LAYOUT:
        raise sqlite3.DatabaseError("the file is of another version, or of something else")
    db.execute("PRAGMA journal_mode = WAL")  # readers and the one writer do not wait for each other


def _layout(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """`executescript` would commit by itself."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
