"""Keys in memory as a source: the queue of a controller without a store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from abate.schedule.backoff import Uniform
from abate.values import Value
from abate.work.queue import AsyncWorkQueue
from abate.work.source import Back, Bury, Done, Message, Settlement

MOST_PARKED = 10_000
"""Keys that are kept with the reason for which they were parked; the oldest is forgotten for one more."""


class Parked(Value):
    """Why a key is not worked on: `kind` in one word, what the error said, and where it happened."""

    key: Hashable
    kind: str
    reason: str
    trace: str


class LocalKeys:
    """A source over an `AsyncWorkQueue`. A key that is buried is parked: it stays away until somebody adds it."""

    lease = None
    durable = False

    def __init__(self, name: str, capacity: int | None, rng: Uniform | None) -> None:
        self.name = name
        # the delays come with the verdicts, so that every source has the same
        self.queue: AsyncWorkQueue[Any] = AsyncWorkQueue(capacity=capacity, backoff=[0.0], rng=rng)
        self.parked: dict[Hashable, Parked] = {}
        self._priorities: dict[Hashable, int] = {}
        """Of keys that have one above 0, until they are done: who comes back keeps it."""

    def add(self, key: Hashable, priority: int = 0, after: float = 0.0) -> None:
        """Add a key, now or later; one that is parked comes back to life."""
        if after > 0:
            self.queue.add_after(key, after, priority)
        else:
            self.queue.add(key, priority)
        if priority:
            self._priorities[key] = max(priority, self._priorities.get(key, 0))
        self.parked.pop(key, None)

    async def put(self, key: Hashable) -> None:
        """Add a key, and wait for room where there is none."""
        await self.queue.put(key)
        self.parked.pop(key, None)

    def cancel(self, key: Hashable) -> None:
        """Forget what was planned for a key, and why it was parked."""
        if self.queue.cancel(key):
            self._priorities.pop(key, None)
        self.parked.pop(key, None)

    def waiting(self) -> int:
        """How many keys are ready, or to come later."""
        return len(self.queue) + self.queue.delayed

    def move(self, add: Callable[..., object]) -> None:
        """Hand everything over to another queue, one by one: what can't be added there stays here."""
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

    async def receive(self, most: int, wait: float) -> Sequence[Message]:
        """The next keys."""
        keys = self.queue.take(most)
        if not keys and wait > 0:
            try:
                keys = [await self.queue.get(timeout=wait), *self.queue.take(most - 1)]
            except TimeoutError:
                return ()
        for key in keys:
            self.parked.pop(key, None)  # added while it was in hand
        return [Message(key, receives=self.queue.requeues(key) + 1) for key in keys]

    async def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A key in memory is its worker's until it is settled."""
        return ()

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message]:
        """Carry out the verdicts; a key that is in hand has always room to come back."""
        for message, verdict in settlements:
            key = message.key
            priority = self._priorities.pop(key, 0)
            match verdict:
                case Done(again):
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
        if len(self.parked) > MOST_PARKED:
            del self.parked[next(iter(self.parked))]
