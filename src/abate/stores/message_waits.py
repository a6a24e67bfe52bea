"""The threads of this process that wait for a message of a store, and how they are woken.

A message added by this process wakes a waiting thread at once. To notice messages of other processes, one waiting
thread watches a SQLite file for writes; when it stops waiting, another one takes over. Where the system can't tell it
of writes (`abate.stores.sqlite.file_watch`), it polls the file about thirty times a second. There is no background
thread. (A store in PostgreSQL is not watched here: its listener wakes the threads.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Literal, Protocol

from abate import forks
from abate.clock import MACHINE
from abate.logs import Log
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource
from abate.wakeups import ThreadWakeup

log = Log("abate.stores")

MIN_POLL, MAX_POLL = 0.02, 0.05
"""Seconds between two polls of the file, drawn at random so that processes don't poll in step."""
MAX_WATCH = 1.0
"""Seconds that a watched file is trusted not to have changed; then it is polled once."""
LOOKS = 8
"""How often the file is polled after it was written to: a transaction writes several times before it is committed."""
BUSY = 5
"""The look from which on they are `MAX_WATCH_PAUSE` apart, also while the file is written to all the time. Before it,
each pause is half of the next."""
MAX_WATCH_PAUSE = 0.005
"""Seconds."""
MIN_WAIT, MAX_WAIT = 1e-6, 3600.0
"""Bounds of one wait, in seconds."""


class Watch(Protocol):
    """Waits for writes to a file; see `abate.stores.sqlite.file_watch`."""

    def arm(self) -> bool: ...
    def wait(self, seconds: float) -> bool: ...
    def interrupt(self) -> None: ...


WaitMode = Literal["woken", "sleep", "poll", "nested"]


class WaitList:
    """The threads that wait for one queue."""

    __slots__ = ("asleep", "generation", "interrupts", "members")

    def __init__(self) -> None:
        self.asleep: list[ThreadWakeup] = []
        self.generation = 0
        """Incremented by every change of the queue: a thread that has seen an older value does not sleep."""
        self.interrupts = 0
        """Incremented by every interrupt: a receive that began before it returns."""
        self.members = 0

    def wake_new(self, times: int) -> None:
        """Wake up to `times` threads for new messages, the longest waiting first."""
        self.generation += 1
        self.wake(times)

    def wake(self, times: int) -> None:
        """Wake up to `times` threads, the longest waiting first."""
        woken, self.asleep = self.asleep[:times], self.asleep[times:]
        for wakeup in woken:
            wakeup.notify()


class FileWakeup(ThreadWakeup):
    """Wakes a thread, also while it watches a file."""

    __slots__ = ("watch",)

    def __init__(self) -> None:
        super().__init__()
        self.watch: Watch | None = None

    def notify(self) -> bool:
        super().notify()  # first: the thread sets `watch` before it looks at this
        if self.watch is not None:
            self.watch.interrupt()
        return True


class QueueWaiter:
    """One call that waits for a message of a queue."""

    __slots__ = ("_interrupts", "_seen", "_wait_list", "_wakeups")

    def __init__(self, wakeups: Wakeups, wait_list: WaitList) -> None:
        self._wakeups = wakeups
        self._wait_list = wait_list
        self._seen = wait_list.generation
        self._interrupts = wait_list.interrupts

    @property
    def interrupted(self) -> bool:
        """Return whether the call is to return now."""
        return self._wait_list.interrupts != self._interrupts

    def look(self, left: float) -> None:
        """Note that the queue is about to be read."""
        self._seen = self._wait_list.generation

    def wait(self, seconds: float) -> None:
        """Block until the queue has changed since `look`, or until `seconds` have passed."""
        self._wakeups.wait(self._wait_list, self._seen, max(MIN_WAIT, min(seconds, MAX_WAIT)))


class Wakeups:
    """The wait lists of a store.

    `changed` returns whether another process has written (None if no other can), and `watch` makes the watch of the
    file, or raises OSError if the system has none.
    """

    def __init__(
        self,
        changed: Callable[[], bool] | None,
        watch: Callable[[], Watch] | None = None,
        rng: RandomSource = random,
    ) -> None:
        self._changed = changed
        self._make_watch = watch
        self._rng = rng
        self._section = Section()
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Start empty: the waiting threads do not exist in the child."""
        self._section.after_fork()
        self._wait_lists: dict[str, WaitList] = {}
        self._poller: ThreadWakeup | None = None
        self._watch: Watch | None = None

    def interrupt(self, name: str) -> None:
        """Make the receives that wait for this queue return."""
        self._section.run_or_defer(self._interrupt, name)

    def _interrupt(self, name: str) -> None:
        wait_list = self._wait_lists.get(name)
        if wait_list is not None:
            wait_list.interrupts += 1
            wait_list.wake_new(len(wait_list.asleep))

    def wake_queue(self, name: str, times: int = 1) -> None:
        """Wake up to `times` threads that wait for this queue, because it has new messages."""
        self._section.run_or_defer(self._wake_queue, name, times)

    def _wake_queue(self, name: str, times: int) -> None:
        wait_list = self._wait_lists.get(name)
        if wait_list is not None:
            wait_list.wake_new(times)

    def wake_all(self) -> None:
        """Wake all waiting threads."""
        self._section.run_or_defer(self._wake_all)

    def close(self) -> None:
        """Wake all waiting threads, and end the watch of the file."""
        self.wake_all()
        self._watch = None

    def _wake_all(self) -> None:
        for wait_list in self._wait_lists.values():
            wait_list.wake_new(len(wait_list.asleep))

    @contextmanager
    def waiting(self, name: str) -> Iterator[WaitList]:
        """Join the wait list of a queue; every later wake-up is noticed."""
        wait_list = self._section.call(self._join, name, otherwise=_detached_list)
        try:
            yield wait_list
        finally:
            self._section.run_or_defer(self._leave, name, wait_list)

    def _join(self, name: str) -> WaitList:
        wait_list = self._wait_lists.setdefault(name, WaitList())
        wait_list.members += 1
        return wait_list

    def _leave(self, name: str, wait_list: WaitList) -> None:
        wait_list.members -= 1
        if not wait_list.members and self._wait_lists.get(name) is wait_list:
            del self._wait_lists[name]
        # wake another thread to take over: it polls the file, and sleeps until the next message is due at most
        for other in self._wait_lists.values():
            other.wake(1)

    def wait(self, wait_list: WaitList, seen: int, seconds: float) -> None:
        """Block until the generation of the list differs from `seen`, or until `seconds` have passed."""
        wakeup, end = FileWakeup(), monotonic() + seconds
        try:
            mode = self._section.call(self._start_waiting, wait_list, seen, wakeup, otherwise=_in_handler)
            if mode == "sleep":
                wakeup.wait(MACHINE, seconds)
            elif mode == "poll" and self._changed is not None:
                self._poll(self._changed, wait_list, seen, wakeup, end)
            elif mode == "nested":
                sleep(min(seconds, MIN_POLL))
        finally:
            self._section.run_or_defer(self._stop_waiting, wait_list, wakeup)

    def _start_waiting(self, wait_list: WaitList, seen: int, wakeup: ThreadWakeup) -> WaitMode:
        if wait_list.generation != seen:
            return "woken"
        wait_list.asleep.append(wakeup)
        if self._changed is None or self._poller is not None:
            return "sleep"
        self._poller = wakeup
        return "poll"

    def _stop_waiting(self, wait_list: WaitList, wakeup: ThreadWakeup) -> None:
        if wakeup in wait_list.asleep:
            wait_list.asleep.remove(wakeup)
        if self._poller is wakeup:
            self._poller = None

    def _poll(
        self, changed: Callable[[], bool], wait_list: WaitList, seen: int, wakeup: FileWakeup, end: float
    ) -> None:
        watch, armed_anew = self._armed_watch()
        wakeup.watch = watch
        looks = 0  # since the file was written to
        while wait_list.generation == seen and (left := end - monotonic()) > 0:
            if watch is None:
                pause = MIN_POLL + self._rng.random() * (MAX_POLL - MIN_POLL)
            else:
                pause = MAX_WATCH_PAUSE / 2 ** max(0, BUSY - looks) if looks else 0.0
            if wakeup.wait(MACHINE, min(left, pause)):
                return
            if watch is not None and not armed_anew:
                quiet = looks in (0, LOOKS)
                written = watch.wait(min(left, MAX_WATCH) if quiet else 0.0)
                if wakeup.wait(MACHINE, 0.0):
                    return
                looks = 0 if quiet and not written else 1 if quiet else min(looks + 1, BUSY if written else LOOKS)
            armed_anew = False
            if monotonic() < end and changed():
                self.wake_all()
                return

    def _armed_watch(self) -> tuple[Watch | None, bool]:
        """Return the watch of the file that is there now, and whether earlier writes to it may have been missed."""
        try:
            if self._watch is None:
                if self._make_watch is None:
                    return None, False
                self._watch = self._make_watch()
            return self._watch, self._watch.arm()
        except OSError as error:
            log.debug("the file is polled, as it can't be watched: %s", error)
            return None, False


def _detached_list(name: str) -> WaitList:
    """Return a list without wake-ups, for a signal handler that waits while its thread holds the lock."""
    wait_list = WaitList()
    wait_list.members = 1
    return wait_list


def _in_handler(wait_list: WaitList, seen: int, wakeup: ThreadWakeup) -> WaitMode:
    return "nested"
