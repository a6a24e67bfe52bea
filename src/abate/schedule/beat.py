"""Periodic work that does not march in step: an offset that belongs to the key, and ticks on that offset."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import number

LOOK = 60.0
"""Seconds for which a beat with a key sleeps before it looks whether the wall clock was set."""
LOOKS = 64
"""Looks during one period at most: a longer period is looked at less often."""
SET = 1.0
"""Seconds by which the wall clock differs from the other clock's course when it was set; or `SHARE` of a period."""
SHARE = 0.01


def consistent_jitter(key: object, period: float) -> float:
    """The offset of `key` in [0, period): the same on every machine and in every run, keys spread evenly.

    The key is read through ``str`` (bytes as they are), so it must not print its address.

    >>> consistent_jitter("host-7", 60.0) == consistent_jitter("host-7", 60.0)
    True
    >>> 0.0 <= consistent_jitter("host-8", 60.0) < 60.0
    True
    """
    from hashlib import blake2b

    seconds = number("period", period, above=0)
    # a file name may hold what is no text: it is read as it is
    text = key if isinstance(key, bytes) else str(key).encode(errors="surrogatepass")
    digest = blake2b(text, digest_size=8).digest()
    share = (int.from_bytes(digest, "big") >> 11) * 2.0**-53
    return min(share * seconds, math.nextafter(seconds, 0.0))


class Tick(NamedTuple):
    """One beat: the instant it was due on the clock, and how many were left out since the one before."""

    due: float
    missed: int


class ticks:
    """Beats every `period` seconds, for ``for`` and ``async for``.

    With a `key` the beats stand at that key's consistent offset on the wall clock, restarts included; without
    one the first comes at once. Beats are on a fixed grid: they do not drift, and those that pass while the
    body runs are left out (and counted), never made up for. When the wall clock is set, or the machine was
    suspended, the next beat with a key is back at its offset, and at least half a period after the last one.

    >>> import abate
    >>> with abate.testing.VirtualClock() as clock:
    ...     for tick in ticks(10.0):
    ...         clock.advance(25.0 if tick.due == 10.0 else 1.0)
    ...         print(tick)
    ...         if tick.due > 30.0: break
    Tick(due=0.0, missed=0)
    Tick(due=10.0, missed=0)
    Tick(due=40.0, missed=2)
    """

    __slots__ = ("_clock", "_key", "_period")

    def __init__(self, period: float, key: object = None, *, clock: Clock | None = None) -> None:
        self._period = number("period", period, above=0)
        self._key = key
        self._clock = clocks.given(clock)

    def __iter__(self) -> Iterator[Tick]:
        return _Grid(self._period, self._key, self._clock or clocks.current())

    def __aiter__(self) -> AsyncIterator[Tick]:
        return _Grid(self._period, self._key, self._clock or clocks.current())


class _Grid(Iterator[Tick], AsyncIterator[Tick]):
    """The instants ``first + n * period``, each waited for and handed out once at most.

    With a key the grid is moved when the wall clock was set. Not a generator: an async one that is left by ``break``
    has to be closed by hand under trio.
    """

    def __init__(self, period: float, key: object, clock: Clock) -> None:
        now = clock.now()
        self.clock = clock
        self.period = period
        self.offset = None if key is None else consistent_jitter(key, period)
        self.ahead = clock.wall() - now
        """By how much the wall clock was ahead of the other one when it was last looked at."""
        self.first = now if self.offset is None else now + (self.offset - now - self.ahead) % period
        self.count = 0
        self.last: float | None = None
        """The instant that was handed out last."""

    def __next__(self) -> Tick:
        tick = self.next(self.clock.now())
        while (wait := tick.due - self.clock.now()) > 0:
            self.clock.sleep(self.nap(wait))
            tick = self.checked(tick)
        self.last = tick.due
        return tick

    async def __anext__(self) -> Tick:
        tick = self.next(self.clock.now())
        while (wait := tick.due - self.clock.now()) > 0:
            await self.clock.asleep(self.nap(wait))
            tick = self.checked(tick)
        self.last = tick.due
        return tick

    def next(self, now: float) -> Tick:
        """Return the first instant that is not over yet and was not handed out before."""
        if self.was_set(now):
            return self.moved(now)
        if self.last is None:
            return Tick(self.first, 0)
        expected = self.count + 1
        self.count = max(expected, math.ceil((now - self.first) / self.period))
        return Tick(self.first + self.count * self.period, self.count - expected)

    def nap(self, wait: float) -> float:
        """Return the seconds to sleep before looking at the clock again."""
        return wait if self.offset is None else min(wait, max(LOOK, self.period / LOOKS))

    def checked(self, tick: Tick) -> Tick:
        """Return this tick, or the one that takes its place as the wall clock was set."""
        now = self.clock.now()
        return self.moved(now) if self.was_set(now) else tick

    def was_set(self, now: float) -> bool:
        """Has the wall clock been set since the last look? It never has for beats without a key."""
        if self.offset is None:
            return False
        before, self.ahead = self.ahead, self.clock.wall() - now
        if abs(self.ahead - before) > min(SET, SHARE * self.period):
            return True
        self.ahead = before  # what adds up slowly is noticed in the end
        return False

    def moved(self, now: float) -> Tick:
        """Move the grid to the key's offset, and return its first instant."""
        assert self.offset is not None
        earliest = now if self.last is None else max(now, self.last + self.period / 2)
        self.first = earliest + (self.offset - earliest - self.ahead) % self.period
        self.count = 0
        missed = 0 if self.last is None else max(0, round((self.first - self.last) / self.period) - 1)
        return Tick(self.first, missed)
