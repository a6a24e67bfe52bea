"""The retry budget: retries in proportion to what succeeds, and a small reserve for quiet times.

The rules (Finagle's, funded by successes unless told otherwise):

* allowed = reserve * window + ratio * deposits in the window - withdrawals in the window; a withdrawal needs 1;
* deposits and withdrawals are forgotten with their slot of the window (see `abate.admit.window`);
* arithmetic is in whole numbers, so a ratio of 0.6 is 0.6 however many deposits there are;
* neither a deposit nor a withdrawal that the balance can pay for takes a lock: it draws a number, which is atomic.
  The clock is looked at for each deposit while they are rare, and about four times per slot when they come in
  hundreds; when such a stream stops short, at most `SKIP` deposits count as that much older.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from threading import Lock
from typing import Literal

from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.admit.window import SHORTEST, Window
from abate.clock import Clock, switch
from abate.errors import choice, number

FundedBy = Literal["success", "request"]
FINEST = 10**6
"""Ratio and reserve are taken as the nearest fraction with no larger denominator."""
SKIP = 64


class Ledger:
    """What one budget counts on one clock.

    Deposits and withdrawals draw numbers, each from a counter of its own, which needs no lock. Under the lock,
    `fold` enters into the windows what was drawn since the last time: every deposit, and of the withdrawals those
    whose number lay in `prepaid`, the range of numbers that the balance could pay for. Whoever draws another
    number, or comes after the slot's end, folds first and asks again.
    """

    __slots__ = (
        "__weakref__",
        "_deposits_from",
        "_terms",
        "deposits",
        "draw",
        "end",
        "lock",
        "now",
        "prepaid",
        "skip",
        "tick",
        "turn",
        "withdrawals",
    )

    def __init__(self, window: float, terms: Terms, clock: Clock) -> None:
        now = clock.now()
        self.now = clock.now
        self.lock = Lock()
        self.deposits = Window(window, now)
        self.withdrawals = Window(window, now)
        self.end = self.deposits.end
        self.tick = count().__next__
        self.draw = count().__next__
        self.turn = 0
        self.skip = 0
        self.prepaid = range(0, terms.reserved // terms.one)
        self._terms = terms
        self._deposits_from = 0

    def look(self) -> None:
        """Look at the clock for a deposit that has drawn its number, as the number said that it is time to."""
        self.turn += self.skip
        now = self.now()
        if now >= self.end:
            with self.lock:
                self.fold(now, late=1)

    def withdraw(self) -> bool:
        """Count one withdrawal that drew no prepaid number, if the balance pays for it now."""
        with self.lock:
            self.fold(self.now())
            if not self.prepaid:
                return False
            self.withdrawals.add(1)
            self.prepaid = self.prepaid[:-1]
            return True

    def give_back(self) -> None:
        """Forget the newest withdrawal."""
        with self.lock:
            self.fold(self.now())
            self.withdrawals.take_back()
            self.fold(self.now())

    def balance(self) -> float:
        """How many withdrawals the balance pays for."""
        with self.lock:
            self.fold(self.now())
            return self._terms.balance(self.deposits.total, self.withdrawals.total) / self._terms.one

    def fold(self, now: float, late: int = 0) -> None:
        """Enter what was drawn where it belongs, and open the slot of `now`; needs the lock.

        It belongs to the slot that was open when it was drawn, but for the `late` last deposits.
        """
        ticked, drawn = self.tick(), self.draw()
        pending = ticked - self._deposits_from
        self._deposits_from = ticked + 1
        late = min(late, pending)
        self.deposits.add(pending - late)
        self.withdrawals.add(min(drawn, self.prepaid.stop) - self.prepaid.start)
        busy = self.deposits.latest
        ahead = self.deposits.roll(now)
        self.deposits.add(late)
        self.withdrawals.roll(now)
        self.end = self.deposits.end
        terms = self._terms
        balance = terms.balance(self.deposits.total, self.withdrawals.total)
        self.prepaid = range(drawn + 1, drawn + 1 + max(0, balance // terms.one))
        if ahead:
            # a slot that follows a busy one is expected to be as busy; one after a pause is not
            self.skip = min(SKIP, busy // 4) if ahead == 1 else 0
            self.turn = ticked + self.skip if self.skip else 0

    def after_fork(self) -> None:
        self.lock = Lock()
        self.deposits.recount()
        self.withdrawals.recount()


@dataclass(frozen=True, slots=True)
class Terms:
    """Ratio and reserve in whole numbers: everything is counted in units of 1/`one` of a retry."""

    one: int
    per_deposit: int
    reserved: int

    @classmethod
    def of(cls, ratio: float, reserved: float) -> Terms:
        """The terms nearest to these numbers, with denominators up to `FINEST`."""
        per_deposit = Fraction(ratio).limit_denominator(FINEST)
        reserve = Fraction(reserved).limit_denominator(FINEST)
        one = math.lcm(per_deposit.denominator, reserve.denominator)
        return cls(one, int(per_deposit * one), int(reserve * one))

    def balance(self, deposits: int, withdrawals: int) -> int:
        """What is left, in units."""
        return self.reserved + self.per_deposit * deposits - self.one * withdrawals


class Budget(Gate):
    """Bounds retries to a share of what succeeds, plus a reserve per second.

    >>> budget = Budget(ratio=0.5, reserve=0)
    >>> budget.try_withdraw()
    False
    >>> budget.deposit(); budget.deposit()
    >>> budget.balance(), budget.try_withdraw(), budget.try_withdraw()
    (1.0, True, False)
    """

    __slots__ = (
        "_terms",
        "boundless",
        "funded_by",
        "ratio",
        "reserve",
        "timeline",
        "window",
    )

    def __init__(
        self,
        ratio: float = 0.2,
        reserve: float = 10.0,
        window: float = 10.0,
        funded_by: FundedBy = "success",
        clock: Clock | Callable[[], float] | None = None,
        name: str = "budget",
    ) -> None:
        self.ratio = number("ratio", ratio, least=0)
        self.reserve = number("reserve", reserve, least=0, infinite=True)
        self.window = number("window", window, least=SHORTEST)
        self.funded_by: FundedBy = choice("funded_by", funded_by, ("success", "request"))  # type: ignore[assignment]
        self.boundless = math.isinf(self.reserve)
        self.name = name
        self._terms = Terms.of(self.ratio, 0.0 if self.boundless else self.reserve * self.window)
        self.timeline: Timeline[Ledger] = Timeline(self._ledger, clock)

    def _ledger(self, clock: Clock) -> Ledger:
        return Ledger(self.window, self._terms, clock)

    @classmethod
    def empty(cls) -> Budget:
        """A budget that admits no retry at all.

        >>> Budget.empty().try_withdraw()
        False
        """
        return cls(ratio=0.0, reserve=0.0, name="empty budget")

    @classmethod
    def unlimited(cls) -> Budget:
        """A budget that admits every retry, for those who bound them elsewhere.

        >>> Budget.unlimited().balance()
        inf
        """
        return cls(ratio=0.0, reserve=math.inf, name="unlimited budget")

    def deposit(self) -> None:
        """Earn `ratio` of a retry: one call has succeeded (or has been made, if funded by requests)."""
        ledger = self.timeline.here() if switch.virtual else self.timeline.main
        now = ledger.now()
        if now >= ledger.end:
            with ledger.lock:
                ledger.fold(now)
        ledger.tick()

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if the balance holds it; `now` spares a look at the clock to who has just looked."""
        if self.boundless:
            return True
        ledger = self.timeline.here() if switch.virtual else self.timeline.main
        if (ledger.now() if now is None else now) < ledger.end and ledger.draw() in ledger.prepaid:
            return True
        return ledger.withdraw()

    def refund(self) -> None:
        """Take the newest withdrawal back: its retry was not made."""
        self.timeline.here().give_back()

    def balance(self) -> float:
        """How many retries could be made now."""
        return math.inf if self.boundless else self.timeline.here().balance()

    def enter(self, retry: bool) -> Gate | None:
        """Retries are paid for; a first attempt is free (and pays in, if funded by requests)."""
        if retry:
            return None if self.try_withdraw() else self
        if self.funded_by == "request":
            self.deposit()
        return None

    def leave(self, accepted: bool) -> None:
        """What succeeded pays in."""
        if accepted and self.funded_by == "success":
            self.deposit()

    def refusal(self) -> str:
        return f"its balance of {self.balance():.3g} retries is spent"

    def settings(self) -> tuple[float, float, float, str]:
        """What makes two budgets alike, whatever they hold."""
        return self.ratio, self.reserve, self.window, self.funded_by

    def __repr__(self) -> str:
        return (
            f"Budget(ratio={self.ratio:g}, reserve={self.reserve:g}, window={self.window:g},"
            f" funded_by={self.funded_by!r})"
        )
