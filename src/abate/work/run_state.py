"""Holds the state that the parts of one run of a consumer or controller share: above all the messages in flight."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import Counter, deque
from collections.abc import Iterator
from math import inf

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.work.source import Message, Source, Verdict


class Delivery:
    """A message in flight.

    * `task`: its handler; None while it waits for others. `started`: the handler was called, at the instant `began`.
      Before that, `began` is when the message was given to the workers. `ended`: when a plain function returned.
    * `verdict`: what was decided; `settle_tries` attempts to send it have failed, the first at `first_settle_try`.
    * `trips`: how often the circuit breaker had tripped when the handler started.
    * `leased`: the instant from which its lease runs. `lease_lost`: its lease ran out.
    * `cancelled_by_grace`: its handler was cancelled when the grace was over.
    * `stuck`: its handler exceeded its timeout and can't be stopped. `replaced`: another worker took its place.
    """

    __slots__ = (
        "began",
        "cancelled_by_grace",
        "ended",
        "first_settle_try",
        "lease_lost",
        "leased",
        "message",
        "replaced",
        "settle_tries",
        "started",
        "stuck",
        "task",
        "trips",
        "verdict",
    )

    def __init__(self, message: Message, now: float = inf) -> None:
        self.message = message
        self.leased = now
        self.task: Task[None] | None = None
        self.began = self.ended = inf
        self.started = False
        self.verdict: Verdict | None = None
        self.settle_tries = 0
        self.first_settle_try = inf
        self.trips = 0
        self.lease_lost = False
        self.cancelled_by_grace = False
        self.stuck = False
        self.replaced = False

    @property
    def is_waiting(self) -> bool:
        """Return whether its handler has not started, and nothing was decided."""
        return self.task is None and self.verdict is None

    @property
    def is_running(self) -> bool:
        """Return whether its handler runs, or waits for a worker."""
        return self.task is not None and self.verdict is None

    def start(self, now: float) -> None:
        """Note that its handler is called."""
        self.began, self.started = now, True


class InFlight:
    """The messages in flight, in the order of their arrival.

    >>> in_flight = InFlight()
    >>> first, second = Message("a", group="g"), Message("b", group="g")
    >>> in_flight.add(first).message is first, in_flight.add(second)
    (True, None)
    >>> in_flight.remove(first).message is second, len(in_flight)
    (True, 1)
    """

    __slots__ = ("_deliveries", "_groups")

    def __init__(self) -> None:
        self._deliveries: dict[Message, Delivery] = {}
        self._groups: dict[str, deque[Delivery]] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.copy().values())  # a copy, as other threads read the health

    def get(self, message: Message) -> Delivery | None:
        """Return the delivery of a message, if it is in flight."""
        return self._deliveries.get(message)

    def add(self, message: Message, now: float = inf) -> Delivery | None:
        """Add a message that was received now.

        Return its delivery if it can start; None if it waits behind others of its group.
        """
        delivery = self._deliveries[message] = Delivery(message, now)
        if message.group is None:
            return delivery
        group = self._groups.setdefault(message.group, deque())
        group.append(delivery)
        return delivery if len(group) == 1 else None

    def waiting_behind(self, delivery: Delivery) -> list[Delivery]:
        """Return the messages that wait behind this one in its group."""
        if delivery.message.group is None:
            return []
        group = list(self._groups[delivery.message.group])
        return [other for other in group[group.index(delivery) + 1 :] if other.is_waiting]

    def remove(self, message: Message) -> Delivery | None:
        """Remove a message. Return the delivery of its group that can start now, if there is one."""
        delivery = self._deliveries.pop(message, None)
        if delivery is None or message.group is None:
            return None
        group = self._groups[message.group]
        group.remove(delivery)
        if not group:
            del self._groups[message.group]
            return None
        return group[0] if group[0].is_waiting else None

    def clear(self) -> None:
        """Remove all messages."""
        self._deliveries.clear()
        self._groups.clear()


class RunState:
    """The messages in flight, the tally, and the signals between the tasks of one run."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.source = source
        self.clock: Clock = clocks.current()
        self.in_flight = InFlight()
        self.tally: Counter[str] = Counter()
        self.draining = False
        """Whether the run ends when no messages are left."""
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when any state changes that a task of the run may wait for."""

    @property
    def ending(self) -> bool:
        """Return whether the run ends once the queue is empty, or sooner."""
        return self.draining or self.stopping.is_set()

    @property
    def takes_no_more(self) -> bool:
        """Return whether no more messages are received: after a stop, a durable source keeps its waiting messages."""
        return self.stopping.is_set() and self.source.durable

    async def wait_for_change(self, seconds: float | None) -> None:
        """Wait until the state changes, for at most `seconds`; None for no limit."""
        self.changed.clear()
        if seconds is None:
            await self.changed.wait()
        else:
            await self.wait_for(self.changed, seconds)

    async def wait_for(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until an event is set, for at most `seconds`."""
        try:
            cut = self.clock.within(seconds)
            async with cut:
                await event.wait()
        except AttemptTimeout:
            pass
