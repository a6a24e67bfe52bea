"""Databases: which errors are conflicts between transactions, which are lost connections, and a decorator.

A conflict is the database's way to say "you two, one after the other": a deadlock, a lock that was waited for too
long, a serialization failure, a busy SQLite file. Nothing was committed, so the whole transaction may be run again.

Errors are known by their codes and the names of their modules; no driver is imported here. psycopg 2 and 3, asyncpg,
PyMySQL, mysqlclient, aiomysql, asyncmy, sqlite3 and aiosqlite are known, by themselves or behind SQLAlchemy (``orig``)
or whatever else raises from them (``__cause__``).
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from abate.admit.budget import Budget
from abate.admit.gate import Gate
from abate.call.policy import Policy
from abate.clock import Clock
from abate.decide.outcome import BLIP, UNREACHED, Outcome, Ruling
from abate.decide.rules import Matcher, Rule, matchers, nature
from abate.functions import returned_coroutine
from abate.schedule.backoff import Backoff, Schedule, Uniform

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Owner = TypeVar("Owner")

DEEPEST = 20
"""How many errors behind one another are looked at."""

# SQLSTATE: serialization_failure, deadlock_detected, lock_not_available
CONFLICT_STATES = frozenset({"40001", "40P01", "55P03"})
# MySQL: the record has changed since the snapshot, lock wait timeout, deadlock, NOWAIT (MariaDB's NOWAIT is 1205)
CONFLICT_NUMBERS = frozenset({1020, 1205, 1213, 3572})
SQLITE_BUSY, SQLITE_LOCKED_SHAREDCACHE = 5, 262

# SQLSTATE: connection_exception and its kin, shutdowns by an operator or a crash, sessions that idled too long
LOST_STATES = frozenset({"08000", "08003", "08006", "25P03", "57P01", "57P02", "57P05"})
# could not connect; the server is starting up or shutting down
REFUSED_STATES = frozenset({"08001", "57P03"})
# MySQL: killed, gone away, lost during the query (twice), idled too long
LOST_NUMBERS = frozenset({1927, 2006, 2013, 2055, 4031})
# PyMySQL's and aiomysql's InterfaceError on a connection that is closed has no number of its own
CLOSED_ARGS = frozenset({0, "(0, 'Not connected')"})
# no such socket, nobody listens at that address, no such host
REFUSED_NUMBERS = frozenset({2002, 2003, 2005})
# libpq and the drivers around it give no code once the connection is gone, or before there is one
LOST_TEXTS = (
    "connection is closed",
    "connection is lost",
    "connection socket closed",
    "connection already closed",
    "closed the connection unexpectedly",
    "connection has been closed unexpectedly",
    "could not receive data from server",
    "could not send data to server",
)
REFUSED_TEXTS = ("could not translate host name", "failed to resolve host")

MYSQL = frozenset({"MySQLdb", "aiomysql", "asyncmy", "pymysql"})
POSTGRES = frozenset({"asyncpg", "psycopg", "psycopg2"})


CONFLICT = Ruling.blip(reached=False, answered=True)


class OnConflict(Rule):
    """Conflicts between transactions.

    >>> import sqlite3
    >>> busy = sqlite3.OperationalError("database is locked")
    >>> busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    >>> conflict.judge(Outcome(error=busy))
    Ruling(retry=True, reason='blip', hint=None, reached=False, safe=None, answered=True)
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        # the server saw the transaction, but has none of it: that is as good as never having seen it
        return CONFLICT if any(map(_is_conflict, _behind(outcome.error))) else None


class OnConnectionLost(Rule):
    """Connections that were refused, or broke.

    >>> connection_lost.judge(Outcome(error=ConnectionRefusedError())).reached
    False
    >>> connection_lost.judge(Outcome(error=ConnectionResetError())).reached
    True
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        rulings = [_connection(error) for error in _behind(outcome.error)]
        if BLIP in rulings:
            return BLIP
        return UNREACHED if UNREACHED in rulings else None


conflict = OnConflict()
"""Retry conflicts: deadlocks, lock timeouts, serialization failures, a busy SQLite file. Nothing was committed, so
a policy with ``idempotent=False`` retries them as well."""

connection_lost = OnConnectionLost()
"""Retry connections that were refused, or that broke. What was sent on a connection that broke may have been
committed: a policy with ``idempotent=False`` retries only the refused ones."""


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those it was made from."""
    for _ in range(DEEPEST):
        if error is None:
            return
        yield error
        orig = getattr(error, "orig", None)  # SQLAlchemy's name for the driver's error
        error = orig if isinstance(orig, BaseException) else error.__cause__


def _is_conflict(error: BaseException) -> bool:
    if _state(error) in CONFLICT_STATES:
        return True
    if _of(error, MYSQL):
        return _number(error) in CONFLICT_NUMBERS
    code = getattr(error, "sqlite_errorcode", None)
    # the low byte of SQLite's code is its family: busy, with a snapshot that is too old, with a recovery going on
    return isinstance(code, int) and (code & 0xFF == SQLITE_BUSY or code == SQLITE_LOCKED_SHAREDCACHE)


def _connection(error: BaseException) -> Ruling | None:
    """What an error says about the connection: refused, broken, or nothing."""
    if isinstance(error, ConnectionError) or nature(error) is UNREACHED:
        return nature(error)  # asyncpg lets the socket's own errors through
    if _refused(error):
        return UNREACHED
    # SQLAlchemy's dialects know when a connection has to go
    return BLIP if _lost(error) or getattr(error, "connection_invalidated", False) is True else None


def _refused(error: BaseException) -> bool:
    if _of(error, MYSQL):
        return _number(error) in REFUSED_NUMBERS
    if _state(error) is not None or not _of(error, POSTGRES):
        return _state(error) in REFUSED_STATES
    text = str(error)
    # libpq quotes the system, in the locale's words, as Python does; a server that is down leaves no socket file
    return (
        any(known in text for known in REFUSED_TEXTS)
        or os.strerror(errno.ECONNREFUSED) in text
        or ("on socket" in text and os.strerror(errno.ENOENT) in text)
    )


def _lost(error: BaseException) -> bool:
    if _of(error, MYSQL):
        closed = type(error).__name__ == "InterfaceError" and _number(error) in CLOSED_ARGS
        return closed or _number(error) in LOST_NUMBERS
    if _state(error) is not None or not _of(error, POSTGRES):
        return _state(error) in LOST_STATES
    text = str(error)
    return any(known in text for known in LOST_TEXTS)


def _state(error: BaseException) -> str | None:
    """The SQLSTATE: psycopg2 calls it ``pgcode``."""
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    return None


def _number(error: BaseException) -> object:
    """MySQL's error number, which its drivers put first."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, (int, str)) else None


def _of(error: BaseException, drivers: frozenset[str]) -> bool:
    return any(kind.__module__.partition(".")[0] in drivers for kind in type(error).__mro__)


# -- whose transaction is it?


class Running:
    """A transaction that this context is in, entered as a block; `place` says where, if that is known.

    Tasks and threads that were started inside have a copy of the context. They learn here when it is over.
    """

    __slots__ = ("_over", "outer", "place")

    def __init__(self, place: object = None) -> None:
        self.place = place
        self.outer = running()
        self._over = False

    def __enter__(self) -> Running:
        _running.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if _running.get() is self:  # else it is left in another context than the one that entered it
            _running.set(self.outer)

    @property
    def over(self) -> bool:
        """Has its block been left?"""
        return self._over


_running: ContextVar[Running | None] = ContextVar("abate_transaction", default=None)


def running() -> Running | None:
    """The innermost transaction that this context is in, as far as abate runs it."""
    here = _running.get()
    while here is not None and here.over:
        here = here.outer
    return here


class Settings(TypedDict, total=False):
    """What a `Policy` takes besides `attempts`; `on` is what is retried besides conflicts."""

    on: Matcher | Iterable[Matcher]
    unless: Matcher | Iterable[Matcher]
    name: str
    timeout: float | None
    attempt_timeout: float | None
    backoff: Schedule | Callable[[int], float] | Iterable[float] | None
    budget: Budget | None
    gate: Gate | None
    idempotent: bool | None
    max_hint: float
    raises: Literal["original", "exhausted"]
    clock: Clock | Callable[[], float] | None
    rng: Uniform | None


def conflict_policy(attempts: int, settings: Settings) -> Policy:
    """A policy for transactions: conflicts, with full jitter from 50 ms; nothing that may have been committed."""
    given: dict[str, Any] = {"idempotent": False, "backoff": Backoff(base=0.05, cap=2.0), **settings}
    given["on"] = (conflict, *matchers("on", given.get("on", ())))
    return Policy(attempts=attempts, **given)


class retry_on_db_conflict:
    """Run a whole transaction again when the database reports a conflict.

    The decorated function (or coroutine function) is the whole transaction: it begins it, commits it, and leaves
    nothing of it open when it raises, as ``with connection:`` does. What it takes is what a `Policy` takes. `on` adds
    to what is retried, such as `connection_lost`; unless `idempotent` is True, only what was certainly not committed
    is repeated.

    **Nested**, the transaction is the outer function's: the inner one runs as if it were not decorated, and the
    outermost one retries, from the beginning. That holds for tasks and threads that share the context, too.

    >>> import sqlite3
    >>> attempts = []
    >>> @retry_on_db_conflict(attempts=5, backoff=[0.0])
    ... def transfer(amount):
    ...     attempts.append(amount)
    ...     if len(attempts) < 3:
    ...         busy = sqlite3.OperationalError("database is locked")
    ...         busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    ...         raise busy
    ...     return "committed"
    >>> transfer(10), attempts
    ('committed', [10, 10, 10])
    """

    __slots__ = ("policy",)

    def __init__(self, attempts: int = 3, **settings: Unpack[Settings]) -> None:
        self.policy = conflict_policy(attempts, settings)

    @overload
    def __call__(self, function: classmethod[Owner, P, T]) -> classmethod[Owner, P, T]: ...
    @overload
    def __call__(self, function: staticmethod[P, T]) -> staticmethod[P, T]: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: Any) -> Any:
        """Decorate a function, coroutine function or method; its type is kept."""
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(self(function.__func__))
        retried = self.policy(function)
        return (_arun if inspect.iscoroutinefunction(retried) else _run)(function, retried)


def _run(function: Callable[P, T], retried: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if running() is not None:
            return function(*args, **kwargs)
        with Running():
            result = retried(*args, **kwargs)
        return _held(result) if returned_coroutine(result) else result  # type: ignore[return-value]

    return run


async def _held(coroutine: Any) -> Any:
    """Await what a plain function has returned in place of its result."""
    with Running():
        return await coroutine


def _arun(function: Callable[..., Any], retried: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        if running() is not None:
            return await function(*args, **kwargs)
        with Running():
            return await retried(*args, **kwargs)

    return arun
