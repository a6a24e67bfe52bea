"""The retry budget: retries in proportion to what succeeds, and a small reserve for quiet times.

The rules (Finagle's, funded by successes unless told otherwise):

* allowed = reserve * window + ratio * deposits in the window - withdrawals in the window; a withdrawal needs 1;
* deposits and withdrawals are forgotten with their slot of the window (see `abate.admit.window`);
* arithmetic is in whole numbers, so a ratio of 0.6 is 0.6 however many deposits there are;
* neither a deposit nor a withdrawal that the balance can pay for takes a lock. The clock is looked at for each
  deposit while they are rare, and about four times per slot when they come in hundreds; when such a stream stops
  short, at most `SKIP` deposits count as that much older.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count, repeat
from operator import length_hint
from typing import Any, Literal

from abate import forks
from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.admit.window import SHORTEST, Window
from abate.clock import Clock, before_virtual, switch
from abate.errors import choice, number
from abate.locks import Section, enters, may_wait
from abate.values import Shared, clockless

FundedBy = Literal["success", "request"]
FINEST = 10**6
"""Ratio and reserve are taken as the nearest fraction with no larger denominator."""
MOST = 1e15
"""Ratio, reserve and window are at most this, so that no sum of them is too large for a float."""
SKIP = 1000
"""Deposits that go by without a look at the clock, at most: a quarter of a busy slot's."""
NOTHING = range(0)


class Ledger:
    """What one budget counts on one clock.

    Who deposits or withdraws takes an item from an iterator, which is atomic and needs no lock:

    * a deposit that looks at the clock takes the next number of `tick`, one that needn't an item of `run`;
    * a withdrawal takes the next number of `draw`, and is paid for if that lies in `prepaid`.

    Inside the section, `fold` enters into the windows what was taken since the last time, and works out from the
    balance how many withdrawals are prepaid. Who finds the run at its end, draws a number that is not prepaid, or comes
    after the slot's end, folds and asks again.

    While it folds nothing is prepaid, so that no number is drawn from a range that is not counted any more. Who
    drew from the range before it was closed, and looked at it after that, finds its number among those paid for since
    the balance was last spent. Who slept through more than that pays twice, and nobody too little.

    A withdrawal that re-enters a fold of its own thread goes by the range that was prepaid last, as if it had come just
    before the fold. It is granted if its number is in there, and charged before the next range is worked out.
    """

    __slots__ = (
        "__weakref__",
        "_granted",
        "_issued",
        "_paid_from",
        "_paid_to",
        "_published",
        "_run_from",
        "_skip",
        "_spoiled",
        "_terms",
        "_tick_from",
        "deposits",
        "draw",
        "earned",
        "end",
        "now",
        "prepaid",
        "run",
        "section",
        "tick",
        "withdrawals",
    )

    def __init__(self, window: float, terms: Terms, clock: Clock) -> None:
        self.now = clock.now
        self.section = Section()
        now = self.now()
        self.deposits = Window(window, now)
        self.withdrawals = Window(window, now)
        self.end = self.deposits.end
        self.tick: Iterator[int] = count()
        self.draw = count()
        self.run = repeat(None, 0)
        self._published = self._issued = self.prepaid = range(0, terms.reserved // terms.one)
        self._granted: list[int] = []
        """Numbers of withdrawals that re-entered a fold, and were let through."""
        self._spoiled: list[int] = []
        """The same, of those that were not."""
        self._paid_from = self._paid_to = 0
        self._terms = terms
        self._tick_from = 0
        self._run_from = 0
        self._skip = 0
        self.earned = 0
        """Deposits entered so far, those that have left the window included."""

    def deposit(self) -> None:
        """Count one deposit at the time it is now."""
        now = self.now()
        if now >= self.end:
            self.section.ask(self.fold, now, otherwise=_skipped)
        next(self.tick)

    def look(self) -> None:
        """Count one deposit that found the run at its end; in a busy slot, let the next ones run on."""
        self.deposit()
        if self._skip:
            self.section.run(self._run_on)

    def _run_on(self) -> None:
        self._enter_run()
        if not length_hint(self.run):  # or somebody else was here first
            self.run, self._run_from = repeat(None, self._skip), self._skip

    def end_run(self) -> None:
        """Let every deposit look from now on."""
        self.section.run(self._end_run)

    def _end_run(self) -> None:
        self._enter_run()
        self.run, self._run_from = repeat(None, 0), 0

    @enters
    def withdraw(self, number: int = -1) -> bool:
        """Count one withdrawal whose number was not prepaid, if the balance pays for it now."""
        section, paid = self.section, False
        # as `ask` does, written out: an exhausted budget comes here with each retry
        for taken in section.patiently() if section.busy else section.entering:  # pragma: no branch
            if not taken:
                if may_wait():
                    continue
                return self._withdrawn_within(number)
            try:
                if section.busy:
                    return self._withdrawn_within(number)
                try:
                    section.busy = True
                    self._prepay(self._settle(self.now()))
                    paid = self._paid_from <= number < self._paid_to or next(self.draw) in self.prepaid
                finally:
                    section.busy = False
            finally:
                for _ in section.leaving:  # pragma: no branch
                    break
            break
        if section.left:
            section.finish()
        return paid

    def _withdrawn_within(self, number: int) -> bool:
        """Count one withdrawal that re-enters a fold."""
        if number < 0:
            number = next(self.draw)
        granted = number in self._published
        (self._granted if granted else self._spoiled).append(number)
        return granted

    def give_back(self) -> None:
        """Forget the newest withdrawal."""
        self.section.run(self._give_back, [1])

    def _give_back(self, owed: list[int]) -> None:
        drawn = self._settle(self.now())
        if owed:
            self.withdrawals.take_back()
            del owed[0]  # once, also where this is run again
        self._prepay(drawn)

    def balance(self) -> float:
        """How many withdrawals the balance pays for."""
        units, _ = self.section.ask(self._folded, otherwise=self._totals)
        return units / self._terms.one

    def share(self) -> float:
        """How much of what the window allows is left."""
        units, withdrawals = self.section.ask(self._folded, otherwise=self._totals)
        left = max(0, units)
        allowed = left + self._terms.one * withdrawals
        return left / allowed if allowed else 0.0

    def _folded(self) -> tuple[int, int]:
        self.fold(self.now())
        return self._totals()

    def _totals(self) -> tuple[int, int]:
        """The balance in units, and the withdrawals."""
        return self._units(), self.withdrawals.total

    def fold(self, now: float) -> None:
        """Enter what was taken into the slot that was open then, and open the slot of `now`; within the section."""
        self._prepay(self._settle(now))

    def agree(self, terms: Terms) -> None:
        """Go by other terms from now on."""
        self.section.run(self._agree, terms)

    def _agree(self, terms: Terms) -> None:
        drawn = self._settle(self.now())
        self._terms = terms
        self._prepay(drawn)

    def disown(self) -> None:
        """Forget all deposits, as they belong to another process."""
        self.section.run(self._disown)

    def _disown(self) -> None:
        drawn = self._settle(self.now())
        self.run, self._run_from = repeat(None, 0), 0
        self.deposits.clear()
        self._prepay(drawn)

    def _settle(self, now: float) -> int:
        """Fold, but for what is prepaid, which is nothing now; the last number drawn."""
        self.prepaid = NOTHING
        ticked, drawn = next(self.tick), next(self.draw)
        self._enter(ticked - self._tick_from)
        self._tick_from = ticked + 1
        self._enter_run()
        issued = self._issued
        paid = min(drawn, issued.stop) - issued.start
        self.withdrawals.add(paid)
        self._issued = NOTHING
        if paid and self._paid_to != issued.start:
            self._paid_from = self._paid_to = issued.start
        if self._paid_to == issued.start:
            # where the range was not at its end the next one follows on it, with the number drawn here between them
            self._paid_to = drawn + 1 if drawn <= issued.stop else issued.stop
        busy = self.deposits.latest
        ahead = self.deposits.roll(now)
        self.withdrawals.roll(now)
        self.end = self.deposits.end
        if ahead:
            # a slot that follows a busy one is expected to be as busy; one after a pause is not
            self._skip = min(SKIP, busy // 4) if ahead == 1 else 0
        return drawn

    def _prepay(self, drawn: int) -> None:
        """Let the next numbers be drawn without a lock, as many as the balance pays for; `drawn` is paid for."""
        first = drawn + 1
        while True:
            if self._granted or self._spoiled:
                self._spoiled.clear()
                while self._granted:
                    self.withdrawals.add(self._granted.pop() > drawn)
                first = next(self.draw) + 1  # after theirs
            allowed = max(0, self._units() // self._terms.one)
            paid_for = range(first, first + allowed)
            if not self._granted and not self._spoiled:
                break
        self._published = self._issued = self.prepaid = paid_for
        if self._granted or self._spoiled:  # between the look and the line above
            drawn = self._settle(self.now())
            counted = range(first, min(drawn, paid_for.stop))
            while self._granted:
                self.withdrawals.add(self._granted.pop() not in counted)
            while self._spoiled:
                if self._spoiled.pop() in counted:
                    self.withdrawals.take_back()
            self._prepay(drawn)

    def _units(self) -> int:
        """The balance, in units of the terms."""
        return self._terms.balance(self.deposits.total, self.withdrawals.total)

    def _enter_run(self) -> None:
        left = length_hint(self.run)
        self._enter(self._run_from - left)
        self._run_from = left

    def _enter(self, deposits: int) -> None:
        self.deposits.add(deposits)
        self.earned += deposits

    def after_fork(self) -> None:
        self.section.after_fork()
        self.deposits.recount()
        self.withdrawals.recount()


class Terms:
    """Ratio and reserve in whole numbers: everything is counted in units of 1/`one` of a retry."""

    __slots__ = ("one", "per_deposit", "reserved")

    def __init__(self, one: int, per_deposit: int, reserved: int) -> None:
        self.one = one
        self.per_deposit = per_deposit
        self.reserved = reserved

    @classmethod
    def of(cls, ratio: float, reserved: float) -> Terms:
        """The terms nearest to these numbers, with denominators up to `FINEST`."""
        earned, per = _fraction(ratio)
        kept, share = _fraction(reserved)
        one = math.lcm(per, share)
        return cls(one, earned * (one // per), kept * (one // share))

    def balance(self, deposits: int, withdrawals: int) -> int:
        """What is left, in units."""
        return self.reserved + self.per_deposit * deposits - self.one * withdrawals


def _fraction(value: float) -> tuple[int, int]:
    """The last convergent of `value` with a denominator up to `FINEST`: 0.29 is 29/100, whatever the float says."""
    numerator, denominator = value.as_integer_ratio()
    before, last = (0, 1), (1, 0)
    while denominator:
        whole = numerator // denominator
        following = (before[0] + whole * last[0], before[1] + whole * last[1])
        if following[1] > FINEST:
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
        self.ratio = number("ratio", ratio, least=0, most=MOST)
        self.reserve = math.inf if reserve == math.inf else number("reserve", reserve, least=0, most=MOST)
        self.window = number("window", window, least=SHORTEST, most=MOST)
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
        if ledger.now() < ledger.end:
            next(ledger.tick)
        else:
            ledger.deposit()

    def look(self) -> None:
        """Deposit for a stand-in that found the ledger's run at its end."""
        if switch.virtual:
            self.timeline.here().deposit()
        else:
            self.timeline.main.look()

    def try_withdraw(self, now: float | None = None) -> bool:
        """Spend one retry, if the balance holds it; `now` spares a look at the clock to who has just looked."""
        if self.boundless:
            return True
        ledger = self.timeline.here() if switch.virtual else self.timeline.main
        if (ledger.now() if now is None else now) >= ledger.end:
            return ledger.withdraw()
        number = next(ledger.draw)
        return number in ledger.prepaid or ledger.withdraw(number)

    def refund(self) -> None:
        """Take the newest withdrawal back: its retry was not made."""
        self.timeline.here().give_back()

    def balance(self) -> float:
        """How many retries could be made now."""
        return math.inf if self.boundless else self.timeline.here().balance()

    def share(self) -> float:
        """How much is left of what the window allows: 1 where nothing was spent, 0 where all is, for a gauge.

        >>> budget = Budget(ratio=0.0, reserve=1.0, window=4.0)
        >>> budget.try_withdraw(), budget.share()
        (True, 0.75)
        """
        return 1.0 if self.boundless else self.timeline.here().share()

    def enter(self, retry: bool) -> Gate | None:
        """Retries are paid for; a first attempt is free (and pays in, if funded by requests)."""
        if retry:
            return None if self.try_withdraw() else self
        if self.funded_by == "request":
            self.deposit()
        return None

    def undo(self, retry: bool) -> None:
        """A first attempt was free, so there is nothing to take back: a refund would be of somebody else's retry."""
        if retry:
            self.refund()

    def leave(self, accepted: bool | None) -> None:
        """What succeeded pays in."""
        if accepted and self.funded_by == "success":
            self.deposit()

    def apart(self) -> Budget:
        if type(self) is not Budget:
            return self
        return Budget(self.ratio, self.reserve, self.window, self.funded_by, self.timeline.clock, self.name)

    def refusal(self) -> str:
        return f"its balance of {self.balance():.3g} retries is spent"

    def settings(self) -> tuple[float, float, float, str]:
        """What makes two budgets alike, whatever they hold."""
        return self.ratio, self.reserve, self.window, self.funded_by

    def _made_from(self) -> dict[str, Any]:
        clockless(self, not self.timeline.ambient)
        names = ("ratio", "reserve", "window", "funded_by", "name")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return (
            f"Budget(ratio={self.ratio:g}, reserve={self.reserve:g}, window={self.window:g},"
            f" funded_by={self.funded_by!r})"
        )


def _skipped(_: float) -> None:
    """Do not fold within a fold: what is deposited now counts in the slot that the outer one opens."""


def _end_runs() -> None:
    for state in forks.kept():
        if isinstance(state, Ledger):
            state.end_run()


before_virtual.append(_end_runs)
