"""A store in SQLite: queues by name, and the limits that a fleet shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from sqlite3 import Connection

from abate.clock import Clock, MachineClock
from abate.stores.budget import BudgetTerms
from abate.stores.encoding import DEFAULT_MAX_BODY
from abate.stores.errors import StoreError
from abate.stores.fleet.sync_requests import SyncReply, SyncRequest
from abate.stores.message_waits import Wakeups
from abate.stores.queue_contract import Depth
from abate.stores.sqlite import shared_limits
from abate.stores.sqlite.database import Database
from abate.stores.sqlite.file_checks import wal_path
from abate.stores.sqlite.file_watch import FileWatch
from abate.stores.sqlite.queue import SqliteQueue, depths
from abate.stores.store_contract import Store

CLEANUP_INTERVAL = 10.0
"""Seconds between two deletions of expired members."""


class SqliteStore(Store):
    """Queues and shared limits in one file, or in memory."""

    def __init__(self, file: Database, clock: Clock | None) -> None:
        super().__init__(str(file), clock)
        self.file = file
        self._last_cleanup = -inf
        if file.path is None:
            self.wakeups = Wakeups(None)
        else:
            self.wakeups = Wakeups(file.changed, partial(FileWatch, wal_path(file.path)))

    def now(self) -> float:
        """Return the instant of a virtual clock, or that of the file's own clock."""
        clock = self.clock
        return self.file.now() if isinstance(clock, MachineClock) else clock.wall()

    def messages(self) -> Database:
        """Return the database for operations on queues; a forked child has no queues in memory."""
        if self.file.inherited:
            raise StoreError(
                "the queues of 'memory:' belong to the process that opened the store, and this one was forked from "
                "it: open a store here, or share a file ('sqlite:///work.db')"
            )
        return self.file

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = DEFAULT_MAX_BODY
    ) -> SqliteQueue:
        return SqliteQueue(self, name, lease, capacity, max_body)

    def queues(self) -> dict[str, Depth]:
        return depths(self.messages(), self.now())

    def close(self) -> None:
        self.leave()
        self.file.close()
        self.wakeups.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file}>"

    # -- shared limits

    def balance(self, name: str, terms: BudgetTerms) -> float:
        _, since, _ = terms.slot(self.now())
        ((deposits, withdrawals),) = self.file.read(shared_limits.COUNTED, (name, since))
        return terms.balance(deposits, withdrawals)

    def _exchange(self, name: str, terms: BudgetTerms, deposits: int, want: int, returned: int) -> int:
        def exchange(db: Connection) -> int:
            now = self.now()
            paid, withdrawn = shared_limits.window_counts(db, now, name, terms, returned)
            granted = terms.granted(paid + deposits, withdrawn, want)
            shared_limits.add_counts(db, now, name, terms, deposits, granted)
            return granted

        return self.file.transaction(exchange)

    def sync_members(self, member: str, requests: Sequence[SyncRequest]) -> list[SyncReply]:
        def reply(db: Connection) -> list[SyncReply]:
            now = self.now()
            if abs(now - self._last_cleanup) >= CLEANUP_INTERVAL:
                self._last_cleanup = now
                shared_limits.delete_gone_members(db, now)
            return [shared_limits.reply(db, now, member, request) for request in requests]

        return self.file.transaction(reply)
