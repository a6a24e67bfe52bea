"""A store in PostgreSQL: queues by name, and the limits that a fleet shares."""

from __future__ import annotations

import json
from collections.abc import Sequence

from abate.clock import Clock, MachineClock
from abate.stores.budget import BudgetTerms
from abate.stores.encoding import DEFAULT_MAX_BODY
from abate.stores.fleet.sync_requests import SyncReply, SyncRequest
from abate.stores.message_waits import Wakeups
from abate.stores.postgres import sync_codec
from abate.stores.postgres.address import Address
from abate.stores.postgres.encoding import encode_text
from abate.stores.postgres.listener import Listener
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.queue import PostgresQueue, depths
from abate.stores.postgres.shared_limit_functions import VALID_COUNTS
from abate.stores.queue_contract import Depth
from abate.stores.store_contract import Store

SYNC_TIMEOUT = 1.0
"""Seconds for one sync of shared limits; a process that gets no reply in time applies local limits."""

COUNTED = f"""
    SELECT coalesce(sum(deposits), 0), coalesce(sum(withdrawals), 0)
    FROM @.slot WHERE budget = $1 AND begins >= (SELECT @.since($2, @.instant($3))) AND {VALID_COUNTS}
"""


class PostgresStore(Store):
    """Queues and shared limits in one schema of a database."""

    def __init__(self, address: Address, clock: Clock | None, required: bool = True) -> None:
        super().__init__(str(address), clock)
        self.pool = Pool(address, required)
        self.wakeups = Wakeups(None)
        self.listener = Listener(self.pool, self.wakeups)

    def now(self) -> str | None:
        """Return the instant of a virtual clock; None if the server's own clock applies."""
        clock = self.clock
        return None if isinstance(clock, MachineClock) else repr(clock.wall())

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = DEFAULT_MAX_BODY
    ) -> PostgresQueue:
        return PostgresQueue(self, name, lease, capacity, max_body)

    def queues(self) -> dict[str, Depth]:
        return depths(self.pool, self.now())

    def close(self) -> None:
        self.leave()
        self.pool.close()
        self.listener.close()
        self.wakeups.wake_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # -- shared limits

    def balance(self, name: str, terms: BudgetTerms) -> float:
        window = repr(float(terms.window))
        ((deposits, withdrawals),) = self.pool.run(COUNTED, encode_text(name), window, self.now(), safe=True)
        return terms.balance(int(deposits or 0), int(withdrawals or 0))

    def _exchange(self, name: str, terms: BudgetTerms, deposits: int, want: int, returned: int) -> int:
        ((granted,),) = self.pool.run(
            "SELECT @.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            encode_text(name),
            *(str(value) for value in sync_codec.units(terms).values()),
            str(deposits),
            str(returned),
            str(want),
            self.now(),
        )
        return int(granted or 0)

    def sync_members(self, member: str, requests: Sequence[SyncRequest]) -> list[SyncReply]:
        encoded = json.dumps([sync_codec.encode_request(request) for request in requests])
        rows = self.pool.run(
            "SELECT * FROM @.trade($1, $2, $3, $4)",
            encode_text(member),
            encoded,
            sync_codec.CONSTANTS,
            self.now(),
            limit=SYNC_TIMEOUT,
        )
        return [sync_codec.decode_reply(request, row) for request, row in zip(requests, rows, strict=True)]
