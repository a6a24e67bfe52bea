"""SQLAlchemy: run a whole transaction, commit it or roll it back, and run it again after a conflict."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from abate.clients.databases import OpenTransaction, Settings, conflict_policy, open_transaction, refuse_generator
from abate.errors import bare
from abate.redact import short_repr

__all__ = ["transaction"]

P = ParamSpec("P")
T = TypeVar("T")
Handle = TypeVar("Handle")
SyncHandle = TypeVar("SyncHandle", bound=Session)
AsyncHandle = TypeVar("AsyncHandle", bound=AsyncSession)

SYNC = (Engine, Connection, sessionmaker, Session, scoped_session)
ASYNC = (AsyncEngine, AsyncConnection, async_sessionmaker, AsyncSession)


class transaction(Generic[Handle]):
    """Runs functions inside a transaction of `source`, and runs them again after a conflict.

    The function's first argument is the connection or session; the caller passes the others. Before a repetition the
    transaction is rolled back explicitly: MySQL's lock wait timeout leaves it open, half done.

    `source` is an `Engine` or `Connection`, a `sessionmaker`, `Session` or `scoped_session`, or the asyncio form of one
    of the first four, for coroutine functions. The settings are those of `abate.retry_on_db_conflict`. A function with
    that decorator inside does not retry: this is the transaction, so this retries.

    Half of a transaction is never repeated: a connection or session that is already in a transaction is refused, and so
    is a transaction inside another one of the same engine, which would commit before the outer one.

    >>> import sqlalchemy as sa
    >>> engine = sa.create_engine("sqlite://")
    >>> @transaction(engine, max_attempts=5)
    ... def double(connection: sa.Connection, number: int) -> int:
    ...     return connection.scalar(sa.text("SELECT 2 * :number"), {"number": number})
    >>> double(21)
    42
    >>> engine.dispose()
    """

    __slots__ = ("policy", "source")

    @overload
    def __init__(
        self: transaction[Connection], source: Engine | Connection, max_attempts: int = 3, **settings: Unpack[Settings]
    ) -> None: ...
    @overload
    def __init__(
        self: transaction[AsyncConnection],
        source: AsyncEngine | AsyncConnection,
        max_attempts: int = 3,
        **settings: Unpack[Settings],
    ) -> None: ...
    @overload
    def __init__(
        self: transaction[SyncHandle],
        source: sessionmaker[SyncHandle] | scoped_session[SyncHandle] | SyncHandle,
        max_attempts: int = 3,
        **settings: Unpack[Settings],
    ) -> None: ...
    @overload
    def __init__(
        self: transaction[AsyncHandle],
        source: async_sessionmaker[AsyncHandle] | AsyncHandle,
        max_attempts: int = 3,
        **settings: Unpack[Settings],
    ) -> None: ...
    def __init__(self, source: Any, max_attempts: int = 3, **settings: Unpack[Settings]) -> None:
        if inspect.isfunction(source):
            raise bare("transaction", "@transaction(engine)")
        if not isinstance(source, (*SYNC, *ASYNC)):
            raise TypeError(f"source must be an engine, connection, sessionmaker or session, not {short_repr(source)}")
        self.source: Any = source
        self.policy = conflict_policy(max_attempts, settings)

    def __call__(self, function: Callable[Concatenate[Handle, P], T]) -> Callable[P, T]:
        """Decorate a function: it receives the connection or session as its first argument."""
        return self.policy(self._in_transaction(function))

    def call(self, function: Callable[Concatenate[Handle, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a transaction; for a coroutine function, await the result.

        >>> import sqlalchemy as sa
        >>> engine = sa.create_engine("sqlite://")
        >>> transaction(engine).call(sa.Connection.scalar, sa.text("SELECT 42"))
        42
        >>> engine.dispose()
        """
        whole: Callable[..., Any] = self._in_transaction(function)
        if isinstance(self.source, ASYNC):
            return self.policy.acall(whole, *args, **kwargs)  # type: ignore[return-value]
        return self.policy.call(whole, *args, **kwargs)  # type: ignore[no-any-return]

    def _in_transaction(self, function: Callable[Concatenate[Handle, P], T]) -> Callable[P, T]:
        """Return the function with its transaction around it: the part that is repeated."""
        asynchronous = isinstance(self.source, ASYNC)
        if not callable(function):
            raise TypeError(f"a transaction runs functions, not {short_repr(function)}")
        refuse_generator(function)
        if asynchronous is not inspect.iscoroutinefunction(function):
            needed = "a coroutine function" if asynchronous else "a plain function"
            raise TypeError(f"a transaction of {type(self.source).__name__} runs {needed}, not {short_repr(function)}")
        whole: Any = functools.wraps(function)(
            (_ain_transaction if asynchronous else _in_transaction)(self.source, function)
        )
        whole.__signature__ = _without_first(function)
        return whole  # type: ignore[no-any-return]


def _in_transaction(source: Any, function: Callable[..., Any]) -> Any:
    def whole(*args: Any, **kwargs: Any) -> Any:
        here = source() if isinstance(source, scoped_session) else source  # the session of this scope
        with _check_not_nested(here), _begin(here) as handle:
            return function(handle, *args, **kwargs)

    return whole


def _ain_transaction(source: Any, function: Callable[..., Any]) -> Any:
    async def whole(*args: Any, **kwargs: Any) -> Any:
        with _check_not_nested(source):
            async with _abegin(source) as handle:
                return await function(handle, *args, **kwargs)

    return whole


@contextmanager
def _begin(source: Any) -> Iterator[Any]:
    """Yield a connection or session in a transaction: committed at the end, rolled back on an error."""
    if isinstance(source, (Engine, sessionmaker)):
        with source.begin() as handle:
            _refuse_autocommit(_connection(handle))
            yield handle
    else:
        with source.begin():
            _refuse_autocommit(_connection(source))
            yield source


@asynccontextmanager
async def _abegin(source: Any) -> AsyncIterator[Any]:
    """The same for asyncio."""
    if isinstance(source, (AsyncEngine, async_sessionmaker)):
        async with source.begin() as handle:
            _refuse_autocommit(await _aconnection(handle))
            yield handle
    else:
        async with source.begin():
            _refuse_autocommit(await _aconnection(source))
            yield source


def _connection(handle: Connection | Session) -> Connection | None:
    if isinstance(handle, Connection):
        return handle
    try:
        return handle.connection()
    except UnboundExecutionError:  # a session for several engines: it will know which one when it has a statement
        return None


async def _aconnection(handle: AsyncConnection | AsyncSession) -> Connection | None:
    if isinstance(handle, AsyncConnection):
        return handle.sync_connection
    try:
        return (await handle.connection()).sync_connection
    except UnboundExecutionError:
        return None


def _refuse_autocommit(connection: Connection | None) -> None:
    # programs that write BEGIN themselves switch SQLite's driver to what looks like autocommit
    if connection is None or connection.dialect.name == "sqlite":
        return
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.detect_autocommit_setting(driver):
        raise RuntimeError(
            f"{connection.engine!r} commits every statement by itself (AUTOCOMMIT), so there is no transaction to"
            " repeat: use another isolation level"
        )


def _check_not_nested(source: Any) -> OpenTransaction:
    """The transaction about to be begun, if it is not part of another one."""
    if not isinstance(source, (Engine, AsyncEngine, sessionmaker, async_sessionmaker)) and source.in_transaction():
        raise RuntimeError(
            f"{source!r} is in a transaction already, and half of one must not be repeated: begin it here, or retry"
            " where it was begun"
        )
    pool_id, around = _pool_id(source), open_transaction()
    while around is not None:
        if around.pool_id is pool_id:
            raise RuntimeError(
                "a transaction of this engine is open around this one, and would be repeated without it: call the"
                " function with the outer transaction's connection, undecorated"
            )
        around = around.outer
    return OpenTransaction(pool_id)


def _pool_id(source: Any) -> object:
    """Return the identity of a source's engine: its pool, which engines with other options share."""
    if isinstance(source, (sessionmaker, async_sessionmaker)):
        bind = source.kw.get("bind")
    elif isinstance(source, (Session, AsyncSession)):
        bind = source.bind
    else:
        bind = source.engine
    if bind is None:
        return source
    engine = bind.engine
    return getattr(engine, "sync_engine", engine).pool


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"{function!r} must take the connection or session as its first argument")
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)
