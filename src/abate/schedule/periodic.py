"""Periodic work spread over the period: a fixed offset per key, and ticks at that offset."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import number

CLOCK_CHECK_SECONDS = 60.0
"""Seconds for which a ticker with a key sleeps before it checks whether the wall clock was set."""
CLOCK_CHECKS = 64
"""The maximum number of checks during one period."""
CLOCK_SET_SECONDS = 1.0
"""The wall clock was set if it differs by this many seconds, or `CLOCK_SET_SHARE` of a period, from what the monotonic
clock predicts."""
CLOCK_SET_SHARE = 0.01


def consistent_jitter(key: object, period: float) -> float:
    """Return the offset of `key` in [0, period): the same on every machine and in every run, with keys spread evenly.

    The key is converted with ``str`` (bytes are used unchanged), so its text must not contain a memory address.

    >>> consistent_jitter("host-7", 60.0) == consistent_jitter("host-7", 60.0)
    True
    >>> 0.0 <= consistent_jitter("host-8", 60.0) < 60.0
    True
    """
    from hashlib import blake2b

    seconds = number("period", period, above=0)
    # file names may contain bytes that are no text
    text = key if isinstance(key, bytes) else str(key).encode(errors="surrogatepass")
    digest = blake2b(text, digest_size=8).digest()
    share = (int.from_bytes(digest, "big") >> 11) * 2.0**-53
    return min(share * seconds, math.nextafter(seconds, 0.0))


class Tick(NamedTuple):
    """One tick: the instant at which it was due on the clock, and how many were skipped before it."""

    due: float
    missed: int


class ticks:
    """Return an iterator that ticks every `period` seconds, for ``for`` and ``async for``.

    With a `key` the ticks are at that key's consistent offset on the wall clock, also after a restart; without
    one the first comes at once. Ticks are on a fixed grid: they do not drift, and those that pass while the
    body runs are skipped (and counted). When the wall clock is set, or the machine was suspended, the next tick
    with a key is back at its offset, and at least half a period after the last one.

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
        self._clock = clocks.as_clock(clock)

    def __iter__(self) -> Iterator[Tick]:
        return _TickIterator(self._period, self._key, self._clock or clocks.current())

    def __aiter__(self) -> AsyncIterator[Tick]:
        return _TickIterator(self._period, self._key, self._clock or clocks.current())


class _TickIterator(Iterator[Tick], AsyncIterator[Tick]):
    """The instants ``first + n * period``, each returned at most once.

    With a key the grid is moved when the wall clock was set. This is no generator, because under trio an async
    generator that is left by ``break`` has to be closed by hand.
    """

    def __init__(self, period: float, key: object, clock: Clock) -> None:
        now = clock.now()
        self.clock = clock
        self.period = period
        self.offset = None if key is None else consistent_jitter(key, period)
        self.wall_offset = clock.wall() - now
        """Seconds by which the wall clock was ahead of the monotonic one at the last check."""
        self.first = now if self.offset is None else now + (self.offset - now - self.wall_offset) % period
        self.count = 0
        self.last: float | None = None
        """The instant that was returned last."""

    def __next__(self) -> Tick:
        tick = self.next(self.clock.now())
        while (wait := tick.due - self.clock.now()) > 0:
            self.clock.sleep(self.sleep_seconds(wait))
            tick = self.recheck(tick)
        self.last = tick.due
        return tick

    async def __anext__(self) -> Tick:
        tick = self.next(self.clock.now())
        while (wait := tick.due - self.clock.now()) > 0:
            await self.clock.asleep(self.sleep_seconds(wait))
            tick = self.recheck(tick)
        self.last = tick.due
        return tick

    def next(self, now: float) -> Tick:
        """Return the first instant that has not passed and was not returned before."""
        if self.clock_was_set(now):
            return self.realign(now)
        if self.last is None:
            return Tick(self.first, 0)
        expected = self.count + 1
        self.count = max(expected, math.ceil((now - self.first) / self.period))
        return Tick(self.first + self.count * self.period, self.count - expected)

    def sleep_seconds(self, wait: float) -> float:
        """Return the seconds to sleep before reading the clock again."""
        return wait if self.offset is None else min(wait, max(CLOCK_CHECK_SECONDS, self.period / CLOCK_CHECKS))

    def recheck(self, tick: Tick) -> Tick:
        """Return this tick, or the one that replaces it because the wall clock was set."""
        now = self.clock.now()
        return self.realign(now) if self.clock_was_set(now) else tick

    def clock_was_set(self, now: float) -> bool:
        """Return whether the wall clock was set since the last check; always False without a key."""
        if self.offset is None:
            return False
        before, self.wall_offset = self.wall_offset, self.clock.wall() - now
        if abs(self.wall_offset - before) > min(CLOCK_SET_SECONDS, CLOCK_SET_SHARE * self.period):
            return True
        self.wall_offset = before  # small differences add up until they are noticed
        return False

    def realign(self, now: float) -> Tick:
        """Move the grid to the key's offset, and return its first instant."""
        assert self.offset is not None
        earliest = now if self.last is None else max(now, self.last + self.period / 2)
        self.first = earliest + (self.offset - earliest - self.wall_offset) % self.period
        self.count = 0
        missed = 0 if self.last is None else max(0, round((self.first - self.last) / self.period) - 1)
        return Tick(self.first, missed)
