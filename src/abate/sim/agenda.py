"""What happens next in a simulated world: instants in their order, and a clock that stands at the one that is reached.

A heap of all that is due would be slow: of a hundred thousand, the processor finds nothing near. So what is due later
is kept by the span of time that it falls into, and sorted when that begins; only what comes up within its own span
goes through a heap, a small one.

What is due `soon` comes before the next instant, in the order in which it was said: as in an event loop, so that the
engines cannot disagree about what comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from abate.clock import Cut, Within
from abate.errors import AbateError

Act = Callable[[Any], object]
Due = tuple[float, Act, Any]
"""When, and what."""

PER_SECOND = 128
"""Spans per second: a power of 2, so that the end of one is the beginning of the next."""
FOREVER = 1e15
NEVER = int(FOREVER) * PER_SECOND
"""The span of what is never due."""

RESTLESS = 1_000_000
"""Things that may happen at one instant, before this is taken for a world that never goes on."""

_when = itemgetter(0)


class Agenda:
    """The clock of a simulated world, and what is to happen in it.

    >>> agenda = Agenda()
    >>> agenda.at(2.0, print, "two"); agenda.at(1.0, print, "one"); agenda.at(9.0, print, "nine")
    >>> agenda.run(until=5.0)
    one
    two
    >>> agenda.now()
    5.0
    """

    __slots__ = ("__weakref__", "_end", "_heap", "_later", "_line", "_order", "_spans", "ready", "states", "time")

    def __init__(self) -> None:
        self.time = 0.0
        self.ready: deque[tuple[Act, Any]] = deque()
        self.states: MutableMapping[Any, Any] = WeakKeyDictionary()
        self._order = count().__next__
        self._end = 0.0
        """The end of the span that time is in."""
        self._line: list[Due] = []
        """What was due in it when it began, the next one last."""
        self._heap: list[tuple[float, int, Act, Any]] = []
        """What has become due in it since: when, which of those at that instant, and what."""
        self._later: dict[int, list[Due]] = {}
        self._spans: list[int] = []

    def at(self, when: float, act: Act, what: Any) -> None:
        """Have `act` called with `what` at an instant."""
        if when < self._end:
            heappush(self._heap, (when, self._order(), act, what))
            return
        span = int(when * PER_SECOND) if when < FOREVER else NEVER
        try:
            self._later[span].append((when, act, what))
        except KeyError:
            self._later[span] = [(when, act, what)]
            heappush(self._spans, span)

    def soon(self, act: Act, what: Any) -> None:
        """Have it called at this instant, after what was said before."""
        self.ready.append((act, what))

    @property
    def empty(self) -> bool:
        """Is there nothing left to happen?"""
        return not (self.ready or self._line or self._heap or self._spans)

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        line, heap, ready, restless = self._line, self._heap, self.ready, 0
        while True:
            if ready:
                act, what = ready.popleft()
            else:
                # of those at one instant, what has become due since the span began is the later one
                if line and not (heap and heap[0][0] < line[-1][0]):
                    when, act, what = due = line.pop()
                    if when > until:
                        line.append(due)
                        break
                elif heap:
                    when, _, act, what = heap[0]
                    if when > until:
                        break
                    heappop(heap)
                elif self._spans and self._spans[0] / PER_SECOND <= until:
                    self._open(heappop(self._spans))
                    continue
                else:
                    break
                if when > self.time:
                    self.time, restless = when, 1
                    act(what)
                    continue
            restless += 1
            if restless > RESTLESS:
                raise AbateError(f"more than {RESTLESS:,} things happen at {self.time:g} s: time stands still")
            act(what)
        self.time = max(self.time, until)

    def _open(self, span: int) -> None:
        """Go on with the next span."""
        self._line += self._later.pop(span)
        self._line.sort(key=_when)
        self._line.reverse()
        self._end = (span + 1) / PER_SECOND

    # -- the clock, for whatever is driven here

    def now(self) -> float:
        """Seconds since the world began."""
        return self.time

    def wall(self) -> float:
        """The same: simulated time begins in 1970."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Nobody can wait in a thread here."""
        raise AbateError("a simulated world can't wait in a thread: its clients are machines or coroutines")

    def asleep(self, seconds: float) -> Awaitable[None]:
        """Wait in a task of the coroutine engine."""
        import asyncio

        return asyncio.sleep(seconds if seconds > 0.0 else 0.0)

    def within(self, seconds: float) -> AbstractAsyncContextManager[Cut]:
        """Cut the block short, in a task of the coroutine engine."""
        return Within(seconds)
