"""One connection to PostgreSQL, with a deadline for every operation.

A server that hangs keeps its sockets open, so the driver would wait for it forever. Here every wait ends at a deadline
by this process's clock, also while connecting. This needs `psycopg.pq` instead of a cursor. A connection that timed
out, was lost, or was interrupted during a statement is closed and never used again.
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
"""A selector without a file descriptor of its own, since every connection has a selector."""

Row: TypeAlias = tuple[bytes | None, ...]


class SessionError(Exception):
    """An error of a connection; `said` is the message of PostgreSQL or libpq."""

    def __init__(self, said: str = "") -> None:
        super().__init__(said)
        self.said = " ".join(said.split())


class ConnectFailed(SessionError):
    """The connection could not be established."""


class TimedOut(SessionError):
    """The deadline has passed; the server may or may not have executed the statement."""


class ConnectionLost(SessionError):
    """The connection was lost; the server may or may not have executed the statement."""


class StatementFailed(SessionError):
    """The server refused or rolled back a statement; `state` is the SQLSTATE."""

    def __init__(self, state: str, said: str) -> None:
        super().__init__(said)
        self.state = state


class Session:
    """A connection, established on creation; for one thread at a time."""

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
        """Return the version of the server: 130004 is 13.4."""
        return self._db.server_version

    @property
    def process(self) -> int:
        """Return the id of the server process, as reported at connect; a pooler reports another one."""
        return self._db.backend_pid

    def _connect(self, deadline: float) -> None:
        while True:
            if self._db.status == pq.ConnStatus.BAD:
                raise ConnectFailed(self._db.get_error_message())
            match self._db.connect_poll():
                case pq.PollingStatus.OK:
                    return
                case pq.PollingStatus.FAILED:
                    raise ConnectFailed(self._db.get_error_message())
                case pq.PollingStatus.READING:
                    event = READ
                case _:
                    event = WRITE
            # the socket may change: libpq tries the addresses of a host in turn
            self._selector.register(self._db.socket, event)
            ready = self._selector.select(max(0.0, deadline - monotonic()))
            self._selector.unregister(self._db.socket)
            if not ready and monotonic() >= deadline:
                raise TimedOut

    # -- statements

    def run(self, statement: str, params: Sequence[str | None], deadline: float) -> list[Row]:
        """Execute one statement and return its rows; it is its own transaction unless one has begun."""
        values = [None if param is None else param.encode() for param in params]
        try:
            self._db.send_query_params(statement.encode(), values)
            self._flush(deadline)
            return self._rows(deadline)
        except psycopg.Error as error:
            raise ConnectionLost(str(error)) from None
        finally:
            self.used = monotonic()

    def _flush(self, deadline: float) -> None:
        while self._db.flush():
            self._selector.modify(self._db.socket, READ | WRITE)
            try:
                # read while writing: the server may block on its reply before it has read the whole statement
                if self._wait(deadline) & READ:
                    self._db.consume_input()
            finally:
                self._selector.modify(self._db.socket, READ)

    def _rows(self, deadline: float) -> list[Row]:
        rows: list[Row] = []
        failed: StatementFailed | None = None
        while True:
            while self._db.is_busy():
                self._wait(deadline)
                self._db.consume_input()
            result = self._db.get_result()
            if result is None:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                # the other fields of the error may contain keys and bodies
                state, said = map(result.error_field, (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY))
                failed = StatementFailed((state or b"").decode(), (said or b"").decode(errors="replace"))
            else:
                columns = range(result.nfields)
                rows = [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]
        if self._db.status == pq.ConnStatus.BAD:
            raise ConnectionLost(failed.said if failed else self._db.get_error_message())
        if failed is not None:
            raise failed
        return rows

    def _wait(self, deadline: float) -> int:
        ready = self._selector.select(max(0.0, deadline - monotonic()))
        if not ready and monotonic() >= deadline:
            raise TimedOut
        return ready[0][1] if ready else 0

    # -- between statements

    def broken(self) -> bool:
        """Return whether the server has closed the connection since the last statement."""
        try:
            while self._selector.select(0.0):
                self._db.consume_input()
                if self._db.status == pq.ConnStatus.BAD:
                    return True
        except psycopg.Error:
            return True
        return False

    def notifications(self) -> list[str]:
        """Return the payloads of the notifications since the last call."""
        if self.broken():
            raise ConnectionLost
        found = []
        while (notice := self._db.notifies()) is not None:
            found.append(notice.extra.decode())
        return found

    def fileno(self) -> int:
        """Return the socket, to wait for notifications."""
        return self._db.socket

    def close(self) -> None:
        """Close the connection."""
        self._selector.close()
        self._db.finish()
