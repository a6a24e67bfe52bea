"""Growing pauses before something that has failed is tried again. No clock, no lock.

The pauses grow: 10 s, 20 s, 40 s, … up to five minutes. After five minutes without a failure they start at 10 s again.
The caller must ensure that one thread at a time calls `claim`, `begin` and `end`; any thread may read `on` and `until`.
"""

from __future__ import annotations

from math import inf

FIRST_PAUSE = 10.0
"""The first pause, in seconds."""
MAX_PAUSE = 300.0
"""The longest pause, in seconds; after this long without a failure, pauses start over."""


class Cooldown:
    """Whether something pauses, and until when.

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
        """The last pause, in seconds."""
        self._worked = -inf
        """The instant since which it has worked."""

    def begin(self, now: float, trial: bool) -> float | None:
        """Start a pause after a failure; return its seconds, or None if it is paused already.

        Pass `trial=True` if the failing caller was let through by `claim`.
        """
        if self.on and not trial:
            return None
        if not self.on and now >= self._worked + MAX_PAUSE:
            self.pause = FIRST_PAUSE  # otherwise the pause that the last trial set
        self.on = True
        self.until = now + self.pause
        return self.pause

    def claim(self, now: float) -> bool:
        """Return whether the caller may try it: one may after a pause; if it hangs, another may after a longer one."""
        if not self.on or now < self.until:
            return False
        self.pause = min(2.0 * self.pause, MAX_PAUSE)
        self.until = now + self.pause
        return True

    def end(self, now: float) -> None:
        """End the pauses: it works again."""
        self.on = False
        self._worked = now
