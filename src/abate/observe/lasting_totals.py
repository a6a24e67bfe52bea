"""Counters read from objects that come and go. Counters keep the totals of objects that were garbage-collected.

A counter that decreases looks like a restart of the process. Objects of one name are added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar
from weakref import ref

from abate import forks
from abate.reentrant_locks import Section

T = TypeVar("T")

Pair = tuple[int, int]
Reading = Callable[[], Pair | None]
"""Returns the two current counts, or None if there are none. It must not keep the object alive."""


class LastingTotals(Generic[T]):
    """Two counts for each name, which never decrease.

    >>> class Thing:
    ...     name, counted = "orders", (2, 1)
    >>> def reading(thing):
    ...     counted = thing.counted
    ...     return lambda: counted
    >>> totals, thing = LastingTotals(reading), Thing()
    >>> dict(totals.totals([(thing, "orders")]))
    {'orders': (2, 1)}
    >>> del thing
    >>> dict(totals.totals([(another := Thing(), "orders")]))
    {'orders': (4, 2)}
    """

    __slots__ = ("__weakref__", "_gone", "_known", "_reading", "_section")

    def __init__(self, reading: Callable[[T], Reading]) -> None:
        self._reading = reading
        self._known: dict[int, _Owner[T]] = {}
        self._gone: dict[str, Pair] = {}
        self._section = Section()
        forks.register(self)

    def after_fork(self) -> None:
        """Replace the lock in the child: its owner thread does not exist there."""
        self._section.after_fork()

    def totals(self, things: Iterable[tuple[T, str]]) -> Mapping[str, Pair]:
        """Return the counts by name; `things` are the objects that exist now, each with its name."""
        return self._section.call(self._totals, list(things), otherwise=self._known_totals)

    def _totals(self, things: list[tuple[T, str]]) -> Mapping[str, Pair]:
        for thing, name in things:
            owner = self._known.get(id(thing))
            if owner is None or owner.thing() is not thing:
                if owner is not None:
                    self._keep_counts_of(owner)
                self._known[id(thing)] = _Owner(thing, name, self._reading(thing))
        for place, owner in self._known.copy().items():
            if owner.thing() is None:
                del self._known[place]
                self._keep_counts_of(owner)
        return self._known_totals(things)

    def _known_totals(self, things: list[tuple[T, str]]) -> Mapping[str, Pair]:
        totals = defaultdict(lambda: (0, 0), self._gone)
        for owner in list(self._known.values()):
            counted = owner.read()
            if counted is not None:
                totals[owner.name] = _sum(totals[owner.name], counted)
        return totals

    def _keep_counts_of(self, owner: _Owner[T]) -> None:
        counted = owner.read()
        if counted is not None:
            self._gone[owner.name] = _sum(self._gone.get(owner.name, (0, 0)), counted)


class _Owner(Generic[T]):
    """An object with counts, possibly collected already."""

    __slots__ = ("_last", "_reading", "name", "thing")

    def __init__(self, thing: T, name: str, reading: Reading) -> None:
        self.thing = ref(thing)
        self.name = name
        self._reading = reading
        self._last: Pair | None = None

    def read(self) -> Pair | None:
        """Return the last known counts."""
        now = self._reading()
        if now is not None:
            self._last = now
        return self._last


def _sum(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]
