"""The connections of one process to its store.

* At most `MOST` at once for statements, as many as a controller's loop, its courier and an add need together; those
  not used for `IDLE` seconds are closed, so most processes have one or two. Who comes when all are in use waits. One
  more listens, while somebody waits for a message (`bells`).
* A statement is a transaction of its own, and one round trip. It is sent once: whether a server that hung up, or is
  late, has done it can't be known. It is sent again, once, where that can't matter: a connection was found dead before
  anything was sent; the server says that it has undone it (a deadlock, a conflict), which takes a moment's pause, as
  the other one has to go first; or it is `safe`, so that twice is as good as once.
* Whatever fails is a `StoreError`. There are no retries beyond that: those who call have a backoff.
* A fork's child opens connections of its own, and leaves the parent's alone.
"""

from __future__ import annotations

import random
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from abate import forks
from abate.logs import Log
from abate.schedule.backoff import Uniform
from abate.stores.contract import StoreError, StoreUnreachable
from abate.stores.postgres.address import Address
from abate.stores.postgres.schema import Foreign, migrate, spelled
from abate.stores.postgres.session import Failed, Lost, Row, Session, Trouble, Unreachable
from abate.stores.postgres.words import explained

log = Log("abate.stores")

MOST = 4
IDLE = 30.0
NEVER = object()
"""What nobody takes out of the places that are free."""
OLDEST = 130000
"""The oldest server: 13."""
UNDONE = ("40P01", "40001")
"""A deadlock, a conflict: the server has undone the statement."""
AFTER_YOU = 0.02
"""Seconds, give or take a half, for which the other one of a deadlock is let go first."""
GONE = ("3F000", "42P01", "42883", "42703")
"""There is no such schema, table, function or column: somebody has dropped them since."""
ELSEWHERE = ("25006", "57P01", "57P02", "57P03")
"""This server can't be written to, or is about to end: another one may answer at this address by now."""
POOLER = "unsupported startup parameter"
"""What a pooler says to options that it can't pass on."""


class Pool:
    """Runs statements; any thread may."""

    def __init__(self, address: Address, required: bool = True, rng: Uniform = random) -> None:
        self.address = address
        self._rng = rng
        self._limited = True
        self._ready = False
        self._closed = False
        self.after_fork()
        forks.keep(self)
        try:
            self.run("SELECT 1", safe=True)  # so what is wrong with the database is said now
        except StoreUnreachable as error:
            if required:
                raise
            log.warning("%s: it is asked again when it is needed", error)

    def after_fork(self) -> None:
        """In the child: nothing is in use, and nothing of the parent's is touched."""
        # no lock: each step is atomic, as a signal handler may run a statement in the middle of another
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(MOST):
            self._free.put(None)
        self._idle: list[Session] = []  # libpq closes none that another process has opened

    def run(self, statement: str, *params: str | None, safe: bool = False, limit: float | None = None) -> list[Row]:
        """The rows of one statement, within `limit` seconds, or as many as the URL says."""
        limit = min(self.address.timeout, limit or self.address.timeout)
        deadline = monotonic() + limit
        spelt = spelled(statement, self.address.schema)
        try:
            try:
                return self._run(spelt, params, deadline)
            except Lost:
                if not safe:
                    raise
            except Failed as failed:
                if failed.state not in UNDONE:
                    raise
                sleep(AFTER_YOU * (0.5 + self._rng.random()))
            return self._run(spelt, params, deadline)
        except Trouble as trouble:
            raise explained(trouble, self.address, limit) from None

    def _run(self, statement: str, params: tuple[str | None, ...], deadline: float) -> list[Row]:
        rows: list[Row] = []
        free = self._free  # a fork's child has one of its own
        try:
            # an iterator takes a place, and nothing comes before giving it back: a signal handler that raises may come
            # between any two steps but these
            for _ in iter(partial(free.get, timeout=max(0.0, deadline - monotonic())), NEVER):
                try:
                    rows = self._run_on_one(statement, params, deadline)
                finally:
                    free.put(None)
                break
        except Empty:
            raise StoreError(f"all {MOST} connections of this process to {self.address} are in use") from None
        return rows

    def _run_on_one(self, statement: str, params: tuple[str | None, ...], deadline: float) -> list[Row]:
        session = self._session(deadline)
        try:
            rows = session.run(statement, params, deadline)
        except Failed as failed:
            if failed.state in GONE:
                self._ready = False
            if failed.state in ELSEWHERE:
                session.close()
            else:
                self._put(session)
            raise
        except BaseException:
            session.close()
            raise
        self._put(session)  # from here on it may be in the hands of another thread
        return rows

    # -- connections

    def _session(self, deadline: float) -> Session:
        """One that is idle and alive, or a new one."""
        while True:
            if self._closed:
                raise StoreError(f"{self.address} is closed")
            session = _popped(self._idle)
            if session is None:
                session = self.connect(deadline)
            elif session.broken():
                session.close()
                continue
            if not self._ready:
                self._prepare(session, deadline)
            return session

    def connect(self, deadline: float) -> Session:
        """A new connection."""
        try:
            return Session(self.address.conninfo(self._limited), deadline)
        except Unreachable as trouble:
            if POOLER not in trouble.said or not self._limited:
                raise
            self._limited = False
            return Session(self.address.conninfo(self._limited), deadline)

    def _prepare(self, session: Session, deadline: float) -> None:
        """See to it that there are the tables that this version needs."""
        # making the tables takes many round trips, and is done once: it has all the time that the URL gives
        limit = max(deadline - monotonic(), self.address.timeout)
        deadline = monotonic() + limit
        try:
            if session.version < OLDEST:
                raise Foreign(f"is PostgreSQL {session.version // 10000}: expected {OLDEST // 10000} or newer")
            migrate(partial(_on, session, deadline), self.address.schema)
        except Foreign as foreign:
            session.close()
            raise StoreError(f"{self.address} {foreign}") from None
        except Trouble as trouble:
            session.close()
            raise explained(trouble, self.address, limit, preparing=True) from None
        except BaseException:
            session.close()
            raise
        self._ready = True

    def _put(self, session: Session) -> None:
        """Keep a connection for the next one; close those that nobody has needed for long."""
        self._idle.append(session)
        if self._closed:
            self.close()
        long_ago = monotonic() - IDLE
        for one in self._idle.copy():
            if one.used < long_ago:
                try:
                    self._idle.remove(one)
                except ValueError:
                    continue  # it was taken just now
                one.close()

    def close(self) -> None:
        """Close the connections; those in use are closed when their statement has ended."""
        self._closed = True
        while (session := _popped(self._idle)) is not None:
            session.close()


def _popped(sessions: list[Session]) -> Session | None:
    """Take out the last of some connections; None where there is none."""
    try:
        return sessions.pop()
    except IndexError:
        return None


def _on(session: Session, deadline: float, statement: str, *params: str) -> list[Row]:
    return session.run(statement, params, deadline)
