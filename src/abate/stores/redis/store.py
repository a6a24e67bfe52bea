"""A store in Redis: its queues by name, and what a fleet shares."""

from __future__ import annotations

from collections.abc import Sequence

from abate import clock as clocks
from abate.clock import Clock, MachineClock
from abate.stores.contract import Depth, Store, StoreError
from abate.stores.fleet.offers import Answer, Offer
from abate.stores.input import LONGEST_BODY
from abate.stores.ledger import Terms
from abate.stores.redis import scripts, trade
from abate.stores.redis.names import Names
from abate.stores.redis.queue import RedisQueue, counted
from abate.stores.redis.scripts import BATCH
from abate.stores.redis.server import Server


class RedisStore(Store):
    """Queues and budgets in a Redis, or in a cluster of them."""

    def __init__(self, server: Server, clock: Clock | None) -> None:
        super().__init__(server.address.name)
        self.server = server
        self.names = Names(server.address.prefix, server.address.cluster)
        self._clock = clock
        self._enlisted: set[str] = set()

    @property
    def clock(self) -> Clock:
        """The clock by which one waits here."""
        return self._clock or clocks.current()

    def now(self) -> str:
        """The instant that a script is told: none on the machine's clock, as the server's own decides then."""
        clock = self.clock
        return "" if isinstance(clock, MachineClock) else repr(float(clock.wall()))

    def queue(
        self, name: str, *, lease: float = 30.0, capacity: int | None = None, max_body: int = LONGEST_BODY
    ) -> RedisQueue:
        return RedisQueue(self, name, lease, capacity, max_body)

    def enlist(self, name: str) -> None:
        """In a cluster, where a queue's script can't do it: write down the queue's name, once per process."""
        if self.server.address.cluster and name not in self._enlisted:
            self.server.command("SADD", self.names.queues, name)
            self._enlisted.add(name)

    def queues(self) -> dict[str, Depth]:
        # what is no UTF-8 was added by another program, and is the name of no queue
        listed = self.server.command("SMEMBERS", self.names.queues)
        names = sorted(name for found in listed if (name := found.decode(errors="ignore")).encode() == found)
        depths: dict[str, Depth] = {}
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            calls = [(scripts.DEPTH, self.names.of_queue(name), (self.now(),)) for name in some]
            answers = self.server.calls(calls, repeatable=True)
            depths.update(zip(some, map(counted, answers), strict=True))
        return depths

    def close(self) -> None:
        self.leave()
        self.server.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # -- what a fleet shares

    def balance(self, name: str, terms: Terms) -> float:
        keys, args = self.names.of_budget(name)[:1], (self.now(), *trade.terms_told(terms))
        deposits, withdrawals = self.server.call(scripts.BALANCE, keys, args, repeatable=True)
        return terms.balance(int(deposits), int(withdrawals))

    def _exchange(self, name: str, terms: Terms, deposits: int, want: int, returned: int) -> int:
        counts = trade.counts_told(deposits, want, returned)
        args = (self.now(), *trade.terms_told(terms), *counts)
        return int(self.server.call(scripts.EXCHANGE, self.names.of_budget(name)[:1], args))

    def trade(self, member: str, offers: Sequence[Offer]) -> list[Answer | StoreError]:
        calls = [trade.told(self.names, self.now(), member, offer) for offer in offers]
        answers = self.server.calls(calls, "trade", apart=True)
        return [
            answer if isinstance(answer, StoreError) else trade.heard(offer, answer)
            for offer, answer in zip(offers, answers, strict=True)
        ]
