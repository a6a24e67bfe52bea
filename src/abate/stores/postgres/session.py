"""One connection to PostgreSQL, on which nothing takes longer than it is allowed to.

A server that stands still keeps its sockets open, so the driver would wait for it for ever: here every wait, while
connecting too, has an end by this process's clock. That is why libpq is driven by `psycopg.pq` and not by a cursor. A
connection that was too late, or lost, or broken off in the middle is closed, and never used again.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from time import monotonic
from typing import TypeAlias

import psycopg
from psycopg import pq

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
SELECTOR = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Without a file of its own, as every connection has one."""

Row: TypeAlias = tuple[bytes | None, ...]


class Trouble(Exception):
    """What goes wrong on a connection; `said` is what PostgreSQL or libpq says of it."""

    def __init__(self, said: str = "") -> None:
        super().__init__(said)
        self.said = " ".join(said.split())


class Unreachable(Trouble):
    """No connection could be made."""


class Late(Trouble):
    """The time is up: it is not known whether anything was done."""


class Lost(Trouble):
    """The connection was lost: it is not known whether anything was done."""


class Failed(Trouble):
    """The server refused a statement, and has done nothing; `state` is its SQLSTATE."""

    def __init__(self, state: str, said: str) -> None:
        super().__init__(said)
        self.state = state


class Session:
    """A connection, made at once; for one thread at a time."""

    def __init__(self, conninfo: bytes, deadline: float) -> None:
        self._selector = SELECTOR()
        self.used = monotonic()
        self._db = pq.PGconn.connect_start(conninfo)
        try:
            self._connect(deadline)
        except BaseException:
            self.close()
            raise
        self._db.nonblocking = 1
        self._selector.register(self._db.socket, READ)

    @property
    def version(self) -> int:
        """Of the server: 130004 is 13.4."""
        return self._db.server_version

    @property
    def process(self) -> int:
        """The server's process behind this connection, as whoever answered at first says."""
        return self._db.backend_pid

    def _connect(self, deadline: float) -> None:
        while True:
            if self._db.status == pq.ConnStatus.BAD:
                raise Unreachable(self._db.get_error_message())
            match self._db.connect_poll():
                case pq.PollingStatus.OK:
                    return
                case pq.PollingStatus.FAILED:
                    raise Unreachable(self._db.get_error_message())
                case pq.PollingStatus.READING:
                    event = READ
                case _:
                    event = WRITE
            # it may be another socket each time: libpq goes through the addresses of a host
            self._selector.register(self._db.socket, event)
            ready = self._selector.select(max(0.0, deadline - monotonic()))
            self._selector.unregister(self._db.socket)
            if not ready and monotonic() >= deadline:
                raise Late

    # -- statements

    def run(self, statement: str, params: Sequence[str | None], deadline: float) -> list[Row]:
        """The rows of one statement, which is a transaction of its own unless one has begun."""
        values = [None if param is None else param.encode() for param in params]
        try:
            self._db.send_query_params(statement.encode(), values)
            self._flush(deadline)
            return self._rows(deadline)
        except psycopg.Error as error:
            raise Lost(str(error)) from None
        finally:
            self.used = monotonic()

    def _flush(self, deadline: float) -> None:
        while self._db.flush():
            self._selector.modify(self._db.socket, READ | WRITE)
            try:
                # a server that answers before it has read everything must not be kept waiting
                if self._wait(deadline) & READ:
                    self._db.consume_input()
            finally:
                self._selector.modify(self._db.socket, READ)

    def _rows(self, deadline: float) -> list[Row]:
        rows: list[Row] = []
        failed: Failed | None = None
        while True:
            while self._db.is_busy():
                self._wait(deadline)
                self._db.consume_input()
            result = self._db.get_result()
            if result is None:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                # the rest of what it says may hold keys and bodies
                state, said = map(result.error_field, (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY))
                failed = Failed((state or b"").decode(), (said or b"").decode(errors="replace"))
            else:
                columns = range(result.nfields)
                rows = [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]
        if self._db.status == pq.ConnStatus.BAD:
            raise Lost(failed.said if failed else self._db.get_error_message())
        if failed is not None:
            raise failed
        return rows

    def _wait(self, deadline: float) -> int:
        ready = self._selector.select(max(0.0, deadline - monotonic()))
        if not ready and monotonic() >= deadline:
            raise Late
        return ready[0][1] if ready else 0

    # -- between statements

    def broken(self) -> bool:
        """Has the server hung up since the last statement?"""
        try:
            while self._selector.select(0.0):
                self._db.consume_input()
                if self._db.status == pq.ConnStatus.BAD:
                    return True
        except psycopg.Error:
            return True
        return False

    def notifications(self) -> list[str]:
        """What was notified of since the last time."""
        if self.broken():
            raise Lost
        found = []
        while (notice := self._db.notifies()) is not None:
            found.append(notice.extra.decode())
        return found

    def fileno(self) -> int:
        """The socket, for who waits for notifications."""
        return self._db.socket

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        self._db.finish()
