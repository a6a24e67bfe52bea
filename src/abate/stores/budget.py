"""A retry budget whose counts are in a store, and the terms that a caller applies to them.

The rules are those of `abate.Budget`: allowed = reserve * window + ratio * deposits in the window - withdrawals in the
window, computed in whole numbers, so that a ratio of 0.6 is exact. Processes share the counts, and each caller applies
its own terms. So two releases with different terms can run side by side under one name.

Counts are kept in slots of a fiftieth of a window, by the store's clock. A slot is deleted when it has left the longest
window of its writers, so a name takes constant space. A reader with a longer window sees the remaining slots.
"""

from __future__ import annotations

from math import floor
from typing import Protocol

from abate.admit.budget import MAX_SETTING
from abate.admit.budget_units import Units
from abate.admit.sliding_window import MIN_WINDOW, SLOTS
from abate.errors import number
from abate.frozen import Frozen


class BudgetTerms(Frozen):
    """What a budget allows: `ratio` of a retry for each deposit, and `reserve` retries per second.

    >>> BudgetTerms(ratio=0.5).granted(deposits=3, withdrawals=0, want=500)
    101
    """

    ratio: float = 0.2
    reserve: float = 10.0
    window: float = 10.0

    def validate(self) -> None:
        number("ratio", self.ratio, least=0, most=MAX_SETTING)
        number("reserve", self.reserve, least=0, most=MAX_SETTING)
        number("window", self.window, least=MIN_WINDOW, most=MAX_SETTING)

    def granted(self, deposits: int, withdrawals: int, want: int) -> int:
        """Return how many of `want` withdrawals the balance allows."""
        units = self._units()
        return max(0, min(want, units.balance(deposits, withdrawals) // units.one))

    def balance(self, deposits: int, withdrawals: int) -> float:
        """Return how many withdrawals are allowed; below 0 if deposits have left the window before withdrawals."""
        units = self._units()
        return units.balance(deposits, withdrawals) / units.one

    def slot(self, now: float) -> tuple[float, float, float]:
        """Return the start of the slot of `now`, the start of the oldest slot in the window, and the first's expiry."""
        width = self.window / SLOTS
        place = floor(now / width)
        return place * width, (place - SLOTS + 1) * width, (place + SLOTS + 1) * width

    def _units(self) -> Units:
        return Units.of(float(self.ratio), float(self.reserve * self.window))


class BudgetStore(Protocol):
    """The operations that a budget needs from a store, one transaction each."""

    def exchange(self, name: str, terms: BudgetTerms, *, deposits: int = 0, want: int = 0, returned: int = 0) -> int:
        """Deposit, take back the newest withdrawals, and withdraw up to `want`. Return how many were granted."""
        ...

    def balance(self, name: str, terms: BudgetTerms) -> float:
        """Return how many withdrawals are allowed now."""
        ...


class StoreBudget:
    """A retry budget shared by all processes that open its name; each operation is one transaction of the store.

    >>> import abate.stores
    >>> store = abate.stores.open_store("memory:")
    >>> budget = store.ledger("nightly", ratio=0.5, reserve=0)
    >>> budget.deposit(); budget.deposit()
    >>> budget.balance(), budget.try_withdraw(), store.ledger("nightly", ratio=0.5, reserve=0).try_withdraw()
    (1.0, True, False)
    """

    __slots__ = ("_store", "name", "terms")

    def __init__(self, store: BudgetStore, name: str, terms: BudgetTerms) -> None:
        self._store = store
        self.name = name
        self.terms = terms

    def deposit(self) -> None:
        """Earn `ratio` of a retry."""
        self._store.exchange(self.name, self.terms, deposits=1)

    def try_withdraw(self) -> bool:
        """Spend one retry, if the balance allows it."""
        return self._store.exchange(self.name, self.terms, want=1) == 1

    def refund(self) -> None:
        """Refund the newest withdrawal, because its retry was not sent."""
        self._store.exchange(self.name, self.terms, returned=1)

    def balance(self) -> float:
        """Return how many retries are allowed now."""
        return self._store.balance(self.name, self.terms)

    def __repr__(self) -> str:
        return f"StoreBudget({self.name!r}, {self.terms!r})"
