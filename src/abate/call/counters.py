"""Counters of the calls of each policy, only while a sink that `counts` is installed.

A successful call emits no event: without a sink it must cost nothing. While a sink that `counts` is installed, the
wrappers of decorated functions run a second version of their code that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar
from weakref import WeakSet, ref

from abate import forks
from abate.atomic_counter import AtomicCounter
from abate.frozen import Frozen
from abate.functions import is_coroutine_object
from abate.reentrant_locks import Section
from abate.schedule.deadlines import before_first_deadline

T = TypeVar("T")


class CallCounter:
    """The calls of one policy.

    >>> counter = CallCounter()
    >>> counter.begun.add(); counter.begun.add(); counter.good.add()
    0
    1
    0
    >>> counter.in_flight
    1
    """

    __slots__ = ("__weakref__", "bad", "begun", "good", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.begun, self.good, self.bad = AtomicCounter(), AtomicCounter(), AtomicCounter()

    @property
    def in_flight(self) -> int:
        """Return the calls that have begun and not ended."""
        ended = self.good.read() + self.bad.read()  # read before `begun`, so that the result is never negative
        return self.begun.read() - ended


class CallCounts(Frozen):
    """Calls that have begun, and those that have ended well or badly."""

    begun: int
    good: int
    bad: int

    def plus(self, other: CallCounts) -> CallCounts:
        """Return the sum of both."""
        return CallCounts(self.begun + other.begun, self.good + other.good, self.bad + other.bad)

    def minus(self, other: CallCounts) -> CallCounts:
        """Return the difference to an earlier `other`."""
        return CallCounts(self.begun - other.begun, self.good - other.good, self.bad - other.bad)


NOTHING = CallCounts(0, 0, 0)
MAX_NAMES = 10_000
"""Names that are counted separately; later ones are counted as `OTHER`."""
OTHER = "other"
"""The name for all later names."""
MAX_DEAD = 256
"""Counters that may be collected before they are added to the totals."""


class CounterRef(ref[CallCounter]):
    """A weak reference to a counter. It keeps the counts after the counter is collected."""

    __slots__ = ("bad", "good", "name")

    name: str
    good: AtomicCounter
    bad: AtomicCounter

    def __new__(cls, counter: CallCounter, gone: Callable[[Any], object], name: str) -> CounterRef:
        counter_ref = super().__new__(cls, counter, gone)
        counter_ref.name, counter_ref.good, counter_ref.bad = name, counter.good, counter.bad
        return counter_ref

    def __init__(self, counter: CallCounter, gone: Callable[[Any], object], name: str) -> None:
        """Accept the arguments of `__new__`."""


class TotalsByName:
    """The totals of all policies by name, including collected ones: a handler may make one per request.

    >>> call_totals, counter = TotalsByName(), CallCounter("orders")
    >>> call_totals.track(counter)
    >>> counter.begun.add(); counter.good.add()
    0
    0
    >>> del counter
    >>> call_totals.totals()
    {'orders': CallCounts(begun=1, good=1, bad=0)}
    """

    __slots__ = ("__weakref__", "_dead", "_refs", "_section", "_totals")

    def __init__(self) -> None:
        self._refs: dict[int, CounterRef] = {}
        self._dead: deque[CounterRef] = deque()
        """References whose counter was collected; appended by the collector, so without a lock."""
        self._totals: dict[str, CallCounts] = {}
        self._section = Section()
        forks.register(self)

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner thread may not exist there."""
        self._section.after_fork()

    def track(self, counter: CallCounter) -> None:
        """Add a policy's counter."""
        self._section.run_or_defer(self._track, counter)

    def _track(self, counter: CallCounter) -> None:
        name = counter.name if counter.name in self._totals or len(self._totals) < MAX_NAMES else OTHER
        self._totals.setdefault(name, NOTHING)
        if len(self._dead) >= MAX_DEAD:
            self._absorb()
        counter_ref = CounterRef(counter, self._dead.append, name)
        self._refs[id(counter_ref)] = counter_ref  # last, so that an interrupted run can be repeated

    def totals(self) -> dict[str, CallCounts]:
        """Return the totals of each name."""
        alive, totals = self._section.call(self._absorbed, otherwise=self._known)
        for name, counter in alive:
            good, bad = (
                counter.good.read(),
                counter.bad.read(),
            )  # read before `begun`, which is never less
            totals[name] = totals[name].plus(CallCounts(counter.begun.read(), good, bad))
        return totals

    def _absorbed(self) -> tuple[list[tuple[str, CallCounter]], dict[str, CallCounts]]:
        alive, _ = self._known()
        self._absorb()  # after that, so that a counter which is collected in between is not missed
        return alive, self._totals.copy()

    def _known(self) -> tuple[list[tuple[str, CallCounter]], dict[str, CallCounts]]:
        """Return the live counters, and the totals of those that were collected and added up."""
        refs = list(self._refs.values())
        return [(each.name, counter) for each in refs if (counter := each()) is not None], self._totals.copy()

    def _absorb(self) -> None:
        while self._dead:
            counter_ref = self._dead[0]
            good, bad = counter_ref.good.read(), counter_ref.bad.read()
            number, total = id(counter_ref), self._totals[counter_ref.name].plus(CallCounts(good + bad, good, bad))
            self._totals[counter_ref.name] = total  # no call from here on, so that it counts once
            del self._refs[number]
            del self._dead[0]


call_totals = TotalsByName()


class WrapperVersions:
    """Switches the code of wrappers: whether calls are counted, and whether the process has set a deadline."""

    __slots__ = ("__weakref__", "_bound", "_section", "_watchers", "_wrappers", "on")

    def __init__(self) -> None:
        self.on = self._bound = False
        self._section = Section()
        self._watchers = 0
        self._wrappers: WeakSet[Any] = WeakSet()

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner thread may not exist there."""
        self._section.after_fork()

    def keep(self, wrapper: FunctionType) -> None:
        """Register a wrapper, and give it the current version of its code."""
        self._section.run_or_defer(self._keep, wrapper)

    def _keep(self, wrapper: FunctionType) -> None:
        self._wrappers.add(wrapper)
        _swap(wrapper, self.on, self._bound)

    def start_counting(self) -> None:
        """Count calls, for one more sink."""
        self._section.run_or_defer(self._change, [1])

    def stop_counting(self) -> None:
        """Count calls for one sink less."""
        self._section.run_or_defer(self._change, [-1])

    def bind(self) -> None:
        """Check for deadlines from now on."""
        self._section.run_or_defer(self._bind)

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
        for wrapper in list(self._wrappers):
            _swap(wrapper, counted, bound)


def _swap(wrapper: Any, counted: bool, bound: bool) -> None:
    version: Callable[[bool, bool], CodeType] = wrapper.__globals__["_a_version"]
    wrapper.__code__ = version(counted, bound)


wrapper_versions = WrapperVersions()
forks.register(wrapper_versions)
before_first_deadline.append(wrapper_versions.bind)


def counting_end(counter: CallCounter, function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with its end counted; its beginning was counted elsewhere."""

    def call_and_count(*args: Any, **options: Any) -> T:
        try:
            result = function(*args, **options)
        except BaseException:
            counter.bad.add()
            raise
        if is_coroutine_object(result):  # it has not run yet
            return acounting_end(counter, _itself)(result)  # type: ignore[return-value]
        counter.good.add()
        return result

    return call_and_count


async def _itself(awaitable: Awaitable[T]) -> T:
    return await awaitable


def acounting_end(counter: CallCounter, function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Do the same for a coroutine function."""

    async def call_and_count(*args: Any) -> T:
        try:
            result = await function(*args)
        except BaseException:
            counter.bad.add()
            raise
        counter.good.add()
        return result

    return call_and_count


def count_call(counter: CallCounter, function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Make a call, and count its beginning and end."""
    counter.begun.add()
    return counting_end(counter, function)(*args, **options)


async def acount_call(counter: CallCounter, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Do the same for a coroutine function."""
    counter.begun.add()
    return await acounting_end(counter, function)(*args)
