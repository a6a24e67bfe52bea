"""SQLAlchemy: run a whole transaction, commit it or roll it back, and run it again after a conflict."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from abate.clients.databases import OpenTransaction, Settings, conflict_policy, open_transaction, refuse_generator
from abate.errors import bare
from abate.optional_dependencies import requires_extra
from abate.redact import short_repr

with requires_extra(by="abate.clients.sqlalchemy", extra="sqlalchemy"):
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import UnboundExecutionError
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

from abate.clients.sqlalchemy_reads import end_reads, watch

if TYPE_CHECKING:  # at runtime it needs greenlet, which programs without asyncio may lack
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

__all__ = ["transaction"]

P = ParamSpec("P")
T = TypeVar("T")
Handle = TypeVar("Handle")
SyncHandle = TypeVar("SyncHandle", bound=Session)
AsyncHandle = TypeVar("AsyncHandle", bound="AsyncSession")

SOURCES = (Engine, Connection, sessionmaker, Session, scoped_session)


class transaction(Generic[Handle]):
    """Runs functions inside a transaction of `source`, and runs them again after a conflict.

    The function's first argument is the connection or session; the caller passes the others. Before a repetition the
    transaction is rolled back explicitly: MySQL's lock wait timeout leaves it open, half done.

    `source` is an `Engine` or `Connection`, a `sessionmaker`, `Session` or `scoped_session`, or the asyncio form of one
    of the first four, for coroutine functions. The settings are those of `abate.retry_on_db_conflict`. A function with
    that decorator inside does not retry: this is the transaction, so this retries.

    Half of a transaction is never repeated. A session or connection that is already in a transaction is refused, unless
    SQLAlchemy began it by itself after `transaction(source)` was made, and it certainly has only read
    (`abate.clients.sqlalchemy_reads`): then it is rolled back first, and the function reads anew. A transaction inside
    another one of the same engine is refused as well: it would commit before the outer one.

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
        if not (_is_async(source) or isinstance(source, SOURCES)):
            raise TypeError(f"source must be an engine, connection, sessionmaker or session, not {short_repr(source)}")
        self.source: Any = source
        watch(_sync_form(source))
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
        if _is_async(self.source):
            return self.policy.acall(whole, *args, **kwargs)  # type: ignore[return-value]
        return self.policy.call(whole, *args, **kwargs)  # type: ignore[no-any-return]

    def _in_transaction(self, function: Callable[Concatenate[Handle, P], T]) -> Callable[P, T]:
        """Return the function with its transaction around it: the part that is repeated."""
        asynchronous = _is_async(self.source)
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


def _is_async(source: object) -> bool:
    """Return whether a source is one of SQLAlchemy's for asyncio; their module is not imported to find that out."""
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return False
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

    return isinstance(source, (AsyncEngine, AsyncConnection, async_sessionmaker, AsyncSession))


def _is_maker(source: Any) -> bool:
    """Return whether a source makes a new connection or session for each transaction."""
    return not hasattr(source, "in_transaction")


def _sync_form(source: Any) -> Any:
    """Return the session or connection that one for asyncio stands for; anything else as it is."""
    return getattr(source, "sync_session", None) or getattr(source, "sync_connection", None) or source


def _in_transaction(source: Any, function: Callable[..., Any]) -> Any:
    def whole(*args: Any, **kwargs: Any) -> Any:
        here = source() if isinstance(source, scoped_session) else source  # the session of this scope
        with _check_not_nested(here):
            if isinstance(here, (Connection, Session)):
                end_reads(here)
            with _begin(here) as handle:
                return function(handle, *args, **kwargs)

    return whole


def _ain_transaction(source: Any, function: Callable[..., Any]) -> Any:
    async def whole(*args: Any, **kwargs: Any) -> Any:
        with _check_not_nested(source):
            if not _is_maker(source) and source.in_transaction():
                await source.run_sync(end_reads)
            async with _abegin(source) as handle:
                return await function(handle, *args, **kwargs)

    return whole


@contextmanager
def _begin(source: Any) -> Iterator[Any]:
    """Yield a connection or session in a transaction: committed at the end, rolled back on an error."""
    if _is_maker(source):
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
    if _is_maker(source):
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


async def _aconnection(handle: Any) -> Connection | None:
    if not hasattr(handle, "sync_connection"):  # a session
        try:
            handle = await handle.connection()
        except UnboundExecutionError:
            return None
    connection: Connection | None = handle.sync_connection
    return connection


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
    """Return the transaction about to be begun, if it is not part of another one of `transaction`."""
    pool_id, around = _pool_id(source), open_transaction()
    while around is not None:
        if around.pool_id is pool_id:
            raise RuntimeError(
                "a transaction of this engine is open around this one, and a retry would repeat the inner one only:"
                " call the undecorated function with the outer transaction's connection or session"
            )
        around = around.outer
    return OpenTransaction(pool_id)


def _pool_id(source: Any) -> object:
    """Return the identity of a source's engine: its pool, which engines with other options share."""
    if hasattr(source, "kw"):  # a sessionmaker
        bind = source.kw.get("bind")
    else:
        bind = source.bind if hasattr(source, "bind") else getattr(source, "engine", source)
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
