"""The fuse: when most messages fail, it is not the messages.

The rules:

* of what ended in the last `window` seconds, and at least `least` of it, a share of `threshold` has failed: the fuse
  blows, and no message is taken for a while of about `pause` seconds, give or take half;
* an error that a server answered with and that is no overload (a 500) may be the fault of one sender's messages: it is
  left out as long as any other message of the window ended well, and counts like every failure where none did;
* after that one message at a time is taken, on trial. One that succeeds mends the fuse; one that fails blows it again,
  for twice as long, up to `LONGEST` pauses. A trial that lasts for longer than a pause makes room for another;
* what ends while it is blown counts neither way, nor does, during the trials, a message that was taken before it blew;
  and a message that is buried for its own fault says nothing.
"""

from __future__ import annotations

import random
from math import inf

from abate.admit.window import Window
from abate.errors import number, whole
from abate.schedule.backoff import Uniform

LONGEST = 8.0
"""The longest pause, in pauses."""


class Fuse:
    """Stops a consumer from taking messages while a dependency is down. Every method is told the time.

    >>> fuse = Fuse(threshold=0.5, least=4, pause=30.0)
    >>> [fuse.record(False, now=1.0) > 0 for _ in range(4)]
    [False, False, False, True]
    >>> fuse.room(now=2.0), fuse.room(now=60.0)
    (0, 1)
    >>> fuse.record(True, now=61.0), fuse.room(now=61.0)
    (0.0, inf)
    """

    __slots__ = (
        "_chance",
        "_ended",
        "_erred",
        "_failed",
        "_pauses",
        "_trial",
        "blows",
        "least",
        "opens",
        "pause",
        "threshold",
        "window",
    )

    def __init__(
        self,
        threshold: float = 0.5,
        least: int = 20,
        window: float = 60.0,
        pause: float = 30.0,
        rng: Uniform | None = None,
    ) -> None:
        self.threshold = number("threshold", threshold, above=0, most=1)
        self.least = whole("least", least, least=1)
        self.window = number("window", window, least=0.001)
        self.pause = number("pause", pause, above=0)
        self._chance: Uniform = rng or random
        self._ended: Window | None = None
        self._failed: Window | None = None
        self._erred: Window | None = None
        self._pauses = 1.0
        self._trial = False
        self.opens = -inf
        """The instant from which on messages are taken again."""
        self.blows = 0
        """How often it has blown. Note it when a message is taken: `record` tells by it what was taken before."""

    def room(self, now: float) -> float:
        """How many messages may be taken now, whatever is in hand: none, one on trial, or any number."""
        if now < self.opens:
            return 0
        return 1 if self._trial else inf

    def blown(self, now: float) -> float | None:
        """For how many more seconds nothing is taken; 0 during the trials; None while it is whole.

        >>> fuse = Fuse(least=1)
        >>> fuse.blown(now=1.0), fuse.record(False, now=1.0) == fuse.blown(now=1.0), fuse.blown(now=60.0)
        (None, True, 0.0)
        """
        return max(0.0, self.opens - now) if self._trial else None

    def record(self, ok: bool, now: float, taken: int | None = None, answered: bool = False) -> float:
        """A message has ended well, or failed: for how many seconds has that blown the fuse? 0 for not at all.

        `taken` is what `blows` was when the message was taken; None: taken after the fuse last blew. A failure that
        the server `answered` with, and not because of overload, may be this message's own.
        """
        if now < self.opens:
            return 0.0
        if self._trial:
            if taken is not None and taken != self.blows:
                return 0.0
            return self._mend() if ok else self._blow(now, min(2 * self._pauses, LONGEST))
        if self._ended is None or self._failed is None or self._erred is None:
            self._ended, self._failed, self._erred = (Window(self.window, now) for _ in range(3))
        for counted in (self._ended, self._failed, self._erred):
            counted.roll(now)
        self._ended.add(1)
        self._failed.add(not ok and not answered)
        self._erred.add(not ok and answered)
        total, failed, erred = self._ended.total, self._failed.total, self._erred.total
        if total > failed + erred:  # others ended well
            total -= erred
        else:
            failed += erred
        if ok or total < self.least or failed < self.threshold * total:
            return 0.0
        return self._blow(now, 1.0)

    def _mend(self) -> float:
        self._trial = False
        return 0.0

    def _blow(self, now: float, pauses: float) -> float:
        self._trial, self._pauses = True, pauses
        self.blows += 1
        self._ended = self._failed = self._erred = None
        seconds = self.pause * pauses * (0.5 + self._chance.random())
        self.opens = now + seconds
        return seconds
