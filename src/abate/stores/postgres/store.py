"""A store in PostgreSQL: its queues by name, and what a fleet shares."""

from __future__ import annotations

import json
from collections.abc import Sequence

from abate import clock as clocks
from abate.clock import Clock, MachineClock
from abate.stores.bells import Bells
from abate.stores.contract import Depth, Store
from abate.stores.fleet.offers import Answer, Offer
from abate.stores.input import LONGEST_BODY
from abate.stores.ledger import Terms
from abate.stores.postgres import trade
from abate.stores.postgres.address import Address
from abate.stores.postgres.bells import Ears
from abate.stores.postgres.letters import written
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.queue import PostgresQueue, depths

PROMPTLY = 1.0
"""Seconds for an exchange of what is shared: who waits for longer goes by its own limits."""

COUNTED = """
    SELECT coalesce(sum(deposits), 0), coalesce(sum(withdrawals), 0)
    FROM @.slot WHERE budget = $1 AND begins >= (SELECT @.since($2, @.instant($3)))
"""


class PostgresStore(Store):
    """Queues and budgets in one schema of a database."""

    def __init__(self, address: Address, clock: Clock | None, required: bool = True) -> None:
        super().__init__(str(address))
        self._clock = clock
        self.pool = Pool(address, required)
        self.bells = Bells(None)
        self.ears = Ears(self.pool, self.bells)

    @property
    def clock(self) -> Clock:
        """The clock by which is waited here."""
        return self._clock or clocks.current()

    def now(self) -> str | None:
        """The instant that a virtual clock says; None where PostgreSQL's own clock decides."""
        clock = self.clock
        return None if isinstance(clock, MachineClock) else repr(clock.wall())

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = LONGEST_BODY
    ) -> PostgresQueue:
        return PostgresQueue(self, name, lease, capacity, max_body)

    def queues(self) -> dict[str, Depth]:
        return depths(self.pool, self.now())

    def close(self) -> None:
        self.leave()
        self.pool.close()
        self.ears.close()
        self.bells.ring_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # -- what a fleet shares

    def balance(self, name: str, terms: Terms) -> float:
        window = repr(float(terms.window))
        ((deposits, withdrawals),) = self.pool.run(COUNTED, written(name), window, self.now(), safe=True)
        return terms.balance(int(deposits or 0), int(withdrawals or 0))

    def _exchange(self, name: str, terms: Terms, deposits: int, want: int, returned: int) -> int:
        ((granted,),) = self.pool.run(
            "SELECT @.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            written(name),
            *(str(value) for value in trade.units(terms).values()),
            str(deposits),
            str(returned),
            str(want),
            self.now(),
        )
        return int(granted or 0)

    def trade(self, member: str, offers: Sequence[Offer]) -> list[Answer]:
        told = json.dumps([trade.told(offer) for offer in offers])
        rows = self.pool.run(
            "SELECT * FROM @.trade($1, $2, $3, $4)", written(member), told, trade.NUMBERS, self.now(), limit=PROMPTLY
        )
        return [trade.answer(offer, row) for offer, row in zip(offers, rows, strict=True)]
