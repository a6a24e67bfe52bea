"""How those who wait for a message of a store are woken.

What this process adds rings at once. What others add is noticed by one of those who wait, who looks for all whether
the file has changed, some thirty times a second; when it leaves, the next one looks. There is no background thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock
from time import monotonic

from abate import forks
from abate.schedule.backoff import Uniform

SHORTEST_LOOK, LONGEST_LOOK = 0.02, 0.05
"""Seconds between two looks at the file, drawn anew each time, so that many processes don't look together."""


class Line:
    """Those who wait for one queue."""

    __slots__ = ("bell", "rung", "waiters")

    def __init__(self, lock: Lock) -> None:
        self.bell = Condition(lock)
        self.rung = 0
        self.waiters = 0


class Bells:
    """The lines of a store; `changed` says whether another process has written, None where none can."""

    def __init__(self, changed: Callable[[], bool] | None, rng: Uniform = random) -> None:
        self._changed = changed
        self._rng = rng
        self.after_fork()
        forks.keep(self)

    def after_fork(self) -> None:
        """Nobody waits in the child."""
        self._lock = Lock()
        self._lines: dict[str, Line] = {}
        self._looking = False

    def ring(self, name: str, times: int = 1) -> None:
        """Something came into a queue: wake as many of those who wait for it."""
        with self._lock:
            line = self._lines.get(name)
            if line is not None:
                line.rung += 1
                line.bell.notify(times)

    def ring_all(self) -> None:
        """Wake everybody."""
        with self._lock:
            for line in self._lines.values():
                line.rung += 1
                line.bell.notify_all()

    @contextmanager
    def line(self, name: str) -> Iterator[Line]:
        """Stand in line for a queue. Whoever is rung for from now on is not missed."""
        with self._lock:
            line = self._lines.setdefault(name, Line(self._lock))
            line.waiters += 1
        try:
            yield line
        finally:
            with self._lock:
                line.waiters -= 1
                if not line.waiters:
                    del self._lines[name]
                # one that stays looks after the time, and after the file, from now on
                for other in self._lines.values():
                    other.bell.notify()

    def wait(self, line: Line, seen: int, seconds: float) -> None:
        """Wait for so long, or until the line is rung for; `seen` is what `line.rung` was before one looked."""
        with self._lock:
            if line.rung != seen:
                return
            if self._changed is None or self._looking:
                line.bell.wait(seconds)
                return
            self._looking = True
        try:
            self._look(self._changed, line, seen, monotonic() + seconds)
        finally:
            with self._lock:
                self._looking = False

    def _look(self, changed: Callable[[], bool], line: Line, seen: int, end: float) -> None:
        while (left := end - monotonic()) > 0:
            with self._lock:
                if line.rung == seen:
                    line.bell.wait(min(left, SHORTEST_LOOK + self._rng.random() * (LONGEST_LOOK - SHORTEST_LOOK)))
                if line.rung != seen:
                    return
            if monotonic() < end and changed():
                self.ring_all()
                return
