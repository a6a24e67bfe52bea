"""Keys that failed, and when each may be tried again: an add does not hasten them for free. Without I/O.

A key that fails goes back with a delay. An add makes it ready at once, in memory and in every store; a store knows
nothing of budgets. So the process that receives it decides, by what it remembers of its own verdicts:

* its time has come, or it has succeeded since, here or elsewhere: it is tried;
* it came early, because somebody added it: that is a retry, and is tried if the retry budget pays for it;
* otherwise it goes back for the rest of its time. The add is not lost: the key is looked at then.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

from abate.admit.budget import Budget
from abate.work.source import Back, Message, Verdict

MOST = 100_000
"""Keys that are remembered; the one that failed longest ago is forgotten for one more, and may be hastened."""
TOLERANCE = 0.05
"""A key may come earlier by this part of its delay: clocks don't agree to the millisecond."""


class Pauses:
    """The pauses of the keys that this process has sent back. Every method that needs the time is told it.

    >>> pauses = Pauses(Budget(ratio=0.0, reserve=0.1, window=10.0))
    >>> pauses.settled(Message("orders/42"), Back(60.0), now=0.0)
    >>> again = Message("orders/42", receives=2)
    >>> pauses.rest(again, now=10.0)  # somebody has added it, and the budget pays for one retry
    0.0
    >>> pauses.settled(again, Back(60.0), now=10.0)
    >>> pauses.rest(again, now=20.0), pauses.rest(again, now=70.0)
    (50.0, 0.0)
    """

    __slots__ = ("_budget", "_until")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._until: dict[Hashable, tuple[float, float]] = {}  # and how long the pause is; the oldest first

    def __len__(self) -> int:
        return len(self._until)

    def settled(self, message: Message, verdict: Verdict, now: float) -> None:
        """A message was worked on, and this is its verdict."""
        self._until.pop(message.key, None)
        match verdict:
            case Back(after, touched=True) if after > 0:
                self._until[message.key] = (now + after, after)
                if len(self._until) > MOST:
                    with suppress(RuntimeError):  # another thread forgets a key at this moment
                        self._until.pop(next(iter(self._until)), None)
            case _:
                pass

    def rest(self, message: Message, now: float) -> float:
        """Return the seconds for which a message that was received has to go back: 0 if it may be tried now."""
        until, length = self._until.get(message.key, (now, 0.0))
        left = until - now
        # one that is received for the first time has succeeded since, or was buried; more left than the whole pause
        # means, unless it is by rounding, that the clock changed: ignore it
        waits = TOLERANCE * length < left <= (1.0 + TOLERANCE) * length
        if message.receives <= 1 or not waits or self._budget.try_withdraw():
            self._until.pop(message.key, None)
            return 0.0
        return left

    def forget(self, key: Hashable) -> None:
        """A key is gone: if it comes again, it is new."""
        self._until.pop(key, None)
