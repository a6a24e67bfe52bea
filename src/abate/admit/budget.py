"""The retry budget: retries in proportion to what succeeds, and a small reserve for quiet times.

The rules (Finagle's, funded by successes unless told otherwise):

* allowed = reserve * window + ratio * deposits in the window - withdrawals in the window; a withdrawal needs 1;
* deposits and withdrawals are forgotten with their slot of the window (see `abate.admit.sliding_window`);
* arithmetic is in whole numbers, so a ratio of 0.6 is 0.6 however many deposits there are;
* neither a deposit nor a withdrawal that the balance covers takes a lock. Each deposit reads the clock while deposits
  are rare; at hundreds per slot, about four per slot do. If such a stream stops suddenly, at most `MAX_UNTIMED`
  deposits are counted too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count, repeat
from operator import length_hint
from typing import Any, Literal

from abate import forks
from abate.admit.gate import Gate
from abate.admit.sliding_window import MIN_WINDOW, SlidingWindow
from abate.clock import Clock, before_first_virtual_clock, ever_used
from abate.errors import choice, number
from abate.frozen import Shared, refuse_own_clock
from abate.per_clock import PerClock
from abate.reentrant_locks import Section, may_wait, takes_lock

FundedBy = Literal["success", "request"]
MAX_DENOMINATOR = 10**6
"""Ratio and reserve are rounded to the nearest fraction with at most this denominator."""
MAX_SETTING = 1e15
"""Ratio, reserve and window are at most this, so that no sum of them is too large for a float."""
MAX_UNTIMED = 1000
"""At most this many deposits in a row don't read the clock: a quarter of a busy slot's."""
NOTHING = range(0)


class BudgetState:
    """What one budget counts on one clock.

    Deposits and withdrawals take an item from an iterator, which is atomic and needs no lock:

    * a deposit that reads the clock takes the next number of `timed_deposits`, any other an item of `batch`;
    * a withdrawal takes the next number of `next_withdrawal`, and is granted if that lies in `free_numbers`.

    Under the lock, `settle_counts` adds to the windows what was taken since the last time, and prepays as many
    withdrawals as the balance covers. A deposit that finds the batch used up, a withdrawal whose number is not prepaid,
    and anything after the end of the slot settles the counts first.

    While counts are settled nothing is prepaid, so no number is drawn from a range that is no longer counted. A thread
    that drew its number before the range was closed, and checks it afterwards, finds it among those paid since the
    balance was last spent. A thread delayed longer than that is charged twice; never undercharged.

    A withdrawal that re-enters `settle_counts` of its own thread uses the range that was prepaid last, as if it had
    come just before. It is granted if its number is in there, and charged before the next range is computed.
    """

    __slots__ = (
        "__weakref__",
        "_batch_size",
        "_batch_target",
        "_counted_ticks",
        "_last_free",
        "_open_range",
        "_paid_from",
        "_paid_to",
        "_reentrant_granted",
        "_reentrant_refused",
        "_terms",
        "batch",
        "deposit_numbers",
        "deposits",
        "earned",
        "end",
        "free_numbers",
        "next_withdrawal",
        "now",
        "section",
        "timed_deposits",
        "withdrawals",
    )

    def __init__(self, window: float, terms: Units, clock: Clock) -> None:
        self.now = clock.now
        self.section = Section()
        now = self.now()
        self.deposits = SlidingWindow(window, now)
        self.withdrawals = SlidingWindow(window, now)
        self.end = self.deposits.end
        self.deposit_numbers = count()
        self.timed_deposits: Iterator[int] = self.deposit_numbers
        self.next_withdrawal = count()
        self.batch = repeat(None, 0)
        self._last_free = self._open_range = self.free_numbers = range(0, terms.reserved // terms.one)
        self._reentrant_granted: list[int] = []
        """Numbers of re-entrant withdrawals that were granted."""
        self._reentrant_refused: list[int] = []
        """Numbers of re-entrant withdrawals that were refused."""
        self._paid_from = self._paid_to = 0
        self._terms = terms
        self._counted_ticks = 0
        self._batch_size = 0
        self._batch_target = 0
        self.earned = 0
        """All deposits counted so far, including those that have left the window."""

    def deposit(self) -> None:
        """Count one deposit now."""
        now = self.now()
        if now >= self.end:
            self.section.call(self.settle_counts, now, otherwise=_skipped)
        next(self.timed_deposits)

    def deposit_and_start_batch(self) -> None:
        """Count one deposit that found the batch used up; in a busy slot, start another batch."""
        self.deposit()
        if self._batch_target:
            self.section.run_or_defer(self._start_batch)

    def _start_batch(self) -> None:
        self._count_batch()
        if not length_hint(self.batch):  # false if another thread has started one
            self.batch, self._batch_size = repeat(None, self._batch_target), self._batch_target

    def end_batch(self) -> None:
        """Let every deposit read the clock from now on."""
        self.section.run_or_defer(self._end_batch)

    def _end_batch(self) -> None:
        self._count_batch()
        self.batch, self._batch_size = repeat(None, 0), 0

    @takes_lock
    def withdraw(self, number: int = -1) -> bool:
        """Count one withdrawal whose number was not prepaid, if the balance covers it now."""
        section, paid = self.section, False
        # `Section.call`, written out: each retry of an exhausted budget comes here
        for taken in section.entering_with_timeout() if section.busy else section.entering:  # pragma: no branch
            if not taken:
                if may_wait():
                    continue
                return self._withdraw_reentrant(number)
            try:
                if section.busy:
                    return self._withdraw_reentrant(number)
                try:
                    section.busy = True
                    self._prepay(self._settle(self.now()))
                    paid = self._paid_from <= number < self._paid_to or next(self.next_withdrawal) in self.free_numbers
                finally:
                    section.busy = False
            finally:
                for _ in section.leaving:  # pragma: no branch
                    break
            break
        if section.deferred:
            section.run_deferred()
        return paid

    def _withdraw_reentrant(self, number: int) -> bool:
        """Count one withdrawal that re-enters `settle_counts`."""
        if number < 0:
            number = next(self.next_withdrawal)
        granted = number in self._last_free
        (self._reentrant_granted if granted else self._reentrant_refused).append(number)
        return granted

    def refund_newest(self) -> None:
        """Forget the newest withdrawal."""
        self.section.run_or_defer(self._give_back, [1])

    def _give_back(self, owed: list[int]) -> None:
        drawn = self._settle(self.now())
        if owed:
            self.withdrawals.take_back()
            del owed[0]  # once, even if this runs again
        self._prepay(drawn)

    def balance(self) -> float:
        """Return how many withdrawals the balance covers."""
        units, _ = self.section.call(self._folded, otherwise=self._totals)
        return units / self._terms.one

    def share(self) -> float:
        """Return the unspent share of what the window allows."""
        units, withdrawals = self.section.call(self._folded, otherwise=self._totals)
        left = max(0, units)
        allowed = left + self._terms.one * withdrawals
        return left / allowed if allowed else 0.0

    def _folded(self) -> tuple[int, int]:
        self.settle_counts(self.now())
        return self._totals()

    def _totals(self) -> tuple[int, int]:
        """Return the balance in units, and the withdrawals."""
        return self._units(), self.withdrawals.total

    def settle_counts(self, now: float) -> None:
        """Count what was taken since the last time, and open the slot of `now`; called under the lock."""
        self._prepay(self._settle(now))

    def set_units(self, terms: Units) -> None:
        """Use other units from now on."""
        self.section.run_or_defer(self._agree, terms)

    def _agree(self, terms: Units) -> None:
        drawn = self._settle(self.now())
        self._terms = terms
        self._prepay(drawn)

    def forget_deposits(self) -> None:
        """Forget all deposits: they belong to another process."""
        self.section.run_or_defer(self._disown)

    def _disown(self) -> None:
        drawn = self._settle(self.now())
        self.batch, self._batch_size = repeat(None, 0), 0
        self.deposits.clear()
        self._prepay(drawn)

    def _settle(self, now: float) -> int:
        """Count what was taken, prepay nothing, and return the last number drawn."""
        self.free_numbers = NOTHING
        ticked, drawn = next(self.deposit_numbers), next(self.next_withdrawal)
        self._enter(ticked - self._counted_ticks)
        self._counted_ticks = ticked + 1
        self._count_batch()
        issued = self._open_range
        paid = min(drawn, issued.stop) - issued.start
        self.withdrawals.add(paid)
        self._open_range = NOTHING
        if paid and self._paid_to != issued.start:
            self._paid_from = self._paid_to = issued.start
        if self._paid_to == issued.start:
            # if the range was not used up, the next one follows it, with the number drawn here between the two
            self._paid_to = drawn + 1 if drawn <= issued.stop else issued.stop
        busy = self.deposits.latest
        ahead = self.deposits.roll(now)
        self.withdrawals.roll(now)
        self.end = self.deposits.end
        if ahead:
            # expect a slot to be as busy as the one just before it
            self._batch_target = min(MAX_UNTIMED, busy // 4) if ahead == 1 else 0
        return drawn

    def _prepay(self, drawn: int) -> None:
        """Prepay the numbers after `drawn`, as many as the balance covers."""
        first = drawn + 1
        while True:
            if self._reentrant_granted or self._reentrant_refused:
                self._reentrant_refused.clear()
                while self._reentrant_granted:
                    self.withdrawals.add(self._reentrant_granted.pop() > drawn)
                first = next(self.next_withdrawal) + 1  # after the numbers of the re-entrant withdrawals
            allowed = max(0, self._units() // self._terms.one)
            paid_for = range(first, first + allowed)
            if not self._reentrant_granted and not self._reentrant_refused:
                break
        self._last_free = self._open_range = self.free_numbers = paid_for
        if self._reentrant_granted or self._reentrant_refused:  # since the check above
            drawn = self._settle(self.now())
            counted = range(first, min(drawn, paid_for.stop))
            while self._reentrant_granted:
                self.withdrawals.add(self._reentrant_granted.pop() not in counted)
            while self._reentrant_refused:
                if self._reentrant_refused.pop() in counted:
                    self.withdrawals.take_back()
            self._prepay(drawn)

    def _units(self) -> int:
        """Return the balance in units."""
        return self._terms.balance(self.deposits.total, self.withdrawals.total)

    def _count_batch(self) -> None:
        left = length_hint(self.batch)
        self._enter(self._batch_size - left)
        self._batch_size = left

    def _enter(self, deposits: int) -> None:
        self.deposits.add(deposits)
        self.earned += deposits

    def after_fork(self) -> None:
        self.section.after_fork()
        self.deposits.recount()
        self.withdrawals.recount()


class Units:
    """Ratio and reserve in whole numbers: everything is counted in units of 1/`one` of a retry."""

    __slots__ = ("one", "per_deposit", "reserved")

    def __init__(self, one: int, per_deposit: int, reserved: int) -> None:
        self.one = one
        self.per_deposit = per_deposit
        self.reserved = reserved

    @classmethod
    def of(cls, ratio: float, reserved: float) -> Units:
        """Return the units nearest to these numbers, with denominators up to `MAX_DENOMINATOR`."""
        earned, per = _fraction(ratio)
        kept, share = _fraction(reserved)
        one = math.lcm(per, share)
        return cls(one, earned * (one // per), kept * (one // share))

    def balance(self, deposits: int, withdrawals: int) -> int:
        """Return what is left, in units."""
        return self.reserved + self.per_deposit * deposits - self.one * withdrawals


def _fraction(value: float) -> tuple[int, int]:
    """Return the last convergent of `value` with a denominator up to `MAX_DENOMINATOR`: 0.29 is exactly 29/100."""
    numerator, denominator = value.as_integer_ratio()
    before, last = (0, 1), (1, 0)
    while denominator:
        whole = numerator // denominator
        following = (before[0] + whole * last[0], before[1] + whole * last[1])
        if following[1] > MAX_DENOMINATOR:
            break
        before, last = last, following
        numerator, denominator = denominator, numerator - whole * denominator
    return last


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
        "_terms",
        "funded_by",
        "ratio",
        "reserve",
        "states",
        "unlimited_balance",
        "window",
    )

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
        self._terms = Units.of(self.ratio, 0.0 if self.unlimited_balance else self.reserve * self.window)
        self.states: PerClock[BudgetState] = PerClock(self._make_state, clock)

    def _make_state(self, clock: Clock) -> BudgetState:
        return BudgetState(self.window, self._terms, clock)

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
        if state.now() < state.end:
            next(state.timed_deposits)
        else:
            state.deposit()

    def deposit_and_start_batch(self) -> None:
        """Deposit for a wrapper that found the batch used up."""
        if ever_used.virtual:
            self.states.here().deposit()
        else:
            self.states.main.deposit_and_start_batch()

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if the balance covers it. Pass `now` if you have just read the clock."""
        if self.unlimited_balance:
            return True
        state = self.states.here() if ever_used.virtual else self.states.main
        if (state.now() if now is None else now) >= state.end:
            return state.withdraw()
        number = next(state.next_withdrawal)
        return number in state.free_numbers or state.withdraw(number)

    def refund(self) -> None:
        """Return the newest withdrawal: its retry was not made."""
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
        """Refund a retry. Do nothing for a first attempt: it was free, and a refund would be another call's."""
        if retry:
            self.refund()

    def leave(self, accepted: bool | None) -> None:
        """Deposit if the attempt succeeded."""
        if accepted and self.funded_by == "success":
            self.deposit()

    def apart(self) -> Budget:
        if type(self) is not Budget:
            return self
        return Budget(self.ratio, self.reserve, self.window, self.funded_by, clock=self.states.clock, name=self.name)

    def refusal(self) -> str:
        return f"its balance of {self.balance():.3g} retries is spent"

    def settings(self) -> tuple[float, float, float, str]:
        """Return the settings; two budgets with equal settings behave alike, apart from their counts."""
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


def _skipped(_: float) -> None:
    """Do nothing in a re-entrant call: the deposit counts in the slot that the outer call opens."""


def _end_batches() -> None:
    for state in forks.registered():
        if isinstance(state, BudgetState):
            state.end_batch()


before_first_virtual_clock.append(_end_batches)
