"""Databases: rules for conflicts between transactions and for lost connections, and a decorator.

A conflict means that two transactions must run one after the other: a deadlock, a lock timeout, a serialization
failure, a busy SQLite file. Nothing was committed, so the whole transaction may be run again.

Errors are recognised by their codes and the names of their modules; no driver is imported here. Known are psycopg 2 and
3, asyncpg, PyMySQL, mysqlclient, aiomysql, asyncmy, sqlite3 and aiosqlite, directly or wrapped by SQLAlchemy (``orig``)
or by any code that raises from them (``__cause__``).
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
from abate.decide.network_errors import judge_network_error
from abate.decide.outcome import BLIP, FATAL_UNREACHED, OVERLOAD_UNREACHED, UNREACHED, Outcome, Ruling
from abate.decide.rules import Matcher, Rule, check_matchers, classify
from abate.errors import bare
from abate.functions import is_coroutine_object, is_generator_function
from abate.schedule.backoff import Backoff, RandomSource, Schedule

__all__ = ["conflict", "connection_lost", "retry_on_db_conflict"]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Owner = TypeVar("Owner")

MAX_CHAIN = 20
"""Errors of a chain of causes that are checked."""

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
# PyMySQL's and aiomysql's InterfaceError on a closed connection has no number of its own
CLOSED_ARGS = frozenset({0, "(0, 'Not connected')"})
# no such socket, nothing listens at that address, no such host
REFUSED_NUMBERS = frozenset({2002, 2003, 2005})
# libpq and its drivers give no code once the connection is lost, or before it is made
LOST_TEXTS = (
    "connection is closed",
    "connection is lost",
    "connection socket closed",
    "connection already closed",
    "closed the connection unexpectedly",
    "connection has been closed unexpectedly",
    "could not receive data from server",
    "could not send data to server",
    "SSL SYSCALL error",
    "unexpected eof while reading",
)
REFUSED_TEXTS = ("could not translate host name", "failed to resolve host")
TIMED_OUT = "timeout expired"
"""In libpq's and psycopg's errors: the connection was not made in time."""
NO_TLS = "rejected SSL upgrade"
"""In asyncpg's ConnectionError: the server has no TLS."""
TLS_NUMBER, TLS_EOF = 2026, "unexpected eof"
"""mysqlclient's number for all errors of TLS, with the text of OpenSSL or of the system."""

MYSQL = frozenset({"MySQLdb", "aiomysql", "asyncmy", "pymysql"})
POSTGRES = frozenset({"asyncpg", "psycopg", "psycopg2"})


BY_WEIGHT = (FATAL_UNREACHED, BLIP, UNREACHED, OVERLOAD_UNREACHED)
"""The rulings on connections: of several in one chain of errors, the first counts."""
CONFLICT = Ruling.blip(reached=False, answered=True)


class OnConflict(Rule):
    """Judges conflicts between transactions.

    >>> import sqlite3
    >>> busy = sqlite3.OperationalError("database is locked")
    >>> busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    >>> conflict.judge(Outcome(error=busy))
    Ruling(retry=True, reason='blip', hint=None, reached=False, safe=None, answered=True)
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        # the server rolled the transaction back, which is as good as never having seen it
        return CONFLICT if any(map(_is_conflict, _error_chain(outcome.error))) else None


class OnConnectionLost(Rule):
    """Judges refused and broken connections. TLS that can't work, such as an untrusted certificate, is fatal.

    >>> connection_lost.judge(Outcome(error=ConnectionRefusedError())).reached
    False
    >>> connection_lost.judge(Outcome(error=ConnectionResetError())).reached
    True
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        rulings = [_connection_ruling(error) for error in _error_chain(outcome.error)]
        return next((ruling for ruling in BY_WEIGHT if ruling in rulings), None)


conflict = OnConflict()
"""Retry conflicts: deadlocks, lock timeouts, serialization failures, a busy SQLite file. Nothing was committed, so a
policy with ``idempotent=False`` retries them as well.
"""

connection_lost = OnConnectionLost()
"""Retry connections that could not be made, and broken ones. Statements sent on a connection that broke may have been
committed, so a policy with ``idempotent=False`` retries only the others. TLS that can't work, such as a certificate
that is not trusted, is fatal. asyncpg's timeouts are Python's ``TimeoutError``, which may come from anywhere: name it
in `on` where it is to be retried.
"""


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    for _ in range(MAX_CHAIN):
        if error is None:
            return
        yield error
        orig = getattr(error, "orig", None)  # SQLAlchemy's name for the driver's error
        error = orig if isinstance(orig, BaseException) else error.__cause__


def _is_conflict(error: BaseException) -> bool:
    if _state(error) in CONFLICT_STATES:
        return True
    if _is_from_driver(error, MYSQL):
        return _number(error) in CONFLICT_NUMBERS
    code = getattr(error, "sqlite_errorcode", None)
    # the low byte of SQLite's code is its family: busy, also with an old snapshot or a recovery under way
    return isinstance(code, int) and (code & 0xFF == SQLITE_BUSY or code == SQLITE_LOCKED_SHAREDCACHE)


def _connection_ruling(error: BaseException) -> Ruling | None:
    """Return a ruling on an error of the connection, refused or broken; None for other errors."""
    if _is_tls_mismatch(error):
        return FATAL_UNREACHED
    if isinstance(error, ConnectionError) or classify(error) is UNREACHED:
        return classify(error)  # asyncpg passes errors of the socket through
    if _refused(error):
        return UNREACHED
    if _timed_out(error):
        return OVERLOAD_UNREACHED
    # SQLAlchemy's dialects know when a connection is unusable
    return BLIP if _lost(error) or getattr(error, "connection_invalidated", False) is True else None


def _is_tls_mismatch(error: BaseException) -> bool:
    """Return whether TLS can't work here, as another attempt would find again."""
    if isinstance(error, ConnectionError) and NO_TLS in str(error):
        return True
    origin = getattr(error, "original_exception", None)  # PyMySQL's name for the error that it made its own from
    return judge_network_error(origin if isinstance(origin, BaseException) else error) is FATAL_UNREACHED


def _refused(error: BaseException) -> bool:
    if _is_from_driver(error, MYSQL):
        return _number(error) in REFUSED_NUMBERS
    if _state(error) is not None or not _is_from_driver(error, POSTGRES):
        return _state(error) in REFUSED_STATES
    text = str(error)
    # libpq quotes the system's message in the locale, as Python does; a stopped server leaves no socket file
    return (
        any(known in text for known in REFUSED_TEXTS)
        or os.strerror(errno.ECONNREFUSED) in text
        or ("on socket" in text and os.strerror(errno.ENOENT) in text)
    )


def _timed_out(error: BaseException) -> bool:
    """Return whether libpq or psycopg gave up connecting."""
    return _state(error) is None and _is_from_driver(error, POSTGRES) and TIMED_OUT in str(error)


def _lost(error: BaseException) -> bool:
    if _is_from_driver(error, MYSQL):
        closed = type(error).__name__ == "InterfaceError" and _number(error) in CLOSED_ARGS
        return closed or _number(error) in LOST_NUMBERS or _lost_in_handshake(error)
    if _state(error) is not None or not _is_from_driver(error, POSTGRES):
        return _state(error) in LOST_STATES
    text = str(error)
    return any(known in text for known in LOST_TEXTS)


def _lost_in_handshake(error: BaseException) -> bool:
    """Return whether mysqlclient lost the connection while it agreed on TLS."""
    broken = (TLS_EOF, os.strerror(errno.ECONNRESET), os.strerror(errno.ETIMEDOUT))
    return _number(error) == TLS_NUMBER and any(known in str(error) for known in broken)


def _state(error: BaseException) -> str | None:
    """Return the SQLSTATE; psycopg2 calls it ``pgcode``."""
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    return None


def _number(error: BaseException) -> object:
    """Return MySQL's error number, which its drivers put first."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, (int, str)) else None


def _is_from_driver(error: BaseException, drivers: frozenset[str]) -> bool:
    return any(kind.__module__.partition(".")[0] in drivers for kind in type(error).__mro__)


# -- the open transaction


class OpenTransaction:
    """A block in whose transaction this context runs; `pool_id` identifies its database, if known.

    Tasks and threads started inside have a copy of the context, and see here when the block is over.
    """

    __slots__ = ("_over", "outer", "pool_id")

    def __init__(self, pool_id: object = None) -> None:
        self.pool_id = pool_id
        self.outer = open_transaction()
        self._over = False

    def __enter__(self) -> OpenTransaction:
        _running.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if _running.get() is self:  # otherwise it is left in another context than the one that entered it
            _running.set(self.outer)

    @property
    def over(self) -> bool:
        """Return whether its block has been left."""
        return self._over


_running: ContextVar[OpenTransaction | None] = ContextVar("abate_transaction", default=None)


def open_transaction() -> OpenTransaction | None:
    """Return the innermost transaction of this context that abate runs."""
    here = _running.get()
    while here is not None and here.over:
        here = here.outer
    return here


class Settings(TypedDict, total=False):
    """The settings of a `Policy` besides `max_attempts`; `on` adds to what is retried."""

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
    rng: RandomSource | None


def conflict_policy(max_attempts: int, settings: Settings) -> Policy:
    """Return a policy that retries conflicts, with full jitter from 50 ms, and nothing that may be committed."""
    given: dict[str, Any] = {"idempotent": False, "backoff": Backoff(base=0.05, cap=2.0), **settings}
    given["on"] = (conflict, *check_matchers("on", given.get("on", ())))
    return Policy(max_attempts=max_attempts, **given)


class retry_on_db_conflict:
    """Run a whole transaction again when the database reports a conflict.

    The decorated function (or coroutine function) is the whole transaction: it begins it, commits it, and leaves
    nothing open when it raises, as ``with connection:`` does. The settings are those of a `Policy`. `on` adds to what
    is retried, such as `connection_lost`; unless `idempotent` is True, only what was certainly not committed is
    repeated.

    **Nested**, the transaction belongs to the outer function: the inner one runs as if it were not decorated, and the
    outermost one retries from the beginning. That includes tasks and threads that share the context.

    >>> import sqlite3
    >>> attempts = []
    >>> @retry_on_db_conflict(max_attempts=5, backoff=[0.0])
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

    def __init__(self, max_attempts: int = 3, **settings: Unpack[Settings]) -> None:
        if callable(max_attempts):
            raise bare("abate.retry_on_db_conflict", "@abate.retry_on_db_conflict()")
        self.policy = conflict_policy(max_attempts, settings)

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
        refuse_generator(function)
        retried = self.policy(function)
        return (_arun if inspect.iscoroutinefunction(retried) else _run)(function, retried)


def refuse_generator(function: Any) -> None:
    """Raise an error for a generator function: it would be read after its transaction has ended."""
    if is_generator_function(function):
        raise TypeError(f"a transaction must end before its result is used: return a list, {function!r} is a generator")


def _run(function: Callable[P, T], retried: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if open_transaction() is not None:
            return function(*args, **kwargs)
        with OpenTransaction():
            result = retried(*args, **kwargs)
        return _await_in_transaction(result) if is_coroutine_object(result) else result  # type: ignore[return-value]

    return run


async def _await_in_transaction(coroutine: Any) -> Any:
    """Await the coroutine that a plain function has returned."""
    with OpenTransaction():
        return await coroutine


def _arun(function: Callable[..., Any], retried: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        if open_transaction() is not None:
            return await function(*args, **kwargs)
        with OpenTransaction():
            return await retried(*args, **kwargs)

    return arun
