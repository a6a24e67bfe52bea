"""Queues of keys: for threads, and for the tasks of asyncio and trio. See `abate.work` for what they guarantee."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import closing
from math import inf
from typing import TypeAlias, TypeVar

from abate.admit.bells import AsyncioBell, ThreadBell, TrioBell
from abate.clock import MACHINE, Clock, in_trio
from abate.errors import AttemptTimeout
from abate.work.front import Front
from abate.work.keys import QueueFull
from abate.work.lines import Steps, patience

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

BREATH = 64
"""Of this many calls of an `AsyncWorkQueue` that need not wait, one lets other tasks run."""


class WorkQueue(Front[K]):
    """A queue of keys for threads; see `abate.work` for what it guarantees.

    * `capacity`: so many keys wait at most, those of later included; None for no bound.
    * `backoff`: of a key that fails, as for a policy.
    * `rate`, `burst`: keys that fail come back at this rate at most, all together.
    * `clock`, `rng`: its own time and chance.

    >>> queue = WorkQueue(capacity=100)
    >>> queue.add("orders/42"); queue.add("orders/42")
    >>> key = queue.get()
    >>> queue.done(key)
    >>> len(queue)
    0
    """

    __slots__ = ()

    def put(self, key: K, priority: int = 0, *, timeout: float | None = None) -> None:
        """Add a key, and wait for room where the queue is full: TimeoutError where there is none in time.

        >>> queue = WorkQueue(capacity=1)
        >>> queue.put("a")
        >>> queue.put("b", timeout=0.001)
        Traceback (most recent call last):
        TimeoutError: the queue has had no room for 0.001 s
        """
        patience(timeout)
        try:
            self.add(key, priority)
        except QueueFull:
            clock, bell = self._here(), ThreadBell()
            _waited(self._putting(key, priority, bell, clock, timeout), bell, clock)

    def get(self, timeout: float | None = None) -> K:
        """The next key: it is yours until `done`. TimeoutError where there is none in time, `ShutDown` at the end.

        >>> WorkQueue().get(timeout=0.0)
        Traceback (most recent call last):
        TimeoutError: no key within 0.0 s
        """
        key = self._at_once()
        if key is not None:
            return key
        got: list[K] = []
        try:
            clock, bell = self._here(), ThreadBell()
            return _waited(self._getting(bell, clock, timeout, got), bell, clock)
        except BaseException:
            self._give_back(got)
            raise

    def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until everything that was ready has been done: TimeoutError where it is not in time.

        >>> queue = WorkQueue()
        >>> queue.drain()
        """
        patience(timeout)
        self.shutdown()
        clock, bell = self._here(), ThreadBell()
        _waited(self._draining(bell, clock, timeout), bell, clock)

    def shutdown(self, drain: bool = False) -> None:
        """Take no more keys: what is ready is still delivered, what was to come later is not.

        With `drain`, wait until all of it has been done, as `drain` does.

        >>> queue = WorkQueue()
        >>> queue.shutdown(drain=True)
        """
        super().shutdown()
        if drain:
            self.drain()


class AsyncWorkQueue(Front[K]):
    """A queue of keys for tasks of asyncio or trio: as `WorkQueue`, with `get`, `put` and `drain` awaited.

    >>> import asyncio
    >>> async def main():
    ...     queue = AsyncWorkQueue()
    ...     queue.add("a")
    ...     key = await queue.get()
    ...     queue.done(key)
    ...     await queue.drain()
    ...     return key
    >>> asyncio.run(main())
    'a'
    """

    __slots__ = ()

    async def put(self, key: K, priority: int = 0, *, timeout: float | None = None) -> None:
        """Add a key, and wait for room where the queue is full; see `WorkQueue.put`."""
        patience(timeout)
        if not next(self._calls) % BREATH:
            await MACHINE.asleep(0.0)
        try:
            self.add(key, priority)
        except QueueFull:
            clock, bell = self._here(), _bell()
            await _awaited(self._putting(key, priority, bell, clock, timeout), bell, clock)

    async def get(self, timeout: float | None = None) -> K:
        """The next key; see `WorkQueue.get`."""
        if not next(self._calls) % BREATH:
            await MACHINE.asleep(0.0)  # before it has a key, which a cancellation would lose
        key = self._at_once()
        if key is not None:
            return key
        got: list[K] = []
        try:
            clock, bell = self._here(), _bell()
            return await _awaited(self._getting(bell, clock, timeout, got), bell, clock)
        except BaseException:
            self._give_back(got)
            raise

    async def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until everything that was ready has been done; see `WorkQueue.drain`."""
        patience(timeout)
        self.shutdown()
        clock, bell = self._here(), _bell()
        await _awaited(self._draining(bell, clock, timeout), bell, clock)


TaskBell: TypeAlias = AsyncioBell | TrioBell


def _bell() -> TaskBell:
    return TrioBell() if in_trio() else AsyncioBell()


def _waited(steps: Steps[T], bell: ThreadBell, clock: Clock) -> T:
    """Take the steps of a wait in this thread."""
    with closing(steps):
        try:
            until = next(steps)
            while True:
                until = steps.send(bell.wait(clock, until - clock.now()))
        except StopIteration as end:
            answer: T = end.value
            return answer


async def _awaited(steps: Steps[T], bell: TaskBell, clock: Clock) -> T:
    """Take the steps of a wait in this task."""
    with closing(steps):
        try:
            until = next(steps)
            while True:
                rung = await _rung(bell, clock, until)
                bell.rearm()
                until = steps.send(rung)
        except StopIteration as end:
            answer: T = end.value
            return answer


async def _rung(bell: TaskBell, clock: Clock, until: float) -> bool:
    """Listen for a bell until an instant: did it ring?"""
    if until == inf:
        await bell.rung()
        return True
    try:
        cut = clock.within(max(0.0, until - clock.now()))
        async with cut:
            await bell.rung()
            return True
    except AttemptTimeout:
        return False
