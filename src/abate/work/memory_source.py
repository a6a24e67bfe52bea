"""Implements the source of a controller without a store: its keys are in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from abate.frozen import Frozen
from abate.schedule.backoff import RandomSource
from abate.work.source import Back, Bury, Done, Message, Settlement
from abate.work.work_queue import AsyncWorkQueue

if TYPE_CHECKING:
    from abate.stores import Depth

MAX_PARKED = 10_000
"""Parked keys that are kept; beyond that, the oldest is forgotten."""
AHEAD_SECONDS = 0.002
"""Seconds for which the keys received ahead keep the workers busy: several hand-overs between event loop and threads.

Not more: a key that was received ahead is in hand, so keys of higher priorities come after it.
"""


class Parked(Frozen):
    """A parked key: the `kind` of failure in one word, the text of the error, and its traceback."""

    key: Hashable
    kind: str
    reason: str
    trace: str


class MemorySource:
    """A source over an `AsyncWorkQueue`. A buried key is parked: it is not handled until it is added again."""

    lease = None
    durable = False
    receives_ahead = True
    ahead_seconds = AHEAD_SECONDS

    def __init__(self, name: str, capacity: int | None, rng: RandomSource | None) -> None:
        self.name = name
        # the verdicts contain the delays, as for every source
        self.queue: AsyncWorkQueue[Any] = AsyncWorkQueue(capacity=capacity, backoff=[0.0], rng=rng)
        self.parked: dict[Hashable, Parked] = {}
        self._priorities: dict[Hashable, int] = {}
        """Priorities above 0, which a key keeps until it is done."""

    def add(self, key: Hashable, priority: int = 0, after: float = 0.0) -> None:
        """Add a key, now or later; a parked key is unparked."""
        if after > 0:
            self.queue.add_after(key, after, priority)
        else:
            self.queue.add(key, priority)
        if priority:
            self._priorities[key] = max(priority, self._priorities.get(key, 0))
        self.parked.pop(key, None)

    async def put(self, key: Hashable) -> None:
        """Add a key; wait while the queue is full."""
        await self.queue.put(key)
        self.parked.pop(key, None)

    def cancel(self, key: Hashable) -> None:
        """Cancel a delayed key, and unpark it."""
        if self.queue.cancel(key):
            self._priorities.pop(key, None)
        self.parked.pop(key, None)

    def waiting(self) -> int:
        """Return how many keys are ready or delayed."""
        return len(self.queue) + self.queue.delayed

    def depth(self) -> Depth:
        """Count the keys by state."""
        from abate.stores import Depth

        queue = self.queue
        ready = len(queue)
        return Depth(ready, queue.delayed, queue.in_hand, len(self.parked), queue.age() if ready else None)

    def move_to(self, add: Callable[..., object]) -> None:
        """Move all keys to another queue, one by one; a key that can't be added there stays here."""
        for key, after, priority in self.queue.plans():
            add(key, priority=priority, after=after)
            self.queue.cancel(key)
        while keys := self.queue.take(1):
            (key,) = keys
            priority = self._priorities.pop(key, 0)
            try:
                add(key, priority=priority)
            except BaseException:
                self.add(key, priority)
                raise
            finally:
                self.queue.done(key)

    async def receive(self, max_messages: int, wait: float, ahead: int = 0) -> Sequence[Message]:
        """Return the next keys, and `ahead` more if there are as many. Wait for the first of them only."""
        keys = self.queue.take(max_messages + ahead)
        if not keys and wait > 0:
            try:
                keys = [await self.queue.get(timeout=wait), *self.queue.take(max_messages - 1)]
            except TimeoutError:
                return ()
        for key in keys:
            self.parked.pop(key, None)  # it was added while in flight
        return [Message(key, receives=self.queue.requeues(key) + 1) for key in keys]

    async def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Do nothing: a key in memory has no lease."""
        return ()

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message]:
        """Carry out the verdicts. The capacity does not apply to a key that comes back."""
        for message, verdict in settlements:
            key = message.key
            priority = self._priorities.pop(key, 0)
            match verdict:
                case Done(again):
                    if message.receives > 1:
                        self.queue.forget(key)
                    if again is not None:
                        self.queue.add_after(key, again)
                case Back(after, touched):
                    if touched:
                        self.queue.add_rate_limited(key, priority, least=after)
                    else:
                        self.queue.add_after(key, after, priority)
                    if priority:
                        self._priorities[key] = priority
                case Bury(kind, reason, trace):
                    self.queue.forget(key)
                    self._park(Parked(key, kind, reason, trace))
            self.queue.done(key)
        return ()

    def _park(self, parked: Parked) -> None:
        self.parked[parked.key] = parked
        if len(self.parked) > MAX_PARKED:
            del self.parked[next(iter(self.parked))]
