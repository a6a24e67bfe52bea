"""Keeps the backoff of failed keys when they are added again, without I/O.

A key that fails goes back with a delay. An add makes it ready at once, in memory and in every store, as stores don't
know retry budgets. So the process that receives the key decides by the verdicts that it remembers:

* The delay is over, or the key has succeeded since, here or elsewhere: it is handled.
* It comes early, because it was added: that is a retry, and is handled if the retry budget allows it.
* Otherwise it goes back for the rest of its delay. The add is not lost: the key is handled then.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

from abate.admit.budget import Budget
from abate.work.source import Back, Message, Verdict

MAX_KEYS = 100_000
"""Keys that are remembered; beyond that, the key that failed longest ago is forgotten, and may come early."""
EARLY_TOLERANCE = 0.05
"""A key may come early by this fraction of its delay, as clocks differ."""


class BackoffGuard:
    """The backoffs of the keys that failed in this process. Callers pass the time.

    >>> backoff_guard = BackoffGuard(Budget(ratio=0.0, reserve=0.1, window=10.0))
    >>> backoff_guard.record(Message("orders/42"), Back(60.0), now=0.0)
    >>> again = Message("orders/42", receives=2)
    >>> backoff_guard.remaining(again, now=10.0)  # it was added again, and the budget allows one retry
    0.0
    >>> backoff_guard.record(again, Back(60.0), now=10.0)
    >>> backoff_guard.remaining(again, now=20.0), backoff_guard.remaining(again, now=70.0)
    (50.0, 0.0)
    """

    __slots__ = ("_budget", "_until")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._until: dict[
            Hashable, tuple[float, float]
        ] = {}  # the end and the length of each backoff, the oldest first

    def __len__(self) -> int:
        return len(self._until)

    def record(self, message: Message, verdict: Verdict, now: float) -> None:
        """Note the verdict on a message that was handled."""
        self._until.pop(message.key, None)
        match verdict:
            case Back(after, touched=True) if after > 0:
                self._until[message.key] = (now + after, after)
                if len(self._until) > MAX_KEYS:
                    with suppress(RuntimeError):  # another thread forgets a key at this moment
                        self._until.pop(next(iter(self._until)), None)
            case _:
                pass

    def remaining(self, message: Message, now: float) -> float:
        """Return the seconds for which a received message has to go back; 0 if it may be handled now."""
        until, length = self._until.get(message.key, (now, 0.0))
        left = until - now
        # A key that is received for the first time has succeeded since, or was buried. If more is left than the whole
        # delay (plus rounding), the clock has changed: ignore the backoff.
        waits = EARLY_TOLERANCE * length < left <= (1.0 + EARLY_TOLERANCE) * length
        if message.receives <= 1 or not waits or self._budget.try_withdraw():
            self._until.pop(message.key, None)
            return 0.0
        return left

    def forget(self, key: Hashable) -> None:
        """Forget a key."""
        self._until.pop(key, None)
