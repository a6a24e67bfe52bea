"""What a loop has in hand: messages with their workers, and the lines in which those of one group stand."""

from __future__ import annotations

from asyncio import Task
from collections import deque
from collections.abc import Iterator
from math import inf

from abate.work.source import Message, Verdict


class Work:
    """A message in hand.

    * `task`: the worker that has it, since the instant `began`; None while it waits.
    * `verdict`: what was decided about it, how many `tries` to carry that out have failed, and when the first
      of these was (`tried`).
    * `blows`: how often the fuse had blown when the worker began.
    * `lost`: its lease ran out. `broken_off`: its worker was cancelled, as the grace is over.
    * `stuck`: its handler has outlasted its time and can't be stopped. `replaced`: its place was given to another.
    """

    __slots__ = (
        "began",
        "blows",
        "broken_off",
        "lost",
        "message",
        "replaced",
        "stuck",
        "task",
        "tried",
        "tries",
        "verdict",
    )

    def __init__(self, message: Message) -> None:
        self.message = message
        self.task: Task[None] | None = None
        self.began = inf
        self.verdict: Verdict | None = None
        self.tries = 0
        self.tried = inf
        self.blows = 0
        self.lost = False
        self.broken_off = False
        self.stuck = False
        self.replaced = False

    @property
    def waits(self) -> bool:
        """Has nobody begun with it, or decided about it?"""
        return self.task is None and self.verdict is None

    @property
    def runs(self) -> bool:
        """Is its handler at work?"""
        return self.task is not None and self.verdict is None


class Hands:
    """The messages in hand, in the order in which they came.

    >>> hands = Hands()
    >>> first, second = Message("a", group="g"), Message("b", group="g")
    >>> hands.take(first).message is first, hands.take(second)
    (True, None)
    >>> hands.free(first).message is second, len(hands)
    (True, 1)
    """

    __slots__ = ("_groups", "_works")

    def __init__(self) -> None:
        self._works: dict[Message, Work] = {}
        self._groups: dict[str, deque[Work]] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works.copy().values())  # a copy, as other threads ask for the health

    def of(self, message: Message) -> Work | None:
        """The work on a message, if it is in hand."""
        return self._works.get(message)

    def take(self, message: Message) -> Work | None:
        """A message has come: the work that can begin, or None where it stands in line behind others of its group."""
        work = self._works[message] = Work(message)
        if message.group is None:
            return work
        line = self._groups.setdefault(message.group, deque())
        line.append(work)
        return work if len(line) == 1 else None

    def behind(self, work: Work) -> list[Work]:
        """Those that wait in line behind this one."""
        if work.message.group is None:
            return []
        line = list(self._groups[work.message.group])
        return [other for other in line[line.index(work) + 1 :] if other.waits]

    def free(self, message: Message) -> Work | None:
        """A message is not in hand any more: the work of its group that can begin now, if there is one."""
        work = self._works.pop(message, None)
        if work is None or message.group is None:
            return None
        line = self._groups[message.group]
        line.remove(work)
        if not line:
            del self._groups[message.group]
            return None
        return line[0] if line[0].waits else None

    def drop(self) -> None:
        """Let go of everything."""
        self._works.clear()
        self._groups.clear()
