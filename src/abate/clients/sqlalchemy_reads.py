"""SQLAlchemy: whether the open transaction of a session or connection has only read, and may be rolled back.

SQLAlchemy begins a transaction by itself with the first statement, also to read one attribute. It does not record what
the transaction has sent. `watch` does, with event listeners on the given session or connection only, and
`end_reads` rolls back a transaction that certainly has written nothing:

* It began after `watch`, and SQLAlchemy began it by itself (a ``with`` block around it would notice the rollback).
* All it has sent are plain SELECTs: without ``FOR UPDATE``, ``INTO`` and functions that this module does not know,
  since a function may write, lock, or set something for the rest of the transaction.
* The session has no new, changed or deleted objects, and the transaction has no savepoint.

Statements sent by the driver's own cursor are not seen, nor what a view or a trigger does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin, scoped_session, sessionmaker

__all__ = ["end_reads", "watch"]

# possessive, and from the beginning of a line or a word: linear, whatever literals a statement has
WRITING_WORDS = re.compile(
    r"\b(?:FOR|INTO|LOCK|PROCEDURE)\b|;\s*+\S|/\*|(?m:^)(?:(?!--|#).)*+[-#][^\n]*+\n\s*+\(", re.IGNORECASE
)
"""What makes a SELECT more than a read; MySQL executes some comments, and one may hide the name of a function."""

CALLED = re.compile(r"(?<![\w$.\"`\]])([\w$.\"`\]]++)\s*+\(")
"""A function's name, with its schema, or a keyword, before its parenthesis."""

KEYWORDS = """
all and any as between by case cast distinct else except exists filter from having in intersect join lateral like limit
not offset on or order over partition select some then union using values when where within
char decimal numeric timestamp varchar
"""
FUNCTIONS = """
abs avg ceil ceiling char_length coalesce concat count date date_trunc extract floor greatest ifnull least length lower
ltrim max min mod now nullif rank round row_number rtrim substr substring sum trim upper
"""
HARMLESS = frozenset(KEYWORDS.split() + FUNCTIONS.split())
"""What may stand before a parenthesis in a plain SELECT: keywords, types, and functions that only compute."""

MAX_FRAMES = 12
"""Frames between an event of SQLAlchemy and the statement that caused it: in 2.0 and 2.1 there are fewer."""

_only_reads: WeakKeyDictionary[Connection, bool] = WeakKeyDictionary()
"""Whether the transaction of a connection has sent plain SELECTs only; without an entry, it is not known."""

_explicit: WeakSet[Connection] = WeakSet()
"""The watched connections whose transaction the program began: its end is the program's."""

_connections: WeakKeyDictionary[SessionTransaction, list[Connection]] = WeakKeyDictionary()
"""The connections of the transactions of sessions that were watched from their beginning."""

_watched: WeakSet[Any] = WeakSet()
"""What has listeners. `event.contains` does not tell: it takes a new object for a dropped one of the same address."""


def watch(source: Any) -> None:
    """Record from now on what the transactions of a session, `scoped_session` or connection send."""
    if isinstance(source, Connection):
        _listen(source, begin=_connection_began, before_cursor_execute=_note_statement)
    elif isinstance(source, Session):
        _listen(source, after_transaction_create=_session_began, after_begin=_session_connected)
    elif isinstance(source, scoped_session) and isinstance(source.session_factory, sessionmaker):
        # the sessions of another factory can't be found before they exist
        _listen(source.session_factory, after_transaction_create=_session_began, after_begin=_session_connected)


def _listen(target: Any, **listeners: Callable[..., None]) -> None:
    """Add listeners to a target, once."""
    if target not in _watched:
        for name, listener in listeners.items():
            event.listen(target, name, listener)
        _watched.add(target)


def end_reads(source: Session | Connection) -> None:
    """Roll back the open transaction of a session or connection if it has only read; otherwise raise an error."""
    if not source.in_transaction():
        return
    reason = _why_not(source)
    if reason is not None:
        raise RuntimeError(
            f"{source!r} is in a transaction already, which {reason}; half of a transaction must not be repeated:"
            " commit it or roll it back first, or retry where it was begun"
        )
    source.rollback()


def is_plain_read(statement: str) -> bool:
    """Return whether an SQL statement certainly does nothing but read.

    >>> is_plain_read("SELECT count(*) FROM orders"), is_plain_read("SELECT 1 FOR UPDATE"), is_plain_read("SELECT f(1)")
    (True, False, False)
    """
    return (
        statement.lstrip()[:6].upper() == "SELECT"
        and WRITING_WORDS.search(statement) is None
        and all(name.lower() in HARMLESS for name in CALLED.findall(statement))
    )


def _why_not(source: Session | Connection) -> str | None:
    """Return why the open transaction must not be rolled back here; None if it has only read."""
    if getattr(source, "_trans_context_manager", None) is not None:  # there is no public way to know
        return "belongs to a `with` block"
    if source.in_nested_transaction():
        return "has a savepoint"
    if isinstance(source, Connection):
        connections: list[Connection] | None = [source]
    else:
        transaction = source.get_transaction()
        if transaction is None or transaction.origin is not SessionTransactionOrigin.AUTOBEGIN:
            return "was begun explicitly"
        if source.new or source.dirty or source.deleted:
            return "has new, changed or deleted objects"
        connections = _connections.get(transaction)
    if any(connection in _explicit for connection in connections or ()):
        return "was begun explicitly"
    if connections is None or any(connection not in _only_reads for connection in connections):
        return "began before `transaction(...)` was made, so that it is not known what it has written"
    if not all(_only_reads[connection] for connection in connections):
        return "has sent more than plain SELECTs"
    return None


def _connection_began(connection: Connection) -> None:
    _only_reads[connection] = True
    if _is_autobegin():
        _explicit.discard(connection)
    else:
        _explicit.add(connection)


def _is_autobegin() -> bool:
    """Return whether SQLAlchemy begins a transaction by itself: only its own frames know."""
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_code.co_name == "_autobegin" and frame.f_globals.get("__name__") == "sqlalchemy.engine.base":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _note_statement(connection: Connection, cursor: Any, statement: str, *details: Any) -> None:
    if _only_reads.get(connection):
        _only_reads[connection] = is_plain_read(statement)


def _session_began(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _connections[transaction] = []


def _session_connected(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    connections = _connections.get(transaction)
    if connections is None:
        return
    connections.append(connection)
    # a connection that was given to the session may have sent more before, and the last entry is False
    *_, own = getattr(transaction, "_connections", {}).get(connection, (False,))
    if own:
        _only_reads[connection] = True
        event.listen(connection, "before_cursor_execute", _note_statement)
