"""The one connection that a process has to a SQLite file, and the transactions on it.

* One connection and a lock, not one per thread: SQLite lets one write at a time, and those who wait for a lock are
  woken at once, where those who wait for a file ask again every few milliseconds.
* A transaction takes the right to write at its beginning (``BEGIN IMMEDIATE``), so it never has to begin anew in the
  middle. Where another process has it, we ask again after a short, random pause, without the lock, until `timeout`.
* A connection must not cross a fork. The locks on the file are the parent's alone, while SQLite in the child takes
  them to be held, and so would a new connection of the child to the same file: others would then delete the log that
  the child writes to. So the connection is closed before the fork, when no transaction is under way, and parent and
  child each open one when they next need it. A child that has inherited a descriptor of the file all the same refuses
  to open it: a transaction took longer than `PATIENCE`, this very thread forked in the middle of one, the program has
  a connection of its own, or the fork was made without Python's hooks.
* Before each transaction the path is looked at, and several times a second by those who read. A file that was replaced
  is opened anew; one that was deleted is an error, and is not made again by a process that had it open.
* What SQLite says is said again in words, as `StoreError`.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock, get_ident
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import finalize

from abate import forks
from abate.logs import Log
from abate.schedule.backoff import Uniform
from abate.stores.contract import StoreError
from abate.stores.sqlite import instants, place
from abate.stores.sqlite.schema import Foreign, migrate

log = Log("abate.stores")
T = TypeVar("T")

SHORTEST, LONGEST = 0.0002, 0.005
"""Seconds between two tries to write; most transactions of others take less than a millisecond."""
PAGE = 2048
"""Bytes; a transaction writes whole pages, and most of ours change one row and its places in the indexes."""
LOG_PAGES = 4000
"""How long the write-ahead log grows before it is copied into the file, which waits for the disk."""
LOG_BYTES = 2 * LOG_PAGES * PAGE
"""What is left of a write-ahead log that has been longer."""

CACHED = 0 if "t" in getattr(sys, "abiflags", "") else 128
"""Statements that a connection keeps. SQLite closes the file when the last one is gone. Without a GIL, what one thread
has made and another drops is there until the first one runs on, and that one may be waiting for the fork which closes
the file: so none are kept."""

BEGIN = "BEGIN IMMEDIATE"
LOOK = 0.1
"""Seconds between two looks at the paths of the file and its log; before it writes, each transaction looks at the
file's."""

REASONS = {
    sqlite3.SQLITE_BUSY: "is locked: another program holds it",
    sqlite3.SQLITE_LOCKED: "is locked: another program holds it",
    sqlite3.SQLITE_NOTADB: "is not a database of SQLite",
    sqlite3.SQLITE_CORRUPT: "is corrupt",
    sqlite3.SQLITE_READONLY: "can't be written to",
    sqlite3.SQLITE_PERM: "can't be written to",
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_FULL: "has no room: the disk is full; nothing was changed",
    sqlite3.SQLITE_AUTH: "can't be used here: the process was forked in the middle of this transaction, the parent's",
    sqlite3.SQLITE_IOERR: "can't be read or written: the disk fails, or is full; nothing was changed",
}
"""By the lowest byte of SQLite's code; the rest of it says more precisely what happened."""


class File:
    """A SQLite file, or a database in memory where `path` is None."""

    def __init__(
        self, path: str | None, synchronous: str, timeout: float, rng: Uniform = random, *, shared: bool = False
    ) -> None:
        self._db: sqlite3.Connection | None = None
        self._closer: finalize[..., File] | None = None
        """Closes the connection of a store that is dropped, without a warning: nothing is lost by it. It is no
        ``__del__``, which would run for a store that was closed as well, and lose what a signal handler raises."""
        self.path = path
        self.inherited = False
        """Is this a database in memory whose messages are in the memory of a parent process?"""
        self._synchronous = synchronous
        self._timeout = timeout
        self._shared = shared
        self._rng = rng
        self._process = os.getpid()
        self.lock = RLock()
        self._owner = 0
        """The thread that is in the middle of an operation."""
        self._forking: set[int] = set()
        self._closed = False
        self._place: place.Place | None = None
        self._look_again = 0.0
        self._version = -1
        self._origin = self._mark = 0.0
        forks.keep(self)
        self.changed()  # so what is wrong with the file is said now

    # -- transactions

    def transaction(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """What `act` answers, which has the right to write; what it wrote is there as a whole, or not at all."""
        return self._held(BEGIN, (), partial(self._written, act))

    def _written(self, act: Callable[[sqlite3.Connection], T], begun: sqlite3.Cursor) -> T:
        db = begun.connection
        now = self.now()
        if now >= self._mark + instants.MARK:
            instants.mark(db, now)
            self._mark = now
        answer = act(db)
        db.execute("COMMIT")
        return answer

    def read(self, query: str, args: Any = ()) -> list[Any]:
        """The rows of one query; it does not wait for those who write."""
        return self._held(query, args, sqlite3.Cursor.fetchall)

    def changed(self) -> bool:
        """Has another process written since we last asked?"""
        ((version,),) = self.read("PRAGMA data_version")
        before, self._version = self._version, version
        return bool(version != before)

    def now(self) -> float:
        """The time in this file, for whoever has opened it (see `instants`)."""
        return instants.elapsed() + self._origin

    def _held(self, first: str, args: Any, act: Callable[[sqlite3.Cursor], T]) -> T:
        """What `act` makes of the first statement's answer, called with the lock of the connection.

        Who reads is kept waiting too, while another process mends the log that a third one left when it was killed.
        """
        # A function and no context manager: a signal handler that raises may come between that one's `__enter__` and
        # the block, and then nobody would release the lock before the exception is dropped.
        self._notice_fork()
        end: float | None = None
        while True:
            lock = self.lock  # a child that is forked in the middle has another one
            for _ in iter(lock.acquire, None):  # a `with` statement may be interrupted before it has begun
                try:
                    self._refuse_reentry()
                    try:
                        self._owner = get_ident()
                        try:
                            answer = self._connection(first == BEGIN).execute(first, args)
                        except (sqlite3.Error, Foreign, OSError) as error:
                            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                            end = monotonic() + self._timeout if end is None else end
                            if code != sqlite3.SQLITE_BUSY or monotonic() >= end:
                                raise self._explained(error) from error
                        else:
                            try:
                                return act(answer)
                            except sqlite3.Error as error:
                                raise self._explained(error) from error
                    finally:
                        try:
                            # Wherever it was interrupted: a signal handler may raise right after BEGIN. No call
                            # comes before this one, in which the next handler might. A child that was forked in the
                            # middle has no connection here: the transaction is the parent's.
                            if self._db is not None and self._db.in_transaction:  # SQLite itself may have rolled back
                                self._db.execute("ROLLBACK")
                        except sqlite3.Error as error:
                            raise self._explained(error) from error
                        finally:
                            self._owner = 0
                            if self._closed:  # by a signal handler, in the middle of this
                                self._let_go()
                finally:
                    lock.release()
                break
            sleep(SHORTEST + self._rng.random() * (LONGEST - SHORTEST))

    def _refuse_reentry(self) -> None:
        """Refuse a signal handler, or a finalizer, in the middle of an operation of its own thread; needs the lock."""
        if self._owner or get_ident() in self._forking:
            raise StoreError(
                f"{self} is in use by this very thread: a signal handler or a finalizer can't use a store in the "
                "middle of an operation on it; set a flag there, or use another thread"
            )

    # -- the connection

    def _connection(self, writing: bool) -> sqlite3.Connection:
        """This process's connection, to the file that is at the path now; needs the lock."""
        if self._closed:
            raise StoreError(f"{self} is closed")
        if self._place is not None:
            now = monotonic()
            if now >= self._look_again or self._db is None:
                self._look_again = now + LOOK
                self._look(self._place)
            elif writing and place.inode(self._place.path) != self._place.file:
                self._look(self._place)
        return self._db or self._open()

    def _look(self, known: place.Place) -> None:
        """Compare what is at the path with what was opened; a file that was replaced is closed, to be opened anew."""
        file, beside = place.inode(known.path), place.inode(known.log_path)
        if file == known.file and (beside == known.log or self._db is None):
            return
        self._look_again = 0.0
        if file is None:
            raise StoreError(
                f"{self} was deleted while this process had it open: put it back, or open the store again to begin "
                "with an empty one"
            )
        log_path = place.log_of(known.path)
        if file != known.file and known.log is not None and place.inode(log_path) == known.log:
            raise StoreError(
                f"{self} was replaced, and {log_path} still belongs to the file before: stop all processes "
                "that use it, delete that log, and start them again"
            )
        self._let_go()
        if file == known.file:  # on closing it, SQLite has copied what was in the log, if it was the only one
            raise StoreError(
                f"{known.log_path}, the log of {self}, was deleted or replaced while this process had it open: what "
                "other processes wrote lately may be lost. Nothing was changed; the file is opened anew next time"
            )

    def _open(self) -> sqlite3.Connection:
        db, file = self._connect(self.path)
        self._db = db  # from the beginning, so that a fork in the middle of the rest finds it
        self._closer = finalize(self, _close, db, self._process)
        self._closer.atexit = False
        try:
            self._prepare(db)
            opened = None if self.path is None or file is None else place.opened(self.path, file)
        except BaseException:
            self._let_go()
            raise
        if opened is not None:
            before, self._place = self._place, opened
            if before is not None and before.file != file:
                log.warning("%s was replaced: the new file is used from now on", self)
        self._version = -1  # what another connection was told says nothing to this one
        self._mark = 0.0
        return db

    def _connect(self, path: str | None) -> tuple[sqlite3.Connection, place.Inode | None]:
        """A new connection, and the file that it has open."""
        if path is None:
            return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), None
        if os.path.isdir(path):
            raise StoreError(f"{self} is a directory: expected a file, or a path at which to make one")
        place.check_links(path)
        if self._place is None:
            place.create(path)
        while True:
            file = place.inode(path)
            if file in _inherited:
                raise StoreError(
                    f"{self} can't be used in this process: its parent had the file open when it forked this one, and "
                    "SQLite's locks don't work here. Close connections of your own before a fork, and don't fork "
                    "inside a transaction"
                )
            place.check_links(path)
            if file is not None:
                place.check_owners(path, self._shared)
            # never made by SQLite, which would let others read it
            uri = Path(path).as_uri() + "?mode=rw"
            db = sqlite3.connect(
                uri,
                uri=True,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=CACHED,
            )
            if file is not None and place.inode(path) == file:
                return db, file
            db.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.text_factory = bytes  # another program may have written what is no UTF-8
        db.execute(f"PRAGMA page_size = {PAGE}")  # of a new file
        db.execute(BEGIN)  # so a file that can't be written to is refused here, and not at the first add
        try:
            migrate(db, new=self._place is None)
            origin = instants.origin(db)
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
        db.execute("SELECT mark FROM instant").fetchone()  # so the log is there
        self._origin = origin

    def _explained(self, error: Exception) -> StoreError:
        if isinstance(error, Foreign):
            return StoreError(f"{self} {error}")
        if isinstance(error, OSError):
            return StoreError(f"{self} can't be reached ({error.strerror})")
        why = REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "failed")
        return StoreError(f"{self} {why} (SQLite says: {error})")

    def close(self) -> None:
        """Close the connection; a write that is under way is let finish."""
        self._notice_fork()
        lock = self.lock
        for _ in iter(lock.acquire, None):
            try:
                self._closed = True
                if not self._owner:  # or the operation that was interrupted does it
                    self._let_go()
            finally:
                lock.release()
            break

    def _let_go(self) -> None:
        """Close the connection; needs the lock."""
        db = self._detached()
        if db is not None:
            db.close()

    def _detached(self) -> sqlite3.Connection | None:
        """Take the connection out of this object, which does not close it any more."""
        db, self._db = self._db, None
        closer, self._closer = self._closer, None
        if closer is not None:
            closer.detach()
        return db

    def __str__(self) -> str:
        return self.path or "memory:"

    # -- forks

    def before_fork(self) -> None:
        """Let a transaction that is under way finish, and none begin; close the connection to a file."""
        if self._owner == get_ident():  # a signal handler forks: the transaction can't end before the fork
            return
        if self.lock.acquire(timeout=PATIENCE):
            self._forking.add(get_ident())
            if self.path is not None:
                self._let_go()

    def after_fork_in_parent(self) -> None:
        """Let transactions begin again."""
        if get_ident() in self._forking:
            self._forking.remove(get_ident())
            self.lock.release()

    def after_fork(self) -> None:
        """In the child: a connection of its own; what was in memory stays the parent's."""
        self._process = os.getpid()
        interrupted = self._owner == get_ident()
        self.lock = RLock()
        self._owner = 0
        self._forking = set()
        if self.path is None:
            self.inherited = True
        elif self._place is not None and (self._db is not None or self._place.file in place.descriptors()):
            _inherited.add(self._place.file)
        db = self._detached()
        if db is not None:
            _left.append(db)
            if interrupted:  # this thread is inside a transaction, and must not go on with it
                db.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
            if self.path is not None:
                _never_close(db)

    def _notice_fork(self) -> None:
        """Do what `after_fork` does in a child that a program in C has forked without calling Python's hooks."""
        if self._process != os.getpid():
            self.after_fork()


_left: list[sqlite3.Connection] = []
"""In a child, the parent's connections."""
_inherited: set[place.Inode] = set()
"""In a child, the files that it has descriptors of since before it was forked."""


def _close(db: sqlite3.Connection, process: int) -> None:
    """Close the connection of a store that was dropped, which loses nothing; in a child the parent's stays open."""
    if os.getpid() == process:
        db.close()
    else:
        _never_close(db)


def _never_close(db: sqlite3.Connection) -> None:
    """Keep a connection even when Python ends: closing the parent's might delete the log that others write to."""
    with suppress(ImportError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


PATIENCE = 5.0
"""Seconds for which a fork waits for a transaction; one that takes longer hangs, and the fork must not."""
