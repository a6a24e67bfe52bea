"""How those who wait for a message of a store are woken.

What this process adds rings at once. What others add is noticed by one of those who wait, who looks for all whether
the file has changed, some thirty times a second; when it leaves, the next one looks. There is no background thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Literal

from abate import forks
from abate.admit.bells import ThreadBell
from abate.clock import MACHINE
from abate.locks import Section
from abate.schedule.backoff import Uniform

SHORTEST_LOOK, LONGEST_LOOK = 0.02, 0.05
"""Seconds between two looks at the file, drawn anew each time, so that many processes don't look together."""

Part = Literal["rung", "sleeps", "looks", "interrupts"]


class Line:
    """Those who wait for one queue."""

    __slots__ = ("asleep", "rung", "waiters")

    def __init__(self) -> None:
        self.asleep: list[ThreadBell] = []
        self.rung = 0
        self.waiters = 0

    def ring(self, times: int) -> None:
        """Wake so many, those first that have waited longest; who looks just now sees it afterwards."""
        self.rung += 1
        self.wake(times)

    def wake(self, times: int) -> None:
        """Wake so many, for another reason."""
        woken, self.asleep = self.asleep[:times], self.asleep[times:]
        for bell in woken:
            bell.ring()


class Bells:
    """The lines of a store; `changed` says whether another process has written, None where none can."""

    def __init__(self, changed: Callable[[], bool] | None, rng: Uniform = random) -> None:
        self._changed = changed
        self._rng = rng
        self._section = Section()
        self.after_fork()
        forks.keep(self)

    def after_fork(self) -> None:
        """Nobody waits in the child."""
        self._section.after_fork()
        self._lines: dict[str, Line] = {}
        self._looker: ThreadBell | None = None

    def ring(self, name: str, times: int = 1) -> None:
        """Something came into a queue: wake as many of those who wait for it."""
        self._section.run(self._ring, name, times)

    def _ring(self, name: str, times: int) -> None:
        line = self._lines.get(name)
        if line is not None:
            line.ring(times)

    def ring_all(self) -> None:
        """Wake everybody."""
        self._section.run(self._ring_all)

    def _ring_all(self) -> None:
        for line in self._lines.values():
            line.ring(len(line.asleep))

    @contextmanager
    def line(self, name: str) -> Iterator[Line]:
        """Stand in line for a queue. Whoever is rung for from now on is not missed."""
        line = self._section.ask(self._line, name, otherwise=_aside)
        try:
            yield line
        finally:
            self._section.run(self._leave, name, line)

    def _line(self, name: str) -> Line:
        line = self._lines.setdefault(name, Line())
        line.waiters += 1
        return line

    def _leave(self, name: str, line: Line) -> None:
        line.waiters -= 1
        if not line.waiters and self._lines.get(name) is line:
            del self._lines[name]
        # one that stays looks after the time, and after the file, from now on
        for other in self._lines.values():
            other.wake(1)

    def wait(self, line: Line, seen: int, seconds: float) -> None:
        """Wait for so long, or until the line is rung for; `seen` is what `line.rung` was before one looked."""
        bell, end = ThreadBell(), monotonic() + seconds
        try:
            part = self._section.ask(self._lie_down, line, seen, bell, otherwise=_interrupts)
            if part == "sleeps":
                bell.wait(MACHINE, seconds)
            elif part == "looks" and self._changed is not None:
                self._look(self._changed, line, seen, bell, end)
            elif part == "interrupts":
                sleep(min(seconds, SHORTEST_LOOK))
        finally:
            self._section.run(self._get_up, line, bell)

    def _lie_down(self, line: Line, seen: int, bell: ThreadBell) -> Part:
        if line.rung != seen:
            return "rung"
        line.asleep.append(bell)
        if self._changed is None or self._looker is not None:
            return "sleeps"
        self._looker = bell
        return "looks"

    def _get_up(self, line: Line, bell: ThreadBell) -> None:
        if bell in line.asleep:
            line.asleep.remove(bell)
        if self._looker is bell:
            self._looker = None

    def _look(self, changed: Callable[[], bool], line: Line, seen: int, bell: ThreadBell, end: float) -> None:
        while line.rung == seen and (left := end - monotonic()) > 0:
            pause = SHORTEST_LOOK + self._rng.random() * (LONGEST_LOOK - SHORTEST_LOOK)
            if bell.wait(MACHINE, min(left, pause)):
                return
            if monotonic() < end and changed():
                self.ring_all()
                return


def _aside(name: str) -> Line:
    """A line that nobody rings for: a signal handler waits in the middle of an operation of its own thread."""
    line = Line()
    line.waiters = 1
    return line


def _interrupts(line: Line, seen: int, bell: ThreadBell) -> Part:
    return "interrupts"
