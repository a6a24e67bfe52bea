"""Which waiter runs the timer for the others: one per event loop, one for all threads. Needs the dispatcher's lock."""

from __future__ import annotations

from collections import deque
from math import inf

from abate.admit.shelter_queue import ShelterQueue, Waiter


class Timekeepers:
    """The timekeeper of each event loop, and the loops that are stalled; the loop of a thread is None.

    A waiter is put on `to_wake` before anything else changes, because a signal handler may raise out of any call.
    """

    __slots__ = ("_by_loop", "_to_wake", "stalled")

    def __init__(self, to_wake: deque[Waiter]) -> None:
        self._to_wake = to_wake
        self._by_loop: dict[object, Waiter] = {}
        self.stalled: set[object] = set()

    def elect(self, waiter: Waiter) -> bool:
        """Make this waiter the timekeeper of its loop unless there is one; return whether it is."""
        loop = self.mark_awake(waiter)
        keeper = self._by_loop.get(loop)
        if keeper is None or keeper.answer is not None:
            keeper = self._by_loop[loop] = waiter
        return keeper is waiter

    def mark_awake(self, waiter: Waiter) -> object:
        """Mark the loop of this waiter as running, and return the loop."""
        loop = _loop(waiter)
        self.stalled.discard(loop)
        return loop

    def mark_stalled(self, waiter: Waiter) -> None:
        """Mark the loop of this waiter as stalled: it has not claimed its permit."""
        if waiter.wakeup is not None:
            self.stalled.add(waiter.wakeup.loop)

    def is_stalled(self, waiter: Waiter) -> bool:
        """Return whether the loop of this waiter is stalled."""
        return waiter.wakeup is not None and waiter.wakeup.loop in self.stalled

    def drop(self, waiter: Waiter) -> None:
        """Dismiss a stalled timekeeper: the next waiter of its loop that wakes replaces it."""
        loop = _loop(waiter)
        if self._by_loop.get(loop) is waiter:
            del self._by_loop[loop]

    def replace(self, waiter: Waiter, shelter_queue: ShelterQueue) -> None:
        """Remove a waiter that leaves; unless its loop has another timekeeper, wake one of the loop to take over.

        A loop that was stalled has none: its timekeeper was dropped, and may be the first to wake and to leave.
        """
        loop = _loop(waiter)
        keeper = self._by_loop.get(loop)
        if keeper is not waiter and (keeper is not None or not shelter_queue.size):
            return
        heir = shelter_queue.waiter_in_loop(loop)
        if heir is None:
            self._by_loop.pop(loop, None)
            return
        self._to_wake.append(heir)
        heir.next_check = -inf  # it checks as soon as it wakes
        self._by_loop[loop] = heir

    def rearm(self, due: float) -> None:
        """Wake the timekeepers whose timer expires after `due`."""
        for keeper in self._by_loop.values():
            if keeper.answer is None and due < keeper.next_check:
                self._to_wake.append(keeper)
                keeper.next_check = due

    def reset(self) -> None:
        """Forget all."""
        self._by_loop.clear()
        self.stalled.clear()


def _loop(waiter: Waiter) -> object:
    return None if waiter.wakeup is None else waiter.wakeup.loop
