"""Events of one kind that have not stopped coming, and when it can be said that they have.

The rules:

* Within a `window` there is one summary of what was counted, written by an event that comes after it: so it is only
  said that it goes on while it does.
* It is over when nothing has come for `quiet` seconds, or for twice the longest pause since the last summary, if that
  is more (what comes every 15 seconds is not over after 10), and after a window in any case.
* What comes back within a window belongs to the same episode, and a window passes before it is said to be over again:
  a dependency that flaps is not a line per flap.
"""

from __future__ import annotations

from math import inf

from abate.counts import Tick

PAUSES = 2.0
"""Of the longest pause: what has been quiet for so many of them is over."""


class Episode:
    """What has come, what of it was told, and when.

    >>> episode = Episode(now=0.0)
    >>> episode.counted(2.0)
    >>> episode.due(window=60.0, quiet=10.0), episode.tell(12.0)
    (12.0, 1)
    """

    __slots__ = ("_calmed", "_count", "_pause", "_told", "began", "last", "long", "shown")

    def __init__(self, now: float) -> None:
        self._count = Tick()
        self._told = 0
        self._calmed = -inf  # when it was last said to be over
        self.begin(now)

    def begin(self, now: float) -> None:
        """What comes now is a first again. A count that another thread is just making is not lost, but told later."""
        self.last = now
        """When the last event came."""
        self.began = now
        """Since when what is counted has not been told."""
        self.shown = 0
        """Events that were a line each."""
        self.long = False
        """Is it more than its burst, so that what comes is counted, and has not been said to be over?"""
        self._pause = 0.0

    @property
    def more(self) -> int:
        """Events that were counted and not told yet."""
        return self._count.read() - self._told

    def came(self, now: float) -> None:
        """An event has come."""
        pause = now - self.last
        if pause > self._pause:
            self._pause = pause
        self.last = now

    def counted(self, now: float) -> None:
        """An event has come that is no line of its own."""
        self._count.add()
        self.came(now)

    def tell(self, now: float) -> int:
        """How many there were; from here on they are counted anew."""
        more = self.more
        self._told += more
        self.began = now
        self._pause = 0.0
        return more

    def calm(self, now: float) -> None:
        """It is said to be over."""
        self.long = False
        self._calmed = now

    def due(self, window: float, quiet: float) -> float:
        """The instant at which it is over, if nothing else comes; infinite where there is nothing to say."""
        if not self.long and not self.more:
            return inf
        return max(self.last + min(window, max(quiet, PAUSES * self._pause)), self._calmed + window)
