"""What happens next in a simulated world: one heap of instants, and a clock that stands at the one that is reached.

What is due `soon` comes before the next instant, in the order in which it was said: as in an event loop, so that the
engines cannot disagree about what comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from heapq import heappop, heappush
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from abate.clock import Within
from abate.errors import AbateError

Act = Callable[[Any], object]

RESTLESS = 5_000_000
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

    __slots__ = ("__weakref__", "heap", "order", "ready", "states", "time")

    def __init__(self) -> None:
        self.time = 0.0
        self.heap: list[tuple[float, int, Act, Any]] = []
        self.order = count().__next__
        self.ready: deque[tuple[Act, Any]] = deque()
        self.states: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def at(self, when: float, act: Act, what: Any) -> None:
        """Have `act` called with `what` at an instant."""
        heappush(self.heap, (when, self.order(), act, what))

    def soon(self, act: Act, what: Any) -> None:
        """Have it called at this instant, after what was said before."""
        self.ready.append((act, what))

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        heap, ready, restless = self.heap, self.ready, 0
        while True:
            while ready:
                act, what = ready.popleft()
                act(what)
                restless += 1
            if not heap or heap[0][0] > until:
                break
            when, _, act, what = heappop(heap)
            if when > self.time:
                self.time, restless = when, 0
            elif restless < RESTLESS:
                restless += 1
            else:
                raise AbateError(f"more than {RESTLESS:,} things happen at {self.time:g} s: time stands still")
            act(what)
        if heap:
            self.time = until

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
