"""What happens next in a simulated world: instants in their order, and a clock that stands at the one that is reached.

Only what is due soon lies in a heap: one of a hundred thousand is slow, as the processor finds nothing of it near. What
is due later is kept by the span of time that it falls into, and becomes the heap when that begins.

What is due `soon` comes before the next instant, in the order in which it was said: as in an event loop, so that the
engines cannot disagree about what comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from abate.clock import Within
from abate.errors import AbateError

Act = Callable[[Any], object]
Due = tuple[float, int, Act, Any]
"""When, which of those at that instant, and what."""

PER_SECOND = 8
"""Spans per second: a power of 2, so that the end of one is the beginning of the next."""
FOREVER = 1e15
NEVER = int(FOREVER) * PER_SECOND
"""The span of what is never due."""

RESTLESS = 1_000_000
"""Things that may happen at one instant, before this is taken for a world that never goes on."""


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

    __slots__ = ("__weakref__", "_end", "_heap", "_later", "_order", "_spans", "ready", "states", "time")

    def __init__(self) -> None:
        self.time = 0.0
        self.ready: deque[tuple[Act, Any]] = deque()
        self.states: MutableMapping[Any, Any] = WeakKeyDictionary()
        self._order = count().__next__
        self._heap: list[Due] = []
        self._end = 0.0
        """The end of the span whose heap that is."""
        self._later: dict[int, list[Due]] = {}
        self._spans: list[int] = []

    def at(self, when: float, act: Act, what: Any) -> None:
        """Have `act` called with `what` at an instant."""
        if when < self._end:
            heappush(self._heap, (when, self._order(), act, what))
            return
        span = int(when * PER_SECOND) if when < FOREVER else NEVER
        due = self._later.get(span)
        if due is None:
            self._later[span] = [(when, self._order(), act, what)]
            heappush(self._spans, span)
        else:
            due.append((when, self._order(), act, what))

    def soon(self, act: Act, what: Any) -> None:
        """Have it called at this instant, after what was said before."""
        self.ready.append((act, what))

    @property
    def empty(self) -> bool:
        """Is there nothing left to happen?"""
        return not (self.ready or self._heap or self._spans)

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        heap, ready, restless = self._heap, self.ready, 0
        while True:
            if ready:
                act, what = ready.popleft()
            elif heap:
                due = heappop(heap)
                when, _, act, what = due
                if when > self.time:
                    if when > until:
                        heappush(heap, due)
                        break
                    self.time, restless = when, 1
                    act(what)
                    continue
            elif self._spans and self._spans[0] / PER_SECOND <= until:
                self._open(heappop(self._spans))
                continue
            else:
                break
            restless += 1
            if restless > RESTLESS:
                raise AbateError(f"more than {RESTLESS:,} things happen at {self.time:g} s: time stands still")
            act(what)
        self.time = max(self.time, until)

    def _open(self, span: int) -> None:
        """Go on with the next span."""
        self._heap += self._later.pop(span)
        heapify(self._heap)
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

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Cut the block short, in a task of the coroutine engine."""
        return Within(seconds)
