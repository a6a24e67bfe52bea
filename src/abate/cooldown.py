"""How long something that has failed is left alone, before it is tried again. Without clock or lock.

The pauses grow: 10 s, 20 s, 40 s, … up to five minutes. What has worked for five minutes begins at 10 s again. Nothing
here has a lock: one thread at a time calls `claim`, `begin` and `end`; any may look at `on` and `until`.
"""

from __future__ import annotations

from math import inf

FIRST = 10.0
"""Seconds of the first pause."""
LONGEST = 300.0
"""Seconds of the longest; and of work without a failure after which the first is the next."""


class Cooldown:
    """Whether something is left alone, and until when.

    >>> cooldown = Cooldown()
    >>> cooldown.begin(now=0.0, trial=False), cooldown.claim(now=9.0), cooldown.claim(now=10.0)
    (10.0, False, True)
    >>> cooldown.begin(now=10.5, trial=True), cooldown.until
    (20.0, 30.5)
    """

    __slots__ = ("_worked", "on", "pause", "until")

    def __init__(self) -> None:
        self.on = False
        self.until = -inf
        self.pause = 0.0
        """Seconds of the last pause."""
        self._worked = -inf
        """Since when it has worked."""

    def begin(self, now: float, trial: bool) -> float | None:
        """Leave it alone, as it has failed; return for how long, or None if it is left alone already.

        A `trial` is a failure of the one that has claimed to try it.
        """
        if self.on and not trial:
            return None
        if not self.on and now >= self._worked + LONGEST:
            self.pause = FIRST  # otherwise as long as the last trial made it
        self.on = True
        self.until = now + self.pause
        return self.pause

    def claim(self, now: float) -> bool:
        """May the caller try it? One may when a pause is over; if it does not come back, another after a longer one."""
        if not self.on or now < self.until:
            return False
        self.pause = min(2.0 * self.pause, LONGEST)
        self.until = now + self.pause
        return True

    def end(self, now: float) -> None:
        """It works again."""
        self.on = False
        self._worked = now
