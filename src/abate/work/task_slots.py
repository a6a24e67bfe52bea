"""Limits how many coroutine handlers run at once; others wait for a slot."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from abate.work.thread_pool import NotStarted


class TaskSlots:
    """Slots for the tasks of one event loop: what `DaemonThreadPool` is for plain functions.

    >>> async def main():
    ...     slots = TaskSlots(1)
    ...     await slots.enter()
    ...     second = asyncio.ensure_future(slots.enter())
    ...     await asyncio.sleep(0)
    ...     waiting = slots.waiting
    ...     slots.leave()
    ...     await second
    ...     return waiting, slots.waiting
    >>> asyncio.run(main())
    (1, 0)
    """

    __slots__ = ("_busy", "_slots", "_waiters")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._busy = 0
        self._waiters: deque[asyncio.Future[bool]] = deque()

    async def enter(self) -> None:
        """Take a slot; wait until one is free. Raise `NotStarted` if this call was taken back."""
        if self._busy < self._slots and not self._waiters:
            self._busy += 1
            return
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            entered = await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # it is removed already
                    self._waiters.remove(waiter)
            elif waiter.result():  # it got a slot just before
                self.leave()
            raise
        if not entered:
            raise NotStarted

    def leave(self) -> None:
        """Give a slot back."""
        self._busy -= 1
        self._admit()

    @property
    def waiting(self) -> int:
        """Return how many tasks wait for a slot."""
        return len(self._waiters)

    def take_back(self) -> None:
        """Let no waiting task enter: their calls raise `NotStarted`."""
        while self._waiters:
            self._end_wait(False)

    def grow(self) -> None:
        """Add a slot, in place of a stuck one."""
        self._slots += 1
        self._admit()

    def shrink(self) -> None:
        """Undo `grow`."""
        self._slots -= 1

    def _admit(self) -> None:
        while self._waiters and self._busy < self._slots:
            self._busy += self._end_wait(True)

    def _end_wait(self, entered: bool) -> bool:
        """End the longest wait. Return whether its task has entered."""
        waiter = self._waiters.popleft()
        if waiter.cancelled():
            return False
        waiter.set_result(entered)
        return entered
