"""The connection of a process to a SQLite file, and the transactions on it.

* A process has one connection and a lock, not a connection per thread: SQLite allows one writer at a time. A thread
  that waits for the lock is woken at once, but a thread that waits for the file has to poll every few milliseconds.
* A transaction acquires the write lock at its beginning (``BEGIN IMMEDIATE``), so it never has to restart in the
  middle. While another process holds the lock, the thread tries again after short random pauses, up to `timeout`; it
  releases the connection's lock during a pause.
* A connection must not cross a fork. The parent alone holds the file locks, but SQLite in the child assumes that it
  holds them, and so would a new connection of the child to the same file: other processes could then delete the log
  that the child writes to. So the connection is closed before the fork, when no transaction is running, and parent and
  child each open one when they next need it. A child that has inherited a descriptor of the file nevertheless refuses
  to open it. This happens if a transaction took longer than `FORK_WAIT`, if the forking thread was inside a
  transaction, if the program has a connection of its own, or if the fork bypassed Python's hooks.
* The inode at the path is checked before each transaction, and by reads at most every `FILE_CHECK_INTERVAL`. A
  replaced file is opened anew; a deleted file is an error, and a process that had it open does not create it again.
* Errors of SQLite are raised as `StoreError` with an explanation.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import RLock, get_ident
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import finalize

from abate import forks
from abate.logs import Log
from abate.schedule.backoff import RandomSource
from abate.stores.errors import StoreError
from abate.stores.sqlite import file_checks, file_clock, inherited_connections
from abate.stores.sqlite.schema import UnusableDatabase, migrate

log = Log("abate.stores")
T = TypeVar("T")

MIN_LOCK_RETRY, MAX_LOCK_RETRY = 0.0002, 0.005
"""Seconds between two attempts to acquire the write lock; most transactions take less than a millisecond."""
PAGE = 2048
"""Bytes; a transaction writes whole pages, and most transactions change one row and its index entries."""
LOG_PAGES = 4000
"""Pages in the write-ahead log before it is copied into the file, which waits for the disk."""
LOG_BYTES = 2 * LOG_PAGES * PAGE
"""Bytes to which a longer write-ahead log is truncated."""

CACHED = 0 if "t" in getattr(sys, "abiflags", "") else 128
"""Statements that a connection caches. SQLite closes the file only when all statements are freed. Without a GIL, an
object that another thread drops lives until its creating thread runs again, and that thread may be waiting for the fork
that closes the file. So free-threaded builds cache none."""

BEGIN = "BEGIN IMMEDIATE"
BUSY = object()
"""Another process holds the file's lock."""
FORK_WAIT = 5.0
"""Seconds that a fork waits for a transaction; a longer one may hang, and must not block the fork."""
FILE_CHECK_INTERVAL = 0.1
"""Seconds between two checks of the inodes of the file and its log; each transaction also checks the file's before it
writes."""

REASONS = {
    sqlite3.SQLITE_BUSY: "is locked by another program",
    sqlite3.SQLITE_LOCKED: "is locked by another program",
    sqlite3.SQLITE_NOTADB: "is not a database of SQLite",
    sqlite3.SQLITE_CORRUPT: "is corrupt",
    sqlite3.SQLITE_READONLY: "can't be written to",
    sqlite3.SQLITE_PERM: "can't be written to",
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_FULL: "can't grow: the disk is full; nothing was changed",
    sqlite3.SQLITE_AUTH: "can't be used here: the process was forked in the middle of this transaction, the parent's",
    sqlite3.SQLITE_IOERR: "can't be read or written: the disk fails, or is full; nothing was changed",
}
"""Explanations by the lowest byte of SQLite's error code; the higher bytes are details."""


class Database:
    """A SQLite file, or a database in memory if `path` is None."""

    def __init__(
        self, path: str | None, synchronous: str, timeout: float, rng: RandomSource = random, *, shared: bool = False
    ) -> None:
        self._db: sqlite3.Connection | None = None
        self._closer: finalize[..., Database] | None = None
        """Closes the connection of a dropped store, without a warning since no data is lost. A ``__del__`` would also
        run for a closed store, and swallow the exception of a signal handler."""
        self.path = path
        self.inherited = False
        """Whether this is a database in memory whose messages belong to the parent process."""
        self._synchronous = synchronous
        self._timeout = timeout
        self._shared = shared
        self._rng = rng
        self._process = os.getpid()
        self.lock = RLock()
        self._owner = 0
        """The id of the thread that runs an operation, or 0."""
        self._forking: set[int] = set()
        self._closed = False
        self._open_file: file_checks.OpenFile | None = None
        self._look_again = 0.0
        self._version = -1
        self._origin = self._mark = 0.0
        forks.register(self)
        self.changed()  # report an unusable file now

    # -- transactions

    def transaction(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in a write transaction and return its result; its writes are committed together or not at all."""
        return self._run_locked(BEGIN, (), partial(self._run_transaction, act))

    def _run_transaction(self, act: Callable[[sqlite3.Connection], T], begun: sqlite3.Cursor) -> T:
        db = begun.connection
        now = self.now()
        if now >= self._mark + file_clock.MARK_INTERVAL:
            file_clock.mark(db, now)
            self._mark = now
        answer = act(db)
        db.execute("COMMIT")
        return answer

    def read(self, query: str, args: Any = ()) -> list[Any]:
        """Return the rows of one query, without waiting for writers."""
        return self._run_locked(query, args, sqlite3.Cursor.fetchall)

    def changed(self) -> bool:
        """Return whether another process has written since the last call."""
        ((version,),) = self.read("PRAGMA data_version")
        before, self._version = self._version, version
        return bool(version != before)

    def now(self) -> float:
        """Return the time of this file (see `file_clock`)."""
        return file_clock.seconds_since_boot() + self._origin

    def _run_locked(self, first: str, args: Any, act: Callable[[sqlite3.Cursor], T]) -> T:
        """Execute the first statement and return `act` of its cursor, with the connection's lock held.

        Reads may have to wait too: while another process recovers the log of one that was killed. When the lock is
        released, no transaction is open and `_owner` is 0, wherever a signal handler may have raised.
        """
        # A function, not a context manager: a signal handler may raise between `__enter__` and the block, and the lock
        # would then stay locked until the exception is dropped.
        self._notice_fork()
        end: float | None = None
        while True:
            lock = self.lock  # a child forked in the middle gets a new one
            for _ in iter(lock.acquire, None):  # a signal may interrupt a `with` statement after it has the lock
                try:
                    self._refuse_reentry()
                    try:
                        self._owner = get_ident()
                        answer = self._execute(first, args, act, end)
                        if answer is not BUSY:
                            return answer  # type: ignore[return-value]
                    finally:
                        try:
                            # No call precedes this one, since a second handler could raise in it. A child that was
                            # forked in the middle has no connection here: the transaction belongs to the parent.
                            if self._db is not None and self._db.in_transaction:  # SQLite itself may have rolled back
                                self._db.execute("ROLLBACK")
                        except sqlite3.Error as error:
                            raise self._to_store_error(error) from error
                        finally:
                            self._owner = 0
                            if self._closed:  # by a signal handler during this operation
                                self._close_connection()
                finally:
                    lock.release()
                break
            end = monotonic() + self._timeout if end is None else end
            sleep(MIN_LOCK_RETRY + self._rng.random() * (MAX_LOCK_RETRY - MIN_LOCK_RETRY))

    def _execute(self, first: str, args: Any, act: Callable[[sqlite3.Cursor], T], end: float | None) -> T | object:
        """Execute the first statement and return `act` of its cursor, or `BUSY` to try again until `end`."""
        try:
            cursor = self._checked_connection(first == BEGIN).execute(first, args)
        except (sqlite3.Error, UnusableDatabase, OSError) as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if busy and (self._timeout > 0 if end is None else monotonic() < end):
                return BUSY
            raise self._to_store_error(error) from error
        try:
            return act(cursor)
        except sqlite3.Error as error:
            raise self._to_store_error(error) from error

    def _refuse_reentry(self) -> None:
        """Refuse a signal handler or finalizer that interrupts an operation of its own thread; needs the lock."""
        if self._owner or get_ident() in self._forking:
            raise StoreError(
                f"{self} is in use by this thread: a signal handler or a finalizer can't use a store in the "
                "middle of an operation on it; set a flag there, or use another thread"
            )

    # -- the connection

    def _checked_connection(self, writing: bool) -> sqlite3.Connection:
        """Return the connection to the file that is at the path now; needs the lock."""
        if self._closed:
            raise StoreError(f"{self} is closed")
        if self._open_file is not None:
            now = monotonic()
            if now >= self._look_again or self._db is None:
                self._look_again = now + FILE_CHECK_INTERVAL
                self._check_file(self._open_file)
            elif writing and file_checks.inode(self._open_file.path) != self._open_file.file:
                self._check_file(self._open_file)
        return self._db or self._open()

    def _check_file(self, known: file_checks.OpenFile) -> None:
        """Compare the file at the path with the open one; close the connection if the file was replaced."""
        file, beside = file_checks.inode(known.path), file_checks.inode(known.log_path)
        if file == known.file and (beside == known.log or self._db is None):
            return
        self._look_again = 0.0
        if file is None:
            raise StoreError(
                f"{self} was deleted while this process had it open: put it back, or open the store again to begin "
                "with an empty one"
            )
        log_path = file_checks.wal_path(known.path)
        if file != known.file and known.log is not None and file_checks.inode(log_path) == known.log:
            raise StoreError(
                f"{self} was replaced, and {log_path} still belongs to the former file: stop all processes "
                "that use it, delete that log, and start them again"
            )
        self._close_connection()
        if file == known.file:  # closing the last connection has copied the log into the file
            raise StoreError(
                f"{known.log_path}, the log of {self}, was deleted or replaced while this process had it open: recent "
                "writes of other processes may be lost. Nothing was changed; the next operation opens the file again"
            )

    def _open(self) -> sqlite3.Connection:
        db, file = self._connect(self.path)
        self._db = db  # set first, so that a fork during the rest finds it
        self._closer = finalize(self, inherited_connections.close_if_own, db, self._process)
        self._closer.atexit = False
        try:
            self._prepare(db)
            if self.path is not None:  # again: another user may have put a log there before SQLite opened it
                file_checks.check_owners(self.path, self._shared)
            opened = None if self.path is None or file is None else file_checks.describe_open_file(self.path, file)
        except BaseException:
            self._close_connection()
            raise
        if opened is not None:
            before, self._open_file = self._open_file, opened
            if before is not None and before.file != file:
                log.warning("%s was replaced: the new file is used from now on", self)
        self._version = -1  # data_version of another connection can't be compared
        self._mark = 0.0
        return db

    def _connect(self, path: str | None) -> tuple[sqlite3.Connection, file_checks.Inode | None]:
        """Open a connection. Return it with the identity of its file."""
        if path is None:
            return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), None
        if os.path.isdir(path):
            raise StoreError(f"{self} is a directory: expected a file, or a path at which to create one")
        file_checks.check_links(path)
        if self._open_file is None:
            file_checks.create(path)
        while True:
            file = file_checks.inode(path)
            if file in inherited_connections.files:
                raise StoreError(
                    f"{self} can't be used in this process: its parent had the file open when it forked this one, and "
                    "SQLite's locks don't work here. Close connections of your own before a fork, and don't fork "
                    "inside a transaction"
                )
            file_checks.check_links(path)
            if file is not None:
                file_checks.check_owners(path, self._shared)
            # SQLite must not create the file: others could read it
            uri = Path(path).as_uri() + "?mode=rw"
            db = sqlite3.connect(
                uri,
                uri=True,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=CACHED,
            )
            if file is not None and file_checks.inode(path) == file:
                return db, file
            db.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.text_factory = bytes  # another program may have written invalid UTF-8
        db.execute(f"PRAGMA page_size = {PAGE}")  # applies to a new file only
        db.execute(BEGIN)  # refuse a read-only file now, not at the first add
        try:
            migrate(db, new=self._open_file is None)
            origin = file_clock.origin(db)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if self.path is not None and mode != b"wal":
            raise StoreError(f"{self} is on a file system where SQLite can't share it between processes (no WAL)")
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        db.execute("SELECT mark FROM instant").fetchone()  # creates the log
        self._origin = origin

    def _to_store_error(self, error: Exception) -> StoreError:
        if isinstance(error, UnusableDatabase):
            return StoreError(f"{self} {error}")
        if isinstance(error, OSError):
            return StoreError(f"{self} can't be reached ({error.strerror})")
        why = REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "failed")
        return StoreError(f"{self} {why} (SQLite says: {error})")

    def close(self) -> None:
        """Close the connection, after a running write has finished."""
        self._notice_fork()
        lock = self.lock
        for _ in iter(lock.acquire, None):
            try:
                self._closed = True
                if not self._owner:  # otherwise the interrupted operation closes it
                    self._close_connection()
            finally:
                lock.release()
            break

    def _close_connection(self) -> None:
        """Close the connection; needs the lock."""
        db = self._detached()
        if db is not None:
            db.close()

    def _detached(self) -> sqlite3.Connection | None:
        """Remove the connection from this object, without closing it, and return it."""
        db, self._db = self._db, None
        closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()
        return db

    def __str__(self) -> str:
        return self.path or "memory:"

    # -- forks

    def before_fork(self) -> None:
        """Wait for a running transaction, block new ones, and close the connection to a file."""
        me = get_ident()
        if self._owner == me:  # a signal handler forks: the transaction can't end before the fork
            return
        if me not in self._forking:
            # iterators take and release the lock, as signal handlers may raise: see `abate.reentrant_locks`
            for taken in iter(partial(self.lock.acquire, timeout=FORK_WAIT), None):
                if not taken:
                    return
                self._forking.add(me)
                break
        if self.path is not None:
            self._close_connection()

    def after_fork_in_parent(self) -> None:
        """Allow transactions again."""
        me = get_ident()
        if me in self._forking:
            for _ in iter(self.lock.release, True):
                self._forking.discard(me)
                break

    def after_fork(self) -> None:
        """Reset the child: it opens its own connection, and messages in memory stay with the parent."""
        self._process = os.getpid()
        interrupted = self._owner == get_ident()
        self.lock = RLock()
        self._owner = 0
        self._forking = set()
        if self.path is None:
            self.inherited = True
        elif self._open_file is not None and (
            self._db is not None or self._open_file.file in file_checks.open_inodes()
        ):
            inherited_connections.files.add(self._open_file.file)
        db = self._detached()
        if db is not None:
            inherited_connections.keep_unused(db, interrupted, in_memory=self.path is None)

    def _notice_fork(self) -> None:
        """Call `after_fork` in a child that C code has forked without Python's hooks."""
        if self._process != os.getpid():
            self.after_fork()
