"""A store in SQLite: its queues by name, and the counts of its budgets."""

from __future__ import annotations

from sqlite3 import Connection

from abate import clock as clocks
from abate.admit.window import MOST
from abate.clock import Clock
from abate.stores.contract import Depth, Store
from abate.stores.ledger import Terms
from abate.stores.sqlite.bells import Bells
from abate.stores.sqlite.file import File
from abate.stores.sqlite.queue import SqliteQueue, depths


class SqliteStore(Store):
    """Queues and budgets in one file, or in memory."""

    def __init__(self, file: File, clock: Clock | None) -> None:
        self.file = file
        self._clock = clock
        self.bells = Bells(None if file.path is None else file.changed)

    @property
    def clock(self) -> Clock:
        """The clock that rules here."""
        return self._clock or clocks.current()

    def queue(self, name: str, *, lease: float = 30.0, capacity: int | None = None) -> SqliteQueue:
        return SqliteQueue(self, name, lease, capacity)

    def queues(self) -> dict[str, Depth]:
        return depths(self.file, self.clock.wall())

    def close(self) -> None:
        self.file.close()
        self.bells.ring_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file}>"

    # -- budgets

    def balance(self, name: str, terms: Terms) -> float:
        _, since, _ = terms.slot(self.clock.wall())
        ((deposits, withdrawals),) = self.file.read(COUNTED, (name, since))
        return terms.balance(deposits, withdrawals)

    def _exchange(self, name: str, terms: Terms, deposits: int, want: int, returned: int) -> int:
        with self.file.transaction() as db:
            now = self.clock.wall()
            begins, since, forgotten = terms.slot(now)
            # a slot that begins more than a window ahead was counted by a clock that has been set back since
            ahead = begins + terms.window
            db.execute("DELETE FROM slot WHERE forgotten <= ? OR (budget = ? AND begins > ?)", (now, name, ahead))
            if returned:
                _take_back(db, name, since, returned)
            paid, withdrawn = db.execute(COUNTED, (name, since)).fetchone()
            granted = terms.granted(paid + deposits, withdrawn, want)
            if deposits or granted:
                db.execute(COUNT, (name, begins, forgotten, min(deposits, MOST), min(granted, MOST)))
            return granted


COUNTED = """
    SELECT coalesce(sum(deposits), 0), coalesce(sum(withdrawals), 0) FROM slot WHERE budget = ? AND begins >= ?
"""
COUNT = """
    INSERT INTO slot (budget, begins, forgotten, deposits, withdrawals) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (budget, begins) DO UPDATE SET
        forgotten = max(forgotten, excluded.forgotten),
        deposits = deposits + excluded.deposits,
        withdrawals = withdrawals + excluded.withdrawals
"""


def _take_back(db: Connection, name: str, since: float, returned: int) -> None:
    """Forget the newest withdrawals, if there are so many."""
    slots = db.execute(
        "SELECT begins, withdrawals FROM slot WHERE budget = ? AND begins >= ? AND withdrawals ORDER BY begins DESC",
        (name, since),
    ).fetchall()
    for begins, withdrawals in slots:
        back = min(returned, withdrawals)
        db.execute(
            "UPDATE slot SET withdrawals = withdrawals - ? WHERE budget = ? AND begins = ?", (back, name, begins)
        )
        returned -= back
        if not returned:
            return
