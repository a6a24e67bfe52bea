"""What a forked child has inherited: connections that it must neither use nor close, and files that it must not open.

SQLite in the child assumes that it holds the parent's file locks. Closing a connection of the parent might delete a log
that is in use.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from abate.stores.sqlite.file_checks import Inode

_parents_connections: list[sqlite3.Connection] = []
"""In a child, the connections of its parent."""
files: set[Inode] = set()
"""In a child, the files whose descriptors it has inherited."""


def keep_unused(db: sqlite3.Connection, in_transaction: bool, in_memory: bool) -> None:
    """In a child, keep a connection of the parent without using it.

    If the child was forked `in_transaction`, its thread is inside a transaction of the parent: further statements fail.
    """
    _parents_connections.append(db)
    if in_transaction:
        db.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    if not in_memory:
        _never_close(db)


def close_if_own(db: sqlite3.Connection, process: int) -> None:
    """Close the connection of a dropped store; in a child, leave the parent's connection open."""
    if os.getpid() == process:
        db.close()
    else:
        _never_close(db)


def _never_close(db: sqlite3.Connection) -> None:
    """Keep a connection open even when Python exits."""
    with suppress(ImportError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
