"""The pool of a process's connections to PostgreSQL, which executes statements.

* At most `MAX_CONNECTIONS` execute statements, enough for a controller's loop, the fleet's sync and an add together.
  Connections not used for `MAX_IDLE` seconds are closed, so most processes have one or two. If all are in use, a
  statement waits. One more connection listens while a thread waits for a message (`listener`).
* A statement is one transaction and one round trip. It is sent once, since a server that closed the connection or is
  late may have executed it. It is sent again, once, in three cases: the connection was found dead before anything was
  sent; the server has rolled it back (a deadlock or a conflict), after a short pause that lets the other transaction
  finish; or it is `safe`, that is, idempotent.
* Failures raise `StoreError`. There are no other retries: callers have a backoff.
* A forked child opens its own connections, and leaves the parent's alone.
"""

from __future__ import annotations

import random
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from abate import forks
from abate.logs import Log
from abate.schedule.backoff import RandomSource
from abate.stores.errors import StoreError, StoreUnreachable
from abate.stores.postgres.address import Address
from abate.stores.postgres.error_texts import to_store_error
from abate.stores.postgres.schema import UnusableDatabase, migrate, with_schema
from abate.stores.postgres.session import ConnectFailed, ConnectionLost, Row, Session, SessionError, StatementFailed

log = Log("abate.stores")

MAX_CONNECTIONS = 4
MAX_IDLE = 30.0
NEVER = object()
"""A sentinel that is never in the queue of free slots."""
MIN_VERSION = 130000
"""The oldest supported server: 13."""
ROLLED_BACK = ("40P01", "40001")
"""A deadlock, a conflict: the server has rolled the statement back."""
ROLLBACK_PAUSE = 0.02
"""Seconds, give or take half, before a rolled-back statement is sent again."""
SCHEMA_DROPPED = ("3F000", "42P01", "42883", "42703")
"""No such schema, table, function or column: it was dropped after the migration."""
FAILED_OVER = ("25006", "57P01", "57P02", "57P03")
"""The server is read-only or shutting down: the address may lead to another server by now."""
POOLER_REFUSAL = "unsupported startup parameter"
"""The message of a pooler that can't pass on an option."""


class Pool:
    """Executes statements on pooled connections; any thread may use it."""

    def __init__(self, address: Address, required: bool = True, rng: RandomSource = random) -> None:
        self.address = address
        self._rng = rng
        self._limited = True
        self._ready = False
        self._closed = False
        self.after_fork()
        forks.register(self)
        try:
            self.run("SELECT 1", safe=True)  # report an unusable database now
        except StoreUnreachable as error:
            if required:
                raise
            log.warning("%s: the next operation tries again", error)

    def after_fork(self) -> None:
        """Start empty: the child does not use the parent's connections."""
        # no lock, but atomic steps: a signal handler may run a statement during another one
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(MAX_CONNECTIONS):
            self._free.put(None)
        self._idle: list[Session] = []  # dropping the parent's does not close them

    def run(self, statement: str, *params: str | None, safe: bool = False, limit: float | None = None) -> list[Row]:
        """Execute one statement and return its rows, within `limit` seconds; by default the timeout of the URL."""
        limit = min(self.address.timeout, limit or self.address.timeout)
        deadline = monotonic() + limit
        spelt = with_schema(statement, self.address.schema)
        try:
            try:
                return self._run(spelt, params, deadline)
            except ConnectionLost:
                if not safe:
                    raise
            except StatementFailed as failed:
                if failed.state not in ROLLED_BACK:
                    raise
                sleep(ROLLBACK_PAUSE * (0.5 + self._rng.random()))
            return self._run(spelt, params, deadline)
        except SessionError as error:
            raise to_store_error(error, self.address, limit) from None

    def _run(self, statement: str, params: tuple[str | None, ...], deadline: float) -> list[Row]:
        rows: list[Row] = []
        free = self._free  # a forked child gets a new one
        try:
            # an iterator takes a slot: see `abate.reentrant_locks`
            for _ in iter(partial(free.get, timeout=max(0.0, deadline - monotonic())), NEVER):
                try:
                    rows = self._run_on_one(statement, params, deadline)
                finally:
                    free.put(None)
                break
        except Empty:
            raise StoreError(
                f"all {MAX_CONNECTIONS} connections of this process to {self.address} are in use"
            ) from None
        return rows

    def _run_on_one(self, statement: str, params: tuple[str | None, ...], deadline: float) -> list[Row]:
        session = self._acquire(deadline)
        try:
            rows = session.run(statement, params, deadline)
        except StatementFailed as failed:
            if failed.state in SCHEMA_DROPPED:
                self._ready = False
            if failed.state in FAILED_OVER:
                session.close()
            else:
                self._release(session)
            raise
        except BaseException:
            session.close()
            raise
        self._release(session)  # another thread may use it from here on
        return rows

    # -- connections

    def _acquire(self, deadline: float) -> Session:
        """Return an idle connection that is alive, or a new one."""
        while True:
            if self._closed:
                raise StoreError(f"{self.address} is closed")
            session = _pop_or_none(self._idle)
            if session is None:
                session = self.connect(deadline)
            elif session.broken():
                session.close()
                continue
            if not self._ready:
                self._migrate(session, deadline)
            return session

    def connect(self, deadline: float) -> Session:
        """Open a connection."""
        try:
            return Session(self.address.conninfo(self._limited), deadline)
        except ConnectFailed as error:
            if POOLER_REFUSAL not in error.said or not self._limited:
                raise
            self._limited = False
            return Session(self.address.conninfo(self._limited), deadline)

    def _migrate(self, session: Session, deadline: float) -> None:
        """Create or migrate the tables for this version."""
        # this takes many round trips, but happens once: allow the full timeout of the URL
        limit = max(deadline - monotonic(), self.address.timeout)
        deadline = monotonic() + limit
        try:
            if session.version < MIN_VERSION:
                raise UnusableDatabase(
                    f"is PostgreSQL {session.version // 10000}: expected {MIN_VERSION // 10000} or newer"
                )
            migrate(partial(_on, session, deadline), self.address.schema)
        except UnusableDatabase as foreign:
            session.close()
            raise StoreError(f"{self.address} {foreign}") from None
        except SessionError as error:
            session.close()
            raise to_store_error(error, self.address, limit, preparing=True) from None
        except BaseException:
            session.close()
            raise
        self._ready = True

    def _release(self, session: Session) -> None:
        """Return a connection to the idle ones; close those not used for `MAX_IDLE` seconds."""
        self._idle.append(session)
        if self._closed:
            self.close()
        long_ago = monotonic() - MAX_IDLE
        for one in self._idle.copy():
            if one.used < long_ago:
                try:
                    self._idle.remove(one)
                except ValueError:
                    continue  # another thread has just taken it
                one.close()

    def close(self) -> None:
        """Close the connections; those in use are closed when their statement ends."""
        self._closed = True
        while (session := _pop_or_none(self._idle)) is not None:
            session.close()


def _pop_or_none(sessions: list[Session]) -> Session | None:
    """Remove and return the last connection; None if there is none."""
    try:
        return sessions.pop()
    except IndexError:
        return None


def _on(session: Session, deadline: float, statement: str, *params: str) -> list[Row]:
    return session.run(statement, params, deadline)
