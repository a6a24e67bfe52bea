"""A retry budget that a fleet shares without a round trip per call.

A process holds tokens, each of them a withdrawal that the store has counted already. A withdrawal takes one, or spends
what this process has earned and not reported yet. Where it has neither, it is refused, and the courier hurries to
bring more: as many as were needed lately, and in quiet times a part of half the reserve.

Deposits are counted as in any budget, so a call that succeeds costs the same. Without news from the store it is a
budget of its own: the same ratio, and this process's part of the reserve.

A fork's child begins with nothing. The first deposit or withdrawal there starts its courier; until the first news it
may spend what it has earned itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil, inf
from typing import NoReturn

from abate import forks
from abate.admit.budget import Budget, FundedBy, Ledger
from abate.admit.budget import Terms as Units
from abate.clock import MACHINE, switch
from abate.stores.fleet.courier import SOON, Courier
from abate.stores.fleet.offers import Accounts, Tokens
from abate.stores.ledger import Terms

AHEAD = 1.5
"""Tokens are asked for by what was needed since the last time, times this."""
QUIET = 0.5
"""The part of the reserve that is held by all together in quiet times."""


class FirstUse(Iterator[int]):
    """In a child, stands for the numbers that deposits take, until the first is taken: that starts the courier.

    So children that use the budget join the fleet, the others don't, and no call has to ask whether it is the first.
    """

    __slots__ = ("_budget", "numbers")

    def __init__(self, budget: FleetBudget, numbers: Iterator[int]) -> None:
        self._budget = budget
        self.numbers = numbers

    def __next__(self) -> int:
        if self._budget.used():
            self._budget.timeline.main.tick = self.numbers
        return next(self.numbers)


class FleetBudget(Budget):
    """A `Budget` whose balance is the fleet's; made by `Store.budget`.

    >>> import abate
    >>> store = abate.open_store("memory:")
    >>> budget = store.budget("orders", ratio=0.2, reserve=10)
    >>> policy = abate.Policy(on=ConnectionError, budget=budget)
    >>> budget.try_withdraw()
    True
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_courier",
        "_earned",
        "_earning",
        "_fresh",
        "_held",
        "_lent",
        "_members",
        "_needed",
        "_spent",
        "_tokens",
    )

    def __init__(self, courier: Courier, name: str, terms: Terms, funded_by: FundedBy = "success") -> None:
        super().__init__(terms.ratio, terms.reserve, terms.window, funded_by, name=name)
        self._courier = courier
        self._asked = terms
        self._earning = Units.of(self.ratio, 0.0)
        self._members = 1
        self._begin()
        forks.keep(self)  # after the ledger, which is mended first
        courier.join(self)

    def _made_from(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _begin(self) -> None:
        """Nothing is held or reported yet."""
        self._tokens: deque[None] = deque()
        self._held = 0  # tokens when the courier left
        self._fresh = inf  # until when to go by what the courier brought
        self._lent = 0  # withdrawals that a refund may give back as a token
        self._earned = self.timeline.main.earned  # deposits that the store knows of
        self._spent = 0  # withdrawals that no token stood for, since the last journey
        self._needed = 0  # withdrawals asked for since the last journey

    def after_fork(self) -> None:
        """In a child nothing is held, and what the parent earned is the parent's to report and to spend."""
        ledger = self.timeline.main
        if isinstance(ledger.tick, FirstUse):  # the parent is a child that has not used it
            ledger.tick = ledger.tick.numbers
        ledger.disown()
        self._begin()
        if self._courier.over:
            self._fresh = -inf
        else:
            ledger.tick = FirstUse(self, ledger.tick)

    def used(self) -> bool:
        """A child uses it for the first time: does its courier go from now on?"""
        if self._fresh == inf:
            # wait for the first news before taking a reserve: children are many, and don't know of each other
            self._fresh = MACHINE.now() + SOON
        return self._courier.start()

    # -- for calls

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if a token is there or one was earned here; it never waits for the store."""
        if self._elsewhere():
            return super().try_withdraw(now)
        if MACHINE.now() >= self._fresh:
            self._courier.start()  # it may have found no thread before
            return super().try_withdraw(now)
        self._needed += 1
        try:
            self._tokens.pop()
        except IndexError:
            if not self._on_credit():
                self._courier.hurry()
                return False
        self._lent += 1
        super().try_withdraw(now)  # so that a store that goes away leaves no full budget behind
        return True

    def refund(self) -> None:
        """Take the newest withdrawal back: its retry was not made."""
        if self._lent > 0 and not self._elsewhere() and MACHINE.now() < self._fresh:
            self._lent -= 1
            self._tokens.append(None)
        super().refund()

    def _elsewhere(self) -> bool:
        """Is this a virtual time, which has a budget of its own?"""
        return switch.virtual and self.timeline.here() is not self.timeline.main

    def balance(self) -> float:
        """How many retries this process could make now."""
        if self._elsewhere() or MACHINE.now() >= self._fresh:
            return super().balance()
        ledger = self.timeline.main
        credit = ledger.section.ask(self._credit, ledger, otherwise=self._known_credit)
        return len(self._tokens) + max(0, credit) / self._earning.one

    def _credit(self, ledger: Ledger) -> int:
        """What was earned here since the last journey, less what was spent of it, in units; within the section."""
        ledger.fold(ledger.now())
        return self._known_credit(ledger)

    def _known_credit(self, ledger: Ledger) -> int:
        return self._earning.balance(ledger.earned - self._earned, self._spent)

    def _on_credit(self) -> bool:
        ledger = self.timeline.main
        return ledger.section.ask(self._borrow, ledger, otherwise=_refused)

    def _borrow(self, ledger: Ledger) -> bool:
        if self._credit(ledger) < self._earning.one:
            return False
        self._spent += 1
        return True

    # -- for the courier

    def offer(self, now: float) -> Accounts:
        """What was earned and spent, what is held, and what is wanted."""
        ledger = self.timeline.main
        earned, spent = ledger.section.ask(self._report, ledger, now, otherwise=_nothing_new)
        needed, self._needed = self._needed, 0
        self._held = len(self._tokens)
        # more members than tokens: nobody holds any in quiet times, otherwise idle members would hold every token
        quiet = int(QUIET * self.reserve * self.window / self._members)
        want = max(quiet, ceil(AHEAD * needed))
        return Accounts(self.name, self._asked, earned, spent, self._held, want)

    def _report(self, ledger: Ledger, now: float) -> tuple[int, int]:
        """What was earned and spent since the last journey."""
        ledger.fold(ledger.now())
        if now >= self._fresh:  # what was done alone is over: it is neither owed nor owned
            self._earned, self._spent, self._lent = ledger.earned, 0, 0
            self._tokens.clear()
        earned, self._earned = ledger.earned - self._earned, ledger.earned
        spent, self._spent = self._spent, 0
        return earned, spent

    def take(self, answer: Tokens, until: float) -> None:
        """Hold what was granted, less what was used while the courier was on its way."""
        self._agree(answer.members)
        self._fresh = until
        change = answer.granted - self._held
        if change > 0:
            self._tokens.extend([None] * change)
        for _ in range(-change):
            try:
                self._tokens.pop()
            except IndexError:  # it was used, and is not granted any more
                self.timeline.main.section.run(self._spend)

    def _spend(self) -> None:
        self._spent += 1

    def unheard(self) -> None:
        """The store has not answered: it may have taken back what was handed in. On its own from now on."""
        self._fresh = -inf
        self._tokens.clear()

    closed = unheard

    def _agree(self, members: int) -> None:
        """So many share the reserve, from now on also without the store."""
        if members == self._members:
            return
        self._members = members
        self.timeline.main.agree(Units.of(self.ratio, self.reserve * self.window / members))


def _refused(_: Ledger) -> bool:
    """Answer a withdrawal that re-enters a fold: whether there is credit is not known."""
    return False


def _nothing_new(_: Ledger, now: float) -> tuple[int, int]:
    """Report nothing from within a fold, as a signal handler does that closes the store: it stays to be reported."""
    return 0, 0
