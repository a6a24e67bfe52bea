"""A retry budget that a fleet shares without a round trip per call.

A process holds tokens, each of them a withdrawal that the store has counted already. A withdrawal takes a token, or
spends what this process has earned and not reported yet. With neither, it is refused and a sync is requested soon. The
sync asks for as many tokens as were needed recently; an idle process asks for its share of half the reserve.

Deposits are counted as in any budget, so a call that succeeds costs the same. Without a valid reply of the store it is
a local budget: the same ratio, and this process's share of the reserve.

A forked child starts with nothing. Its first deposit or withdrawal starts its sync; until the first reply it may spend
what it has earned itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil, inf
from typing import NoReturn

from abate import forks
from abate.admit.budget import Budget, FundedBy
from abate.admit.budget_state import BudgetState
from abate.admit.budget_units import Units
from abate.clock import MACHINE, ever_used
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.background_sync import FIRST_REPLY_TIMEOUT, FleetSync
from abate.stores.fleet.sync_requests import BudgetGrant, BudgetRequest

DEMAND_FACTOR = 1.5
"""Tokens are requested for the demand since the last sync, times this."""
IDLE_RESERVE_SHARE = 0.5
"""The share of the reserve that all members together hold while idle."""


class StartOnFirstUse(Iterator[int]):
    """Replaces the counter of deposits in a child until the first deposit, which starts the sync.

    So only children that use the budget join the fleet, and no call has to check whether it is the first. Reading the
    balance does not count as use: otherwise a metrics reader in every child would make every child a member.
    """

    __slots__ = ("_budget",)

    def __init__(self, budget: FleetBudget) -> None:
        self._budget = budget

    def __next__(self) -> int:
        state = self._budget.states.main
        if self._budget.note_use():
            state.number_deposits_by(state.deposit_numbers)
        return next(state.deposit_numbers)


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
        "_demand",
        "_earning_units",
        "_fleet_sync",
        "_held",
        "_members",
        "_refundable",
        "_reported_deposits",
        "_shared_terms",
        "_tokens",
        "_unreported_withdrawals",
        "_valid_until",
    )

    def __init__(self, fleet_sync: FleetSync, name: str, terms: BudgetTerms, funded_by: FundedBy = "success") -> None:
        super().__init__(terms.ratio, terms.reserve, terms.window, funded_by, name=name)
        self._fleet_sync = fleet_sync
        self._shared_terms = terms
        self._earning_units = Units.of(self.ratio, 0.0)
        self._members = 1
        self._reset()
        forks.register(self)  # after the state, which is repaired first
        fleet_sync.join(self)

    def _pickled_settings(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _reset(self) -> None:
        """Start with nothing held and nothing reported."""
        self._tokens: deque[None] = deque()
        self._held = 0  # tokens at the last request
        self._valid_until = inf  # the instant until which the last reply is valid
        self._refundable = 0  # withdrawals that a refund may give back as a token
        self._reported_deposits = self.states.main.earned  # deposits that the store knows of
        self._unreported_withdrawals = 0  # withdrawals without a token, since the last sync
        self._demand = 0  # withdrawals asked for since the last sync

    def after_fork(self) -> None:
        """Start with nothing in the child: the parent reports and spends what it has earned."""
        state = self.states.main
        state.forget_deposits()
        self._reset()
        if self._fleet_sync.is_closed:
            self._valid_until = -inf
        else:
            state.number_deposits_by(StartOnFirstUse(self))

    def note_use(self) -> bool:
        """Note the first use in a child. Return whether its sync runs now."""
        if self._valid_until == inf:
            # no reserve before the first reply: there may be many children that don't know of each other
            self._valid_until = MACHINE.now() + FIRST_REPLY_TIMEOUT
        return self._fleet_sync.start()

    # -- for calls

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if there is a token or one was earned here. Never wait for the store."""
        if self._in_virtual_time():
            return super().try_withdraw(now)
        if MACHINE.now() >= self._valid_until:
            self._fleet_sync.start()  # starting its thread may have failed before
            return super().try_withdraw(now)
        if self._valid_until == inf:
            self.note_use()
        self._demand += 1
        try:
            self._tokens.pop()
        except IndexError:
            if not self._borrow():
                self._fleet_sync.sync_soon()
                return False
        self._refundable += 1
        super().try_withdraw(now)  # so that the local budget is not full when the store fails
        return True

    def refund(self) -> None:
        """Refund the newest withdrawal, because its retry was not sent."""
        if self._refundable > 0 and not self._in_virtual_time() and MACHINE.now() < self._valid_until:
            self._refundable -= 1
            self._tokens.append(None)
        super().refund()

    def _in_virtual_time(self) -> bool:
        """Return whether a virtual clock applies, which has a budget of its own."""
        return ever_used.virtual and self.states.here() is not self.states.main

    def balance(self) -> float:
        """Return how many retries this process could make now."""
        if self._in_virtual_time() or MACHINE.now() >= self._valid_until:
            return super().balance()
        state = self.states.main
        credit = state.section.call(self._credit, state, otherwise=self._known_credit)
        return len(self._tokens) + max(0, credit) / self._earning_units.one

    def _credit(self, state: BudgetState) -> int:
        """Return what was earned here since the last sync, less what was spent of it, in units."""
        state.update_counts(state.now())
        return self._known_credit(state)

    def _known_credit(self, state: BudgetState) -> int:
        return self._earning_units.balance(state.earned - self._reported_deposits, self._unreported_withdrawals)

    def _borrow(self) -> bool:
        """Spend what was earned here and not reported yet."""
        state = self.states.main
        return state.section.call(self._borrow_locked, state, otherwise=_refused)

    def _borrow_locked(self, state: BudgetState) -> bool:
        if self._credit(state) < self._earning_units.one:
            return False
        self._unreported_withdrawals += 1
        return True

    # -- for the sync

    def request(self, now: float) -> BudgetRequest:
        """Return what was earned and spent, what is held, and what is wanted."""
        state = self.states.main
        earned, spent = state.section.call(self._report, state, now, otherwise=_nothing_new)
        needed, self._demand = self._demand, 0
        self._held = len(self._tokens)
        # 0 with more members than tokens: idle members must not hold every token
        quiet = int(IDLE_RESERVE_SHARE * self.reserve * self.window / self._members)
        want = max(quiet, ceil(DEMAND_FACTOR * needed))
        return BudgetRequest(self.name, self._shared_terms, earned, spent, self._held, want)

    def _report(self, state: BudgetState, now: float) -> tuple[int, int]:
        """Return what was earned and spent since the last sync."""
        state.update_counts(state.now())
        if now >= self._valid_until:  # local deposits and withdrawals are not reported
            self._reported_deposits, self._unreported_withdrawals, self._refundable = state.earned, 0, 0
            self._tokens.clear()
        earned, self._reported_deposits = state.earned - self._reported_deposits, state.earned
        spent, self._unreported_withdrawals = self._unreported_withdrawals, 0
        return earned, spent

    def apply(self, reply: BudgetGrant, until: float) -> None:
        """Hold what was granted, less what was used since the request."""
        self._set_members(reply.members)
        self._valid_until = until
        change = reply.granted - self._held
        if change > 0:
            self._tokens.extend([None] * change)
        for _ in range(-change):
            try:
                self._tokens.pop()
            except IndexError:  # it was used since the request, and not granted again
                self.states.main.section.run_or_defer(self._spend)

    def _spend(self) -> None:
        self._unreported_withdrawals += 1

    def fall_back(self) -> None:
        """Apply a local budget: the store may have counted the returned tokens."""
        self._valid_until = -inf
        self._tokens.clear()

    on_close = fall_back

    def _set_members(self, members: int) -> None:
        """Set the number of members, which share the reserve also without the store."""
        if members == self._members:
            return
        self._members = members
        self.states.main.set_units(Units.of(self.ratio, self.reserve * self.window / members))


def _refused(_: BudgetState) -> bool:
    """Refuse a withdrawal that re-enters the section: the credit is not known."""
    return False


def _nothing_new(_: BudgetState, now: float) -> tuple[int, int]:
    """Report nothing now: a signal handler closes the store within the section. The counts are reported later."""
    return 0, 0
