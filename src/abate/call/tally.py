"""How many calls a policy has in flight, and how many were good: counted while somebody watches, and not before.

A call that succeeds makes no event, and must not: it would pay for those who are not interested. While a sink that
`counts` is installed, the stand-ins of decorated functions run a second version of their code, with two counts in it;
the first version knows nothing of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar
from weakref import WeakSet, ref

from abate import forks
from abate.counts import Tick
from abate.functions import returned_coroutine
from abate.locks import Section
from abate.schedule.deadlines import before_first
from abate.values import Value

T = TypeVar("T")


class Tally:
    """The calls of one policy.

    >>> tally = Tally()
    >>> tally.begun.add(); tally.begun.add(); tally.good.add()
    0
    1
    0
    >>> tally.in_flight
    1
    """

    __slots__ = ("__weakref__", "bad", "begun", "good", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.begun, self.good, self.bad = Tick(), Tick(), Tick()

    @property
    def in_flight(self) -> int:
        """Calls that have begun and not ended."""
        ended = self.good.read() + self.bad.read()  # before those that have begun, so that it is never below 0
        return self.begun.read() - ended


class Counted(Value):
    """Calls that have begun, and how those have ended that have."""

    begun: int
    good: int
    bad: int

    def plus(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(self.begun + other.begun, self.good + other.good, self.bad + other.bad)

    def minus(self, other: Counted) -> Counted:
        """What came after `other`."""
        return Counted(self.begun - other.begun, self.good - other.good, self.bad - other.bad)


NOTHING = Counted(0, 0, 0)
MOST_NAMES = 10_000
"""Names that are counted by themselves; what comes after that is counted together."""
OTHER = "other"
"""The name for all of those."""
MOST_GONE = 256
"""Tallies that may be gone before they are added up."""


class Leaf(ref[Tally]):
    """The counts of a tally, which outlive it."""

    __slots__ = ("bad", "good", "name")

    name: str
    good: Tick
    bad: Tick

    def __new__(cls, tally: Tally, gone: Callable[[Any], object], name: str) -> Leaf:
        leaf = super().__new__(cls, tally, gone)
        leaf.name, leaf.good, leaf.bad = name, tally.good, tally.bad
        return leaf

    def __init__(self, tally: Tally, gone: Callable[[Any], object], name: str) -> None:
        """All is done: a reference wants to be given no more than what it has."""


class Roll:
    """What all policies have counted, by name, those included that are gone: a handler may make one for each request.

    >>> roll, tally = Roll(), Tally("orders")
    >>> roll.note(tally)
    >>> tally.begun.add(); tally.good.add()
    0
    0
    >>> del tally
    >>> roll.totals()
    {'orders': Counted(begun=1, good=1, bad=0)}
    """

    __slots__ = ("__weakref__", "_gone", "_leaves", "_section", "_totals")

    def __init__(self) -> None:
        self._leaves: dict[int, Leaf] = {}
        self._gone: deque[Leaf] = deque()
        """Whose tally is gone. They come here wherever garbage is collected, so that no lock may be needed for it."""
        self._totals: dict[str, Counted] = {}
        self._section = Section()
        forks.keep(self)

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner may not exist there."""
        self._section.after_fork()

    def note(self, tally: Tally) -> None:
        """A policy has come."""
        self._section.run(self._note, tally)

    def _note(self, tally: Tally) -> None:
        name = tally.name if tally.name in self._totals or len(self._totals) < MOST_NAMES else OTHER
        self._totals.setdefault(name, NOTHING)
        if len(self._gone) >= MOST_GONE:
            self._bury()
        leaf = Leaf(tally, self._gone.append, name)
        self._leaves[id(leaf)] = leaf  # last, so that this may be run again where it was broken off

    def totals(self) -> dict[str, Counted]:
        """What was counted so far under each name."""
        alive, totals = self._section.ask(self._buried, otherwise=self._known)
        for name, tally in alive:
            good, bad = tally.good.read(), tally.bad.read()  # before those that have begun, as these are never fewer
            totals[name] = totals[name].plus(Counted(tally.begun.read(), good, bad))
        return totals

    def _buried(self) -> tuple[list[tuple[str, Tally]], dict[str, Counted]]:
        alive, _ = self._known()
        self._bury()  # after that, so that none is missed that goes in between
        return alive, self._totals.copy()

    def _known(self) -> tuple[list[tuple[str, Tally]], dict[str, Counted]]:
        """The tallies that are alive, and what was counted by those before them that have been buried."""
        leaves = list(self._leaves.values())
        return [(leaf.name, tally) for leaf in leaves if (tally := leaf()) is not None], self._totals.copy()

    def _bury(self) -> None:
        while self._gone:
            leaf = self._gone[0]
            good, bad = leaf.good.read(), leaf.bad.read()
            number, total = id(leaf), self._totals[leaf.name].plus(Counted(good + bad, good, bad))
            self._totals[leaf.name] = total  # from here on without a call, so that it counts once
            del self._leaves[number]
            del self._gone[0]


roll = Roll()


class Watch:
    """Which version of their code stand-ins run: do sinks count calls, has the process set a deadline?"""

    __slots__ = ("__weakref__", "_bound", "_section", "_stand_ins", "_watchers", "on")

    def __init__(self) -> None:
        self.on = self._bound = False
        self._section = Section()
        self._watchers = 0
        self._stand_ins: WeakSet[Any] = WeakSet()

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner may not exist there."""
        self._section.after_fork()

    def keep(self, stand_in: FunctionType) -> None:
        """Give a stand-in the version of its code that is right now, and exchange it from now on."""
        self._section.run(self._keep, stand_in)

    def _keep(self, stand_in: FunctionType) -> None:
        self._stand_ins.add(stand_in)
        _swap(stand_in, self.on, self._bound)

    def come(self) -> None:
        """Somebody wants calls to be counted."""
        self._section.run(self._change, [1])

    def go(self) -> None:
        """And does no more."""
        self._section.run(self._change, [-1])

    def bind(self) -> None:
        """From now on there may be deadlines around a call."""
        self._section.run(self._bind)

    def _change(self, by: list[int]) -> None:
        if by:
            self._watchers = max(0, self._watchers + by[0])
            del by[0]  # once, also where this is run again
        on = self._watchers > 0
        if self.on != on:
            self._swap_all(on, self._bound)
            self.on = on

    def _bind(self) -> None:
        self._swap_all(self.on, True)
        self._bound = True

    def _swap_all(self, counted: bool, bound: bool) -> None:
        for stand_in in list(self._stand_ins):
            _swap(stand_in, counted, bound)


def _swap(stand_in: Any, counted: bool, bound: bool) -> None:
    version: Callable[[bool, bool], CodeType] = stand_in.__globals__["_a_version"]
    stand_in.__code__ = version(counted, bound)


watch = Watch()
forks.keep(watch)
before_first.append(watch.bind)


def ended(tally: Tally, function: Callable[..., T]) -> Callable[..., T]:
    """The function, with its end counted: the call has begun elsewhere."""

    def count_end(*args: Any, **options: Any) -> T:
        try:
            result = function(*args, **options)
        except BaseException:
            tally.bad.add()
            raise
        if returned_coroutine(result):  # it has done nothing yet
            return aended(tally, _itself)(result)  # type: ignore[return-value]
        tally.good.add()
        return result

    return count_end


async def _itself(awaitable: Awaitable[T]) -> T:
    return await awaitable


def aended(tally: Tally, function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """The same for a coroutine function."""

    async def count_end(*args: Any) -> T:
        try:
            result = await function(*args)
        except BaseException:
            tally.bad.add()
            raise
        tally.good.add()
        return result

    return count_end


def counted(tally: Tally, function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Make a call, counted from its beginning to its end."""
    tally.begun.add()
    return ended(tally, function)(*args, **options)


async def acounted(tally: Tally, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """The same for a coroutine function."""
    tally.begun.add()
    return await aended(tally, function)(*args)
