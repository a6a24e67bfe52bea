"""The one connection that a process has to a SQLite file, and the transactions on it.

* One connection and a lock, not one per thread: SQLite lets one write at a time, and those who wait for a lock are
  woken at once, where those who wait for a file ask again every few milliseconds.
* A transaction takes the right to write at its beginning (``BEGIN IMMEDIATE``), so it never has to begin anew in the
  middle. Where another process has it, we ask again after a short, random pause, without the lock, until `timeout`.
* A fork's child opens a connection of its own. No transaction is under way while the process forks, and the parent's
  connection is left alone by the child.
* What SQLite says is said again in words, as `StoreError`.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from time import monotonic, sleep
from typing import Any

from abate import forks
from abate.schedule.backoff import Uniform
from abate.stores.contract import StoreError
from abate.stores.sqlite.schema import Foreign, migrate

SHORTEST, LONGEST = 0.0002, 0.005
"""Seconds between two tries to write; most transactions of others take less than a millisecond."""
PAGE = 2048
"""Bytes; a transaction writes whole pages, and most of ours change one row and its places in the indexes."""
LOG_PAGES = 4000
"""How long the write-ahead log grows before it is copied into the file, which waits for the disk."""
LOG_BYTES = 2 * LOG_PAGES * PAGE
"""What is left of a write-ahead log that has been longer."""

REASONS = {
    sqlite3.SQLITE_BUSY: "is locked: another program holds it",
    sqlite3.SQLITE_LOCKED: "is locked: another program holds it",
    sqlite3.SQLITE_NOTADB: "is not a database of SQLite",
    sqlite3.SQLITE_CORRUPT: "is corrupt",
    sqlite3.SQLITE_READONLY: "can't be written to",
    sqlite3.SQLITE_PERM: "can't be written to",
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_FULL: "has no room: the disk is full; nothing was changed",
    sqlite3.SQLITE_IOERR: "can't be read or written: the disk fails, or is full; nothing was changed",
}
"""By the lowest byte of SQLite's code; the rest of it says more precisely what happened."""


class File:
    """A SQLite file, or a database in memory where `path` is None."""

    def __init__(self, path: str | None, synchronous: str, timeout: float, rng: Uniform = random) -> None:
        self._db: sqlite3.Connection | None = None
        self.path = path
        self._synchronous = synchronous
        self._timeout = timeout
        self._rng = rng
        self.lock = RLock()
        self._inside = False
        self._closed = False
        self._version = -1
        self._still = False
        forks.keep(self)
        self.changed()  # so what is wrong with the file is said now

    # -- transactions

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The right to write, until the end of the block; what was written is there as a whole, or not at all."""
        with self._held("BEGIN IMMEDIATE") as begun:
            db = begun.connection
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite itself may have rolled back
                    db.execute("ROLLBACK")
                raise

    def read(self, query: str, args: Any = ()) -> list[Any]:
        """The rows of one query; it does not wait for those who write."""
        with self._held(query, args) as rows:
            return rows.fetchall()

    def changed(self) -> bool:
        """Has another process written since we last asked?"""
        ((version,),) = self.read("PRAGMA data_version")
        before, self._version = self._version, version
        return bool(version != before)

    @contextmanager
    def _held(self, first: str, args: Any = ()) -> Iterator[sqlite3.Cursor]:
        """The lock of the connection, after its first statement has been let through: what that answers.

        Who reads is kept waiting too, while another process mends the log that a third one left when it was killed.
        """
        end: float | None = None
        while True:
            with self.lock:
                self._refuse_reentry()
                try:
                    self._inside = True
                    try:
                        answer = self._connection().execute(first, args)
                    except (sqlite3.Error, Foreign) as error:
                        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                        end = monotonic() + self._timeout if end is None else end
                        if code != sqlite3.SQLITE_BUSY or monotonic() >= end:
                            raise self._explained(error) from error
                    else:
                        try:
                            yield answer
                        except sqlite3.Error as error:
                            raise self._explained(error) from error
                        return
                finally:
                    self._inside = False
                    if self._closed:  # by a signal handler, in the middle of this
                        self._disconnect()
            sleep(SHORTEST + self._rng.random() * (LONGEST - SHORTEST))

    def _refuse_reentry(self) -> None:
        """Refuse a signal handler, or a finalizer, in the middle of a transaction of its own thread; needs the lock."""
        if self._inside:
            raise StoreError(
                f"{self} is in use by this very thread: a signal handler or a finalizer can't use a store in the "
                "middle of an operation on it; set a flag there, or use another thread"
            )

    # -- the connection

    def _connection(self) -> sqlite3.Connection:
        """This process's connection; needs the lock."""
        if self._db is None:
            if self._closed:
                raise StoreError(f"{self} is closed")
            if self.path is not None and os.path.isdir(self.path):
                raise StoreError(f"{self} is a directory: expected a file, or a path at which to make one")
            db = sqlite3.connect(self.path or ":memory:", timeout=0.0, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.text_factory = bytes  # another program may have written what is no UTF-8
        db.execute(f"PRAGMA page_size = {PAGE}")  # of a new file
        db.execute("BEGIN IMMEDIATE")  # so a file that can't be written to is refused here, and not at the first add
        try:
            migrate(db)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if self.path is not None and mode != b"wal":
            raise StoreError(f"{self} lies where SQLite can't share it between processes (no WAL on this file system)")
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    def _explained(self, error: Exception) -> StoreError:
        if isinstance(error, Foreign):
            return StoreError(f"{self} {error}")
        why = REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "failed")
        return StoreError(f"{self} {why} (SQLite says: {error})")

    def close(self) -> None:
        """Close the connection; a write that is under way is let finish."""
        with self.lock:
            self._closed = True
            if not self._inside:  # or the operation that was interrupted does it
                self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def __del__(self) -> None:
        # who drops a store without closing it needn't be warned: nothing is lost by it
        self._disconnect()

    def __str__(self) -> str:
        return self.path or "memory:"

    def before_fork(self) -> None:
        """Let a transaction that is under way finish, and none begin."""
        self._still = self.lock.acquire(timeout=PATIENCE)

    def after_fork_in_parent(self) -> None:
        """Let transactions begin again."""
        if self._still:
            self.lock.release()

    def after_fork(self) -> None:
        """In the child: a connection of its own; what was in memory stays the parent's."""
        self.lock = RLock()
        if self._db is not None:
            _left.append(self._db)
            self._db = None


_left: list[sqlite3.Connection] = []
"""In a child, the parent's connections: closing one here would disturb the parent."""
PATIENCE = 5.0
"""Seconds for which a fork waits for a transaction; one that takes longer hangs, and the fork must not."""
