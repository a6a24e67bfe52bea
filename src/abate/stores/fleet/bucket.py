"""A token bucket that a fleet shares: each process has a share of the rate, by its demand.

The store grants the shares so that they never add up to more than the whole. Waiting is as in any bucket. Without a
valid reply of the store each process has an equal share, by the last known number of members. A forked child starts its
sync when it asks for the first token; until the first reply it has the share of a new member.
"""

from __future__ import annotations

from math import inf
from typing import NoReturn

from abate import forks
from abate.admit.bucket import BucketState, Reservation, TokenBucket
from abate.clock import MACHINE
from abate.stores.fleet.background_sync import FIRST_REPLY_TIMEOUT, FleetSync
from abate.stores.fleet.sync_requests import BucketGrant, BucketRequest

NEWCOMER_SHARE = 0.1
"""The share of a new member, as a fraction of an equal share. With a rate of 0 it would wait forever."""


class FleetBucket(TokenBucket):
    """A `TokenBucket` whose rate is the fleet's; made by `Store.bucket`.

    >>> import abate
    >>> bucket = abate.open_store("memory:").bucket("mails", rate=100.0, burst=10)
    >>> bucket.try_acquire()
    True
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_fleet_sync",
        "_members",
        "_new",
        "_share",
        "_since",
        "_valid_until",
        "whole_rate",
    )

    def __init__(self, fleet_sync: FleetSync, name: str, rate: float, burst: int = 1) -> None:
        super().__init__(rate, burst, name=name)
        self.whole_rate = self.rate
        self._fleet_sync = fleet_sync
        self._members = 1
        self._reset()
        forks.register(self)
        fleet_sync.join(self)

    def _pickled_settings(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _reset(self) -> None:
        self._asked = 0  # tokens since the last request
        self._since = MACHINE.now()
        self._share = 0.0
        self._valid_until = -inf  # the instant until which the share is valid
        self._new = True  # no token asked for, and no reply yet

    def after_fork(self) -> None:
        """Start in the child without a share."""
        self._reset()

    def try_acquire(self, n: int = 1) -> bool:
        """Take `n` tokens if they are available now. Return whether it did."""
        self._asked += n
        return super().try_acquire(n)

    def _reserve(self, level: BucketState, n: int, timeout: float | None) -> Reservation:
        self._asked += n
        return super()._reserve(level, n, timeout)

    def _refill(self, level: BucketState, n: int) -> float:
        share, now = self._share, MACHINE.now()
        if now >= self._valid_until:
            if self._new:
                # the first use in a child: siblings that don't know of each other must not take an equal share each
                self._valid_until = now + FIRST_REPLY_TIMEOUT
            else:
                share = 1.0 / self._members
            self._new = False
            self._fleet_sync.start()
        self.rate = self.whole_rate * max(share, NEWCOMER_SHARE / self._members)
        return super()._refill(level, n)

    def _ceiling(self, n: int) -> float:
        return max(float(n), self.burst * self.rate / self.whole_rate)

    def refusal(self) -> str:
        return f"more than {self.whole_rate:g} per second in all processes together"

    # -- for the sync

    def request(self, now: float) -> BucketRequest:
        """Return how many tokens per second were asked for."""
        asked, self._asked = self._asked, 0
        elapsed, self._since = max(0.1, now - self._since), now
        return BucketRequest(self.name, asked / elapsed)

    def apply(self, reply: BucketGrant, until: float) -> None:
        """Use this share until the next sync."""
        self._share, self._members, self._valid_until, self._new = reply.share, reply.members, until, False

    def fall_back(self) -> None:
        """Use an equal share from now on."""
        self._valid_until, self._new = -inf, False

    on_close = fall_back
