"""A budget that several processes share: its counts are in a store, its terms are those of whoever asks.

The rules are those of `abate.Budget`: allowed = reserve * window + ratio * deposits in the window - withdrawals in the
window, in whole numbers, so that 0.6 is 0.6. What is counted is a fact, and shared; what it allows is worked out by
the terms of the one who asks. So two releases with different terms can run side by side under one name, and neither
has to be told of the other's.

Counts lie in slots, a fiftieth of a window each, on a grid of the store's clock; a slot is deleted when it has left
the longest window of those who counted in it, so a name takes constant room. Who only asks keeps no slot: a window that
is longer than those of all who counted sees what is still there.
"""

from __future__ import annotations

from math import floor
from typing import Protocol

from abate.admit.budget import MOST
from abate.admit.budget import Terms as Units
from abate.admit.window import SHORTEST, SLOTS
from abate.errors import number
from abate.values import Value


class Terms(Value):
    """What a budget allows: `ratio` of a retry for each deposit, and `reserve` of them per second.

    >>> Terms(ratio=0.5).granted(deposits=3, withdrawals=0, want=500)
    101
    """

    ratio: float = 0.2
    reserve: float = 10.0
    window: float = 10.0

    def checked(self) -> None:
        number("ratio", self.ratio, least=0, most=MOST)
        number("reserve", self.reserve, least=0, most=MOST)
        number("window", self.window, least=SHORTEST, most=MOST)

    def granted(self, deposits: int, withdrawals: int, want: int) -> int:
        """How many of `want` withdrawals the balance pays for."""
        units = self._units()
        return max(0, min(want, units.balance(deposits, withdrawals) // units.one))

    def balance(self, deposits: int, withdrawals: int) -> float:
        """How many withdrawals could be made; below 0 where what paid for them has left the window."""
        units = self._units()
        return units.balance(deposits, withdrawals) / units.one

    def slot(self, now: float) -> tuple[float, float, float]:
        """The slot of `now`: its first instant, that of the oldest slot that counts, and when it is forgotten."""
        width = self.window / SLOTS
        place = floor(now / width)
        return place * width, (place - SLOTS + 1) * width, (place + SLOTS + 1) * width

    def _units(self) -> Units:
        return Units.of(float(self.ratio), float(self.reserve * self.window))


class Counts(Protocol):
    """What a store can do for a budget, each in one transaction."""

    def exchange(self, name: str, terms: Terms, *, deposits: int = 0, want: int = 0, returned: int = 0) -> int:
        """Pay in, take back the newest withdrawals, and then withdraw up to `want`: how many were granted."""
        ...

    def balance(self, name: str, terms: Terms) -> float:
        """How many withdrawals could be made now."""
        ...


class StoreBudget:
    """A retry budget shared by all who open it by the same name; each call is one transaction of the store.

    >>> import abate.stores
    >>> store = abate.stores.open_store("memory:")
    >>> budget = store.ledger("nightly", ratio=0.5, reserve=0)
    >>> budget.deposit(); budget.deposit()
    >>> budget.balance(), budget.try_withdraw(), store.ledger("nightly", ratio=0.5, reserve=0).try_withdraw()
    (1.0, True, False)
    """

    __slots__ = ("_store", "name", "terms")

    def __init__(self, store: Counts, name: str, terms: Terms) -> None:
        self._store = store
        self.name = name
        self.terms = terms

    def deposit(self) -> None:
        """Earn `ratio` of a retry."""
        self._store.exchange(self.name, self.terms, deposits=1)

    def try_withdraw(self) -> bool:
        """Spend one retry, if the balance holds it."""
        return self._store.exchange(self.name, self.terms, want=1) == 1

    def refund(self) -> None:
        """Take the newest withdrawal back: its retry was not made."""
        self._store.exchange(self.name, self.terms, returned=1)

    def balance(self) -> float:
        """How many retries could be made now."""
        return self._store.balance(self.name, self.terms)

    def __repr__(self) -> str:
        return f"StoreBudget({self.name!r}, {self.terms!r})"
