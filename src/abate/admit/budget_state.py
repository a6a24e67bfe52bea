"""What one budget counts on one clock, without a lock on the usual path.

Deposits and withdrawals take an item from an iterator or append to a list, which is atomic:

* while deposits are rare, each appends its instant to `instants`, whatever slot that is in;
* in a busy slot, where `batch_target` is not 0, a deposit that reads the clock takes the next number of
  `timed_deposits`, any other an item of `batch`;
* a withdrawal takes the next number of `next_withdrawal`, and is granted if that lies within the bounds `prepaid`.

Under the lock, `update_counts` adds to the windows what was drawn since the last time, and prepays as many withdrawals
as the balance covers. A busy deposit that finds the batch used up, one that finds `instants` full, a withdrawal whose
number is not prepaid, and a withdrawal after the end of the slot update the counts first.

    numbers of withdrawals:  ... counted ... | _paid_from ... _paid_to | prepaid | not paid: update the counts first

* While the counts are updated, `prepaid` is empty, so every withdrawal takes the lock. A thread that has drawn its
  number just before finds it between `_paid_from` and `_paid_to`: paid since the balance was last spent. A thread
  delayed longer than that is charged twice; never undercharged.
* A withdrawal that re-enters `update_counts` of its own thread is decided by the range that was prepaid last, as if it
  had come just before. It is granted if its number is in there, and charged before the next range is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from operator import length_hint

from abate import forks
from abate.admit.budget_units import Units
from abate.admit.sliding_window import SlidingWindow
from abate.clock import Clock, before_first_virtual_clock
from abate.reentrant_locks import Section, may_wait, takes_lock

MAX_UNTIMED = 1000
"""At most this many deposits in a row don't read the clock: a quarter of a busy slot's."""
MIN_BATCH = 16
"""A smaller batch would cost more to start than reading the clock for each of its deposits."""
MAX_INSTANTS = 32
"""At most about this many instants are kept until they are counted."""
NOTHING = range(0)


class BudgetState:
    """The deposits and withdrawals of one budget on one clock."""

    __slots__ = (
        "__weakref__",
        "_batch_size",
        "_counted_deposits",
        "_last_prepaid",
        "_paid_from",
        "_paid_to",
        "_reentrant_granted",
        "_reentrant_refused",
        "_uncounted",
        "_units",
        "batch",
        "batch_target",
        "deposit_numbers",
        "deposits",
        "earned",
        "end",
        "instants",
        "next_withdrawal",
        "now",
        "prepaid",
        "section",
        "timed_deposits",
        "withdrawals",
    )

    def __init__(self, window: float, units: Units, clock: Clock) -> None:
        self.now = clock.now
        self.section = Section()
        now = self.now()
        self.deposits = SlidingWindow(window, now)
        self.withdrawals = SlidingWindow(window, now)
        self.end = self.deposits.end
        self.instants: list[float] = []
        """When the deposits were made that are not counted yet."""
        self.deposit_numbers = count()
        self.timed_deposits: Iterator[int] = self.deposit_numbers
        self.next_withdrawal = count()
        self.batch = repeat(None, 0)
        self._last_prepaid = self._uncounted = range(units.reserved // units.one)
        self.prepaid = (0, self._uncounted.stop)
        """The first prepaid number, and the one after the last."""
        self._reentrant_granted: list[int] = []
        """Numbers of re-entrant withdrawals that were granted."""
        self._reentrant_refused: list[int] = []
        """Numbers of re-entrant withdrawals that were refused."""
        self._paid_from = self._paid_to = 0
        self._units = units
        self._counted_deposits = 0
        self._batch_size = 0
        self.batch_target = 0
        self.earned = 0
        """All deposits counted so far, including those that have left the window."""

    def deposit(self) -> None:
        """Count one deposit now."""
        now = self.now()
        if not self.batch_target:
            self.instants.append(now)
            if len(self.instants) >= MAX_INSTANTS:
                self.section.run_or_defer(self._count_full_instants, now)
            return
        if now >= self.end:
            self.section.call(self.update_counts, now, otherwise=_counted_by_outer_call)
        next(self.timed_deposits)

    def _count_full_instants(self, now: float) -> None:
        self.update_counts(now)
        busy = self.deposits.latest
        if busy >= 4 * MIN_BATCH and not self.batch_target:
            self.batch_target = min(MAX_UNTIMED, busy // 4)  # the slot has become a busy one

    def deposit_and_start_batch(self) -> None:
        """Count one deposit that found the batch used up; in a busy slot, start another batch."""
        self.deposit()
        if self.batch_target:
            self.section.run_or_defer(self._start_batch)

    def _start_batch(self) -> None:
        self._count_batch()
        if not length_hint(self.batch):  # false if another thread has started one
            self.batch, self._batch_size = repeat(None, self.batch_target), self.batch_target

    def end_batch(self) -> None:
        """Let every deposit read the clock from now on."""
        self.section.run_or_defer(self._end_batch)

    def _end_batch(self) -> None:
        self._count_batch()
        self.batch, self._batch_size = repeat(None, 0), 0

    @takes_lock
    def withdraw(self, number: int = -1) -> bool:
        """Count one withdrawal if the balance covers it now; `number` was drawn and not prepaid, -1 if none was."""
        section, paid = self.section, False
        # `Section.call` (see there), written out: each retry of an exhausted budget comes here
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
                    self._prepay(self._count_drawn(self.now()))
                    paid = self._paid_from <= number < self._paid_to or next(self.next_withdrawal) in self._uncounted
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
        """Count one withdrawal that re-enters `update_counts`."""
        if number < 0:
            number = next(self.next_withdrawal)
        granted = number in self._last_prepaid
        (self._reentrant_granted if granted else self._reentrant_refused).append(number)
        return granted

    def refund_newest(self) -> None:
        """Refund the newest withdrawal."""
        self.section.run_or_defer(self._refund, [1])

    def _refund(self, owed: list[int]) -> None:
        drawn = self._count_drawn(self.now())
        if owed:
            self.withdrawals.take_back()
            del owed[0]  # once, even if this runs again
        self._prepay(drawn)

    def balance(self) -> float:
        """Return how many withdrawals the balance covers."""
        units, _ = self.section.call(self._update_and_read, otherwise=self._read)
        return units / self._units.one

    def share(self) -> float:
        """Return the unspent share of what the window allows."""
        units, withdrawals = self.section.call(self._update_and_read, otherwise=self._read)
        left = max(0, units)
        allowed = left + self._units.one * withdrawals
        return left / allowed if allowed else 0.0

    def _update_and_read(self) -> tuple[int, int]:
        self.update_counts(self.now())
        return self._read()

    def _read(self) -> tuple[int, int]:
        """Return the balance in units, and the withdrawals."""
        return self._balance(), self.withdrawals.total

    def update_counts(self, now: float) -> None:
        """Count what was drawn since the last time, and open the slot of `now`; called under the lock."""
        self._prepay(self._count_drawn(now))

    def set_units(self, units: Units) -> None:
        """Use other units from now on."""
        self.section.run_or_defer(self._set_units, units)

    def _set_units(self, units: Units) -> None:
        drawn = self._count_drawn(self.now())
        self._units = units
        self._prepay(drawn)

    def number_deposits_by(self, numbers: Iterator[int]) -> None:
        """Let deposits take their numbers from this iterator, which hands on those of `deposit_numbers`."""
        self.timed_deposits = numbers
        self.batch_target = 0 if numbers is self.deposit_numbers else 1  # not 0: deposits by their instants have none

    def forget_deposits(self) -> None:
        """Forget all deposits: they belong to another process."""
        self.section.run_or_defer(self._forget_deposits)

    def _forget_deposits(self) -> None:
        drawn = self._count_drawn(self.now())
        self.batch, self._batch_size = repeat(None, 0), 0
        self.deposits.clear()
        self._prepay(drawn)

    def _count_drawn(self, now: float) -> int:
        """Move deposits and withdrawals drawn since the last time into the windows; return the last number drawn.

        Nothing is prepaid from then on.
        """
        self.prepaid = (0, 0)
        deposited, drawn = next(self.deposit_numbers), next(self.next_withdrawal)
        self._add_deposits(deposited - self._counted_deposits)
        self._counted_deposits = deposited + 1
        self._count_batch()
        issued = self._uncounted
        paid = min(drawn, issued.stop) - issued.start
        self.withdrawals.add(paid)
        self._uncounted = NOTHING
        if paid and self._paid_to != issued.start:
            self._paid_from = self._paid_to = issued.start
        if self._paid_to == issued.start:
            # if the range was not used up, the next one follows it, with the number drawn here between the two
            self._paid_to = drawn + 1 if drawn <= issued.stop else issued.stop
        ahead = self.deposits.roll(now)
        self.withdrawals.roll(now)
        self.end = self.deposits.end
        counted = len(self.instants)
        if counted:
            self.deposits.add_instants(self.instants[:counted])
            self.earned += counted
            del self.instants[:counted]
        if ahead:
            # expect a slot to be as busy as the one just before it
            busy = self.deposits.before_latest if ahead == 1 else 0
            least = 0 if self.timed_deposits is self.deposit_numbers else 1
            self.batch_target = min(MAX_UNTIMED, busy // 4) if busy >= 4 * MIN_BATCH else least
        return drawn

    def _prepay(self, drawn: int) -> None:
        """Prepay the numbers after `drawn`, as many as the balance covers."""
        while True:
            covered = self._covered(drawn)
            bounds = (covered.start, covered.stop)
            self._last_prepaid = self._uncounted = covered
            self.prepaid = bounds
            if not (self._reentrant_granted or self._reentrant_refused):
                return
            # withdrawals have re-entered since the range was computed: charge them, and compute it again
            drawn = self._count_drawn(self.now())
            self._charge_reentrant(range(covered.start, min(drawn, covered.stop)))

    def _covered(self, drawn: int) -> range:
        """Charge re-entrant withdrawals; return the numbers after `drawn` that the balance covers."""
        first = drawn + 1
        while True:
            if self._reentrant_granted or self._reentrant_refused:
                self._reentrant_refused.clear()
                while self._reentrant_granted:
                    self.withdrawals.add(self._reentrant_granted.pop() > drawn)
                first = next(self.next_withdrawal) + 1  # after the numbers of the re-entrant withdrawals
            covered = range(first, first + max(0, self._balance() // self._units.one))
            if not (self._reentrant_granted or self._reentrant_refused):
                return covered

    def _charge_reentrant(self, counted: range) -> None:
        """Charge what was granted to re-entrant withdrawals and not `counted`; refund what was refused and counted."""
        while self._reentrant_granted:
            self.withdrawals.add(self._reentrant_granted.pop() not in counted)
        while self._reentrant_refused:
            if self._reentrant_refused.pop() in counted:
                self.withdrawals.take_back()

    def _balance(self) -> int:
        """Return the balance in units."""
        return self._units.balance(self.deposits.total, self.withdrawals.total)

    def _count_batch(self) -> None:
        left = length_hint(self.batch)
        self._add_deposits(self._batch_size - left)
        self._batch_size = left

    def _add_deposits(self, deposits: int) -> None:
        self.deposits.add(deposits)
        self.earned += deposits

    def after_fork(self) -> None:
        self.section.after_fork()
        self.deposits.recount()
        self.withdrawals.recount()


def _counted_by_outer_call(_: float) -> None:
    """Do nothing in a re-entrant call: the deposit counts in the slot that the outer call opens."""


def _end_batches() -> None:
    for state in forks.registered():
        if isinstance(state, BudgetState):
            state.end_batch()


before_first_virtual_clock.append(_end_batches)
