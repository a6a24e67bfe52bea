"""A token bucket that a fleet shares: each process has a part of its rate, by what it wants.

The store hands out the parts so that together they are never more than the whole. Waiting is as in any bucket. Without
news from the store every process that was known last has an equal part. A fork's child starts its courier when it asks
for the first token; until the first news it has the part of a newcomer.
"""

from __future__ import annotations

from math import inf
from typing import NoReturn

from abate import forks
from abate.admit.bucket import Claim, Level, TokenBucket
from abate.clock import MACHINE
from abate.stores.fleet.courier import SOON, Courier
from abate.stores.fleet.offers import Demand, Share

LEAST = 0.1
"""Of an equal part: what those have who have none yet, as they come newly. A rate of 0 would be a wait without end."""


class FleetBucket(TokenBucket):
    """A `TokenBucket` whose rate is the fleet's; made by `Store.bucket`.

    >>> import abate
    >>> bucket = abate.open_store("memory:").bucket("mails", rate=100.0, burst=10)
    >>> bucket.try_acquire()
    True
    """

    __slots__ = ("__weakref__", "_asked", "_courier", "_fresh", "_members", "_new", "_part", "_since", "whole_rate")

    def __init__(self, courier: Courier, name: str, rate: float, burst: int = 1) -> None:
        super().__init__(rate, burst, name=name)
        self.whole_rate = self.rate
        self._courier = courier
        self._members = 1
        self._begin()
        forks.keep(self)
        courier.join(self)

    def _made_from(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _begin(self) -> None:
        self._asked = 0  # tokens, since the courier left
        self._since = MACHINE.now()
        self._part = 0.0
        self._fresh = -inf  # until when that is good
        self._new = True  # has nobody asked for tokens, and the courier not brought news?

    def after_fork(self) -> None:
        """In a child: a part of its own, when the courier brings it."""
        self._begin()

    def try_acquire(self, n: int = 1) -> bool:
        """Take `n` tokens if they are there now."""
        self._asked += n
        return super().try_acquire(n)

    def _claim(self, level: Level, n: int, timeout: float | None) -> Claim:
        self._asked += n
        return super()._claim(level, n, timeout)

    def _refill(self, level: Level, n: int) -> float:
        part, now = self._part, MACHINE.now()
        if now >= self._fresh:
            if self._new:
                # the first use in a child: siblings that don't know of each other would take an equal part each
                self._fresh = now + SOON
            else:
                part = 1.0 / self._members
            self._new = False
            self._courier.start()
        self.rate = self.whole_rate * max(part, LEAST / self._members)
        return super()._refill(level, n)

    def _ceiling(self, n: int) -> float:
        return max(float(n), self.burst * self.rate / self.whole_rate)

    def refusal(self) -> str:
        return f"more than {self.whole_rate:g} per second, of all processes together"

    # -- for the courier

    def offer(self, now: float) -> Demand:
        """How many tokens per second were asked for."""
        asked, self._asked = self._asked, 0
        elapsed, self._since = max(0.1, now - self._since), now
        return Demand(self.name, asked / elapsed)

    def take(self, answer: Share, until: float) -> None:
        """The part until the next journey."""
        self._part, self._members, self._fresh, self._new = answer.part, answer.members, until, False

    def unheard(self) -> None:
        """An equal part for each, from now on."""
        self._fresh, self._new = -inf, False

    closed = unheard
