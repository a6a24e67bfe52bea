"""Implements `WorkQueue` for threads and `AsyncWorkQueue` for asyncio and trio tasks.

See `abate.work` for their guarantees.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import closing
from math import inf
from typing import TypeAlias, TypeVar

from abate.clock import MACHINE, Clock, in_trio
from abate.errors import AttemptTimeout
from abate.wakeups import AsyncioWakeup, ThreadWakeup, TrioWakeup
from abate.work.key_queue import QueueFull
from abate.work.queue_waiters import Steps, wait_seconds
from abate.work.work_queue_base import BaseWorkQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

YIELD_EVERY = 64
"""Every 64th call of an `AsyncWorkQueue` lets other tasks run, even if it need not wait."""


class WorkQueue(BaseWorkQueue[K]):
    """A queue of keys for threads; see `abate.work` for its guarantees.

    * `capacity`: the maximum number of waiting keys, delayed keys included; None for no limit.
    * `backoff`: the delays of a key that fails, as for a policy.
    * `rate`, `burst`: the maximum rate per second at which failed keys come back, over all keys.
    * `clock`, `rng`: the clock and the source of randomness, mainly for tests.

    >>> queue = WorkQueue(capacity=100)
    >>> queue.add("orders/42"); queue.add("orders/42")
    >>> key = queue.get()
    >>> queue.done(key)
    >>> len(queue)
    0
    """

    __slots__ = ()

    def put(self, key: K, priority: int = 0, *, timeout: float | None = None) -> None:
        """Add a key; if the queue is full, wait for capacity. Raise TimeoutError after `timeout` seconds.

        >>> queue = WorkQueue(capacity=1)
        >>> queue.put("a")
        >>> queue.put("b", timeout=0.001)
        Traceback (most recent call last):
        TimeoutError: the queue was full for 0.001 s
        """
        wait_seconds(timeout)
        try:
            self.add(key, priority)
        except QueueFull:
            clock, wakeup = self._current_clock(), ThreadWakeup()
            _wait_in_thread(self._put_steps(key, priority, wakeup, clock, timeout), wakeup, clock)

    def get(self, timeout: float | None = None) -> K:
        """Wait for the next key and return it; no other worker gets it until `done`.

        Raise TimeoutError after `timeout` seconds, and `ShutDown` once the queue is shut down and empty.

        >>> WorkQueue().get(timeout=0.0)
        Traceback (most recent call last):
        TimeoutError: no key within 0.0 s
        """
        key = self._take_now()
        if key is not None:
            return key
        got: list[K] = []
        try:
            clock, wakeup = self._current_clock(), ThreadWakeup()
            return _wait_in_thread(self._get_steps(wakeup, clock, timeout, got), wakeup, clock)
        except BaseException:
            self._return_keys(got)
            raise

    def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until all ready keys are done. Raise TimeoutError after `timeout` seconds.

        >>> queue = WorkQueue()
        >>> queue.drain()
        """
        wait_seconds(timeout)
        self.shutdown()
        clock, wakeup = self._current_clock(), ThreadWakeup()
        _wait_in_thread(self._drain_steps(wakeup, clock, timeout), wakeup, clock)

    def shutdown(self, drain: bool = False) -> None:
        """Take no more keys: ready keys are still delivered, delayed keys are dropped.

        With `drain`, wait until all ready keys are done, as `drain` does.

        >>> queue = WorkQueue()
        >>> queue.shutdown(drain=True)
        """
        super().shutdown()
        if drain:
            self.drain()


class AsyncWorkQueue(BaseWorkQueue[K]):
    """A queue of keys for asyncio or trio tasks: like `WorkQueue`, but `get`, `put` and `drain` are awaited.

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
        """Add a key; if the queue is full, wait for capacity. See `WorkQueue.put`."""
        wait_seconds(timeout)
        if not next(self._calls) % YIELD_EVERY:
            await MACHINE.asleep(0.0)
        try:
            self.add(key, priority)
        except QueueFull:
            clock, wakeup = self._current_clock(), _make_wakeup()
            await _wait_in_task(self._put_steps(key, priority, wakeup, clock, timeout), wakeup, clock)

    async def get(self, timeout: float | None = None) -> K:
        """Wait for the next key and return it. See `WorkQueue.get`."""
        if not next(self._calls) % YIELD_EVERY:
            await MACHINE.asleep(0.0)  # before a key is taken: a cancellation here would lose it
        key = self._take_now()
        if key is not None:
            return key
        got: list[K] = []
        try:
            clock, wakeup = self._current_clock(), _make_wakeup()
            return await _wait_in_task(self._get_steps(wakeup, clock, timeout, got), wakeup, clock)
        except BaseException:
            self._return_keys(got)
            raise

    async def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until all ready keys are done. See `WorkQueue.drain`."""
        wait_seconds(timeout)
        self.shutdown()
        clock, wakeup = self._current_clock(), _make_wakeup()
        await _wait_in_task(self._drain_steps(wakeup, clock, timeout), wakeup, clock)


KEEP_ALIVE = 3600.0
"""Seconds after which a task that waits without a timeout wakes and checks again. The timer keeps the task alive."""

TaskWakeup: TypeAlias = AsyncioWakeup | TrioWakeup


def _make_wakeup() -> TaskWakeup:
    return TrioWakeup() if in_trio() else AsyncioWakeup()


def _wait_in_thread(steps: Steps[T], wakeup: ThreadWakeup, clock: Clock) -> T:
    """Run the steps of a wait in this thread."""
    with closing(steps):
        try:
            until = next(steps)
            while True:
                until = steps.send(wakeup.wait(clock, until - clock.now()))
        except StopIteration as end:
            answer: T = end.value
            return answer


async def _wait_in_task(steps: Steps[T], wakeup: TaskWakeup, clock: Clock) -> T:
    """Run the steps of a wait in this task."""
    with closing(steps):
        try:
            until = next(steps)
            while True:
                woken = await _notified(wakeup, clock, until)
                wakeup.rearm()
                until = steps.send(woken)
        except StopIteration as end:
            answer: T = end.value
            return answer


async def _notified(wakeup: TaskWakeup, clock: Clock, until: float) -> bool:
    """Wait for a wake-up until an instant; return whether it came."""
    if until == inf:
        notified = wakeup.notified()
        alarm = wakeup.expire_after(KEEP_ALIVE, notified) if isinstance(wakeup, AsyncioWakeup) else None
        try:
            await notified
        finally:
            if alarm is not None:
                alarm.cancel()
        return True
    try:
        cut = clock.within(max(0.0, until - clock.now()))
        async with cut:
            await wakeup.notified()
            return True
    except AttemptTimeout:
        return False
