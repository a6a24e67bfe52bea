"""The event queue, the clock and the random streams of a simulated world."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from abate.clock import MachineTimeout, TimeoutScope
from abate.errors import AbateError

Act = Callable[[Any], object]
Due = tuple[float, Act, Any]
"""An instant, a function, its argument."""

PER_SECOND = 128
"""Spans per second: a power of 2, so that floats represent the edges exactly."""
FOREVER = 1e15
NEVER = int(FOREVER) * PER_SECOND
"""The span of events that never happen."""

MAX_EVENTS_PER_INSTANT = 1_000_000
"""Beyond this the run is taken for one that never advances."""

_when = itemgetter(0)


class Agenda:
    """The clock of a simulated world, and its events.

    >>> agenda = Agenda()
    >>> agenda.at(2.0, print, "two"); agenda.at(1.0, print, "one"); agenda.at(9.0, print, "nine")
    >>> agenda.run(until=5.0)
    one
    two
    >>> agenda.now()
    5.0
    """

    __slots__ = ("__weakref__", "_current", "_end", "_heap", "_later", "_order", "_spans", "ready", "states", "time")

    is_logged = False
    """What happens in a simulated world is not logged by default."""

    def __init__(self) -> None:
        self.time = 0.0
        self.ready: deque[tuple[Act, Any]] = deque()
        self.states: MutableMapping[Any, Any] = WeakKeyDictionary()
        self._order = count().__next__
        self._end = 0.0
        """The end of the current span."""
        self._current: list[Due] = []
        """The events of the current span that were known when it began, the next one last."""
        self._heap: list[tuple[float, int, Act, Any]] = []
        """The events that were added to the current span: instant, order, function, argument."""
        self._later: dict[int, list[Due]] = {}
        self._spans: list[int] = []

    def at(self, when: float, act: Act, what: Any) -> None:
        """Call `act` with `what` at an instant."""
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
        """Call it at the current instant, after the calls that were added before."""
        self.ready.append((act, what))

    @property
    def empty(self) -> bool:
        """Whether there are no events left."""
        return not (self.ready or self._current or self._heap or self._spans)

    def run(self, until: float) -> None:
        """Process all events up to an instant."""
        current, heap, ready, events_now = self._current, self._heap, self.ready, 0
        while True:
            if ready:
                act, what = ready.popleft()
            else:
                # at the same instant, events of the list come before those added since
                if current and not (heap and heap[0][0] < current[-1][0]):
                    when, act, what = due = current.pop()
                    if when > until:
                        current.append(due)
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
                    self.time, events_now = when, 1
                    act(what)
                    continue
            events_now += 1
            if events_now > MAX_EVENTS_PER_INSTANT:
                raise AbateError(
                    f"more than {MAX_EVENTS_PER_INSTANT:,} events happen at {self.time:g} s: time does not advance"
                )
            act(what)
        self.time = max(self.time, until)

    def _open(self, span: int) -> None:
        """Begin the next span."""
        self._current += self._later.pop(span)
        self._current.sort(key=_when)
        self._current.reverse()
        self._end = (span + 1) / PER_SECOND

    # -- the clock interface

    def now(self) -> float:
        """Seconds since the world began."""
        return self.time

    def wall(self) -> float:
        """The same: simulated time begins at the epoch."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Refuse: a simulated world has no threads."""
        raise AbateError("a simulated world can't wait in a thread: its clients are callbacks or coroutines")

    def asleep(self, seconds: float) -> Awaitable[None]:
        """Wait in a task of the coroutine engine."""
        import asyncio

        return asyncio.sleep(seconds if seconds > 0.0 else 0.0)

    def within(self, seconds: float) -> AbstractAsyncContextManager[TimeoutScope]:
        """Cut the block short, in a task of the coroutine engine."""
        return MachineTimeout(seconds)


class RandomStreams:
    """The random streams of one run: one for each purpose, so that one does not change the numbers of another.

    The same seed and name give the same numbers.

    >>> RandomStreams(1).stream("arrivals").random() == RandomStreams(1).stream("arrivals").random()
    True
    >>> RandomStreams(1).stream("arrivals").random() == RandomStreams(1).stream("service").random()
    False
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> Random:
        """Return the stream of this name, from its beginning."""
        return Random(f"{self._seed}/{name}")
