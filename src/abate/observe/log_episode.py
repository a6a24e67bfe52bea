"""A run of events of one kind, and the rules for when it is over.

* A `window` has one summary of the counted events, written by the next event after it: so a summary says "more" only
  while events still come.
* An episode is over after `quiet` seconds without an event, or after twice the longest pause since the last summary if
  that is longer (events every 15 seconds are not over after 10), and after a window in any case.
* Events that return within a window belong to the same episode, and it is reported as over at most once per window: a
  dependency that flaps is not a line per flap.
"""

from __future__ import annotations

from math import inf

from abate.atomic_counter import AtomicCounter

QUIET_PAUSES = 2.0
"""An episode is over after this many times its longest pause."""


class LogEpisode:
    """The events of an episode, how many of them were reported, and when.

    >>> episode = LogEpisode(now=0.0)
    >>> episode.record_counted(2.0)
    >>> episode.due(window=60.0, quiet=10.0), episode.take_count(12.0)
    (12.0, 1)
    """

    __slots__ = ("_calmed", "_count", "_pause", "_told", "began", "is_long", "last", "lines_written")

    def __init__(self, now: float) -> None:
        self._count = AtomicCounter()
        self._told = 0
        self._calmed = -inf  # when it was last reported as over
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin a new episode. A count that another thread adds right now is reported later."""
        self.last = now
        """The time of the last event."""
        self.began = now
        """The time since which counted events have not been reported."""
        self.lines_written = 0
        """Events that were a line each."""
        self.is_long = False
        """Has it exceeded its burst, so that events are counted, and not been reported as over?"""
        self._pause = 0.0

    @property
    def untold(self) -> int:
        """Events counted and not yet reported."""
        return self._count.read() - self._told

    def record(self, now: float) -> None:
        """Note an event."""
        pause = now - self.last
        if pause > self._pause:
            self._pause = pause
        self.last = now

    def record_counted(self, now: float) -> None:
        """Note an event that is not a line, and count it."""
        self._count.add()
        self.record(now)

    def take_count(self, now: float) -> int:
        """Return the number of unreported events, and start counting anew."""
        more = self.untold
        self._told += more
        self.began = now
        self._pause = 0.0
        return more

    def mark_over(self, now: float) -> None:
        """Note that it was reported as over."""
        self.is_long = False
        self._calmed = now

    def due(self, window: float, quiet: float) -> float:
        """Return the instant at which it is over if no event comes; infinite if there is nothing to report."""
        if not self.is_long and not self.untold:
            return inf
        return max(self.last + min(window, max(quiet, QUIET_PAUSES * self._pause)), self._calmed + window)
