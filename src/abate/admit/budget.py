"""The retry budget: retries in proportion to what succeeds, and a small reserve for quiet times.

The rules (Finagle's, funded by successes unless told otherwise):

* allowed = reserve * window + ratio * deposits in the window - withdrawals in the window; a withdrawal needs 1;
* deposits and withdrawals are forgotten with their slot of the window (see `abate.admit.sliding_window`);
* arithmetic is in whole numbers (see `abate.admit.budget_units`);
* neither a deposit nor a withdrawal that the balance covers takes a lock (see `abate.admit.budget_state`). Each deposit
  reads the clock while deposits are rare; at hundreds per slot, about four per slot do. If such a stream stops
  suddenly, at most `MAX_UNTIMED` deposits are counted too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from abate.admit.budget_state import MAX_INSTANTS, BudgetState
from abate.admit.budget_units import Units
from abate.admit.gate import Gate
from abate.admit.sliding_window import MIN_WINDOW
from abate.clock import Clock, ever_used
from abate.errors import choice, number, suggests_settings
from abate.frozen import Shared, refuse_own_clock
from abate.per_clock import PerClock

FundedBy = Literal["success", "request"]
MAX_SETTING = 1e15
"""Ratio, reserve and window are at most this, so that no sum of them is too large for a float."""


class Budget(Shared, Gate):
    """Bounds retries to a share of what succeeds, plus a reserve per second.

    >>> budget = Budget(ratio=0.5, reserve=0)
    >>> budget.try_withdraw()
    False
    >>> budget.deposit(); budget.deposit()
    >>> budget.balance(), budget.try_withdraw(), budget.try_withdraw()
    (1.0, True, False)
    """

    __slots__ = (
        "_units",
        "funded_by",
        "ratio",
        "reserve",
        "states",
        "unlimited_balance",
        "window",
    )

    @suggests_settings
    def __init__(
        self,
        ratio: float = 0.2,
        reserve: float = 10.0,
        window: float = 10.0,
        funded_by: FundedBy = "success",
        *,
        clock: Clock | Callable[[], float] | None = None,
        name: str = "budget",
    ) -> None:
        self.ratio = number("ratio", ratio, least=0, most=MAX_SETTING)
        self.reserve = math.inf if reserve == math.inf else number("reserve", reserve, least=0, most=MAX_SETTING)
        self.window = number("window", window, least=MIN_WINDOW, most=MAX_SETTING)
        self.funded_by: FundedBy = choice("funded_by", funded_by, ("success", "request"))  # type: ignore[assignment]
        self.unlimited_balance = math.isinf(self.reserve)
        self.name = name
        self._units = Units.of(self.ratio, 0.0 if self.unlimited_balance else self.reserve * self.window)
        self.states: PerClock[BudgetState] = PerClock(self._make_state, clock)

    def _make_state(self, clock: Clock) -> BudgetState:
        return BudgetState(self.window, self._units, clock)

    @classmethod
    def empty(cls) -> Budget:
        """Return a budget that admits no retry.

        >>> Budget.empty().try_withdraw()
        False
        """
        return cls(ratio=0.0, reserve=0.0, name="empty budget")

    @classmethod
    def unlimited(cls) -> Budget:
        """Return a budget that admits every retry, if retries are limited elsewhere.

        >>> Budget.unlimited().balance()
        inf
        """
        return cls(ratio=0.0, reserve=math.inf, name="unlimited budget")

    def deposit(self) -> None:
        """Earn `ratio` of a retry: one call has succeeded (or was made, if funded by requests)."""
        state = self.states.here() if ever_used.virtual else self.states.main
        if state.batch_target or len(state.instants) >= MAX_INSTANTS:
            state.deposit()
        else:
            state.instants.append(state.now())

    def deposit_and_start_batch(self) -> None:
        """Deposit for a wrapper that found the batch used up."""
        if ever_used.virtual:
            self.states.here().deposit()
            return
        state = self.states.main
        if state.batch_target or len(state.instants) >= MAX_INSTANTS:
            state.deposit_and_start_batch()
        else:
            state.instants.append(state.now())

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if the balance covers it. Pass `now` if you have just read the clock."""
        if self.unlimited_balance:
            return True
        state = self.states.here() if ever_used.virtual else self.states.main
        if (state.now() if now is None else now) >= state.end:
            return state.withdraw()
        number = next(state.next_withdrawal)
        first, end = state.prepaid  # compared by hand: twice as fast as `in` for a range
        return first <= number < end or state.withdraw(number)

    def refund(self) -> None:
        """Refund the newest withdrawal, because its retry was not sent."""
        self.states.here().refund_newest()

    def balance(self) -> float:
        """Return how many retries could be made now."""
        return math.inf if self.unlimited_balance else self.states.here().balance()

    def share(self) -> float:
        """Return the unspent share of what the window allows, for a gauge: 1 if nothing was spent, 0 if all was.

        >>> budget = Budget(ratio=0.0, reserve=1.0, window=4.0)
        >>> budget.try_withdraw(), budget.share()
        (True, 0.75)
        """
        return 1.0 if self.unlimited_balance else self.states.here().share()

    def enter(self, retry: bool) -> Gate | None:
        """Withdraw for a retry; a first attempt is free (and deposits, if funded by requests)."""
        if retry:
            return None if self.try_withdraw() else self
        if self.funded_by == "request":
            self.deposit()
        return None

    def undo(self, retry: bool) -> None:
        """Refund a retry. A first attempt was free: refunding it would undo the withdrawal of another call."""
        if retry:
            self.refund()

    def leave(self, accepted: bool | None) -> None:
        """Deposit if the attempt succeeded."""
        if accepted and self.funded_by == "success":
            self.deposit()

    def failed(self, accepted: bool | None) -> None:
        """Deposit nothing, also for a failure that the server answered with (a 500)."""

    def apart(self) -> Budget:
        if type(self) is not Budget:
            return self
        return Budget(self.ratio, self.reserve, self.window, self.funded_by, clock=self.states.clock, name=self.name)

    def refusal(self) -> str:
        return f"its balance of {self.balance():.3g} retries is spent"

    def settings(self) -> tuple[float, float, float, str]:
        """Return the settings; two budgets with equal settings differ only in their counts."""
        return self.ratio, self.reserve, self.window, self.funded_by

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, not self.states.follows_context)
        names = ("ratio", "reserve", "window", "funded_by", "name")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return (
            f"Budget(ratio={self.ratio:g}, reserve={self.reserve:g}, window={self.window:g},"
            f" funded_by={self.funded_by!r})"
        )
