"""A store in SQLite: its queues by name, and the counts of its budgets."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from sqlite3 import Connection

from abate import clock as clocks
from abate.clock import Clock, MachineClock
from abate.stores.bells import Bells
from abate.stores.contract import Depth, Store, StoreError
from abate.stores.fleet.offers import Answer, Offer
from abate.stores.input import LONGEST_BODY
from abate.stores.ledger import Terms
from abate.stores.sqlite import trade
from abate.stores.sqlite.file import File
from abate.stores.sqlite.queue import SqliteQueue, depths

SWEEP = 10.0
"""Seconds between two looks for members who are gone from all that is shared."""


class SqliteStore(Store):
    """Queues and budgets in one file, or in memory."""

    def __init__(self, file: File, clock: Clock | None) -> None:
        super().__init__(str(file))
        self.file = file
        self._clock = clock
        self._swept = -inf
        self.bells = Bells(None if file.path is None else file.changed)

    @property
    def clock(self) -> Clock:
        """The clock that rules here."""
        return self._clock or clocks.current()

    def now(self) -> float:
        """The instant that counts here: the file's, unless a virtual clock rules."""
        clock = self.clock
        return self.file.now() if isinstance(clock, MachineClock) else clock.wall()

    def messages(self) -> File:
        """The file, for what has to do with messages; in memory, those of a parent are not in its children."""
        if self.file.inherited:
            raise StoreError(
                "the queues of 'memory:' belong to the process that opened the store, and this one was forked from "
                "it: open a store here, or share a file ('sqlite:///work.db')"
            )
        return self.file

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = LONGEST_BODY
    ) -> SqliteQueue:
        return SqliteQueue(self, name, lease, capacity, max_body)

    def queues(self) -> dict[str, Depth]:
        return depths(self.messages(), self.now())

    def close(self) -> None:
        self.leave()
        self.file.close()
        self.bells.ring_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file}>"

    # -- what a fleet shares

    def balance(self, name: str, terms: Terms) -> float:
        _, since, _ = terms.slot(self.now())
        ((deposits, withdrawals),) = self.file.read(trade.COUNTED, (name, since))
        return terms.balance(deposits, withdrawals)

    def _exchange(self, name: str, terms: Terms, deposits: int, want: int, returned: int) -> int:
        def exchange(db: Connection) -> int:
            now = self.now()
            paid, withdrawn = trade.counted(db, now, name, terms, returned)
            granted = terms.granted(paid + deposits, withdrawn, want)
            trade.count(db, now, name, terms, deposits, granted)
            return granted

        return self.file.transaction(exchange)

    def trade(self, member: str, offers: Sequence[Offer]) -> list[Answer]:
        def answer(db: Connection) -> list[Answer]:
            now = self.now()
            if abs(now - self._swept) >= SWEEP:
                self._swept = now
                trade.sweep(db, now)
            return [trade.answer(db, now, member, offer) for offer in offers]

        return self.file.transaction(answer)
