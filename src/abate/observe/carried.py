"""Counts that are read off things that come and go: what those had counted that are gone is carried on.

A counter that goes back looks like a process that was started anew. Things of one name add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar
from weakref import ref

from abate import forks
from abate.locks import Section

T = TypeVar("T")

Pair = tuple[int, int]
Reading = Callable[[], Pair | None]
"""Two counts, as they are now; None where there are none (any more). It must not keep the thing alive."""


class Carried(Generic[T]):
    """Two counts of each name, which never go back.

    >>> class Thing:
    ...     name, counted = "orders", (2, 1)
    >>> def reading(thing):
    ...     counted = thing.counted
    ...     return lambda: counted
    >>> carried, thing = Carried(reading), Thing()
    >>> dict(carried.totals([(thing, "orders")]))
    {'orders': (2, 1)}
    >>> del thing
    >>> dict(carried.totals([(another := Thing(), "orders")]))
    {'orders': (4, 2)}
    """

    __slots__ = ("__weakref__", "_gone", "_known", "_reading", "_section")

    def __init__(self, reading: Callable[[T], Reading]) -> None:
        self._reading = reading
        self._known: dict[int, _Owner[T]] = {}
        self._gone: dict[str, Pair] = {}
        self._section = Section()
        forks.keep(self)

    def after_fork(self) -> None:
        """In the child: replace the lock, whose owner may not exist there."""
        self._section.after_fork()

    def totals(self, things: Iterable[tuple[T, str]]) -> Mapping[str, Pair]:
        """The counts by name; `things` are those that are there now, each with its name."""
        return self._section.ask(self._totals, list(things), otherwise=self._known_totals)

    def _totals(self, things: list[tuple[T, str]]) -> Mapping[str, Pair]:
        for thing, name in things:
            owner = self._known.get(id(thing))
            if owner is None or owner.thing() is not thing:
                if owner is not None:
                    self._bury(owner)
                self._known[id(thing)] = _Owner(thing, name, self._reading(thing))
        for place, owner in self._known.copy().items():
            if owner.thing() is None:
                del self._known[place]
                self._bury(owner)
        return self._known_totals(things)

    def _known_totals(self, things: list[tuple[T, str]]) -> Mapping[str, Pair]:
        totals = defaultdict(lambda: (0, 0), self._gone)
        for owner in list(self._known.values()):
            counted = owner.read()
            if counted is not None:
                totals[owner.name] = _sum(totals[owner.name], counted)
        return totals

    def _bury(self, owner: _Owner[T]) -> None:
        counted = owner.read()
        if counted is not None:
            self._gone[owner.name] = _sum(self._gone.get(owner.name, (0, 0)), counted)


class _Owner(Generic[T]):
    """Something that counts, or did so."""

    __slots__ = ("_last", "_reading", "name", "thing")

    def __init__(self, thing: T, name: str, reading: Reading) -> None:
        self.thing = ref(thing)
        self.name = name
        self._reading = reading
        self._last: Pair | None = None

    def read(self) -> Pair | None:
        """The counts, as far as they are known."""
        now = self._reading()
        if now is not None:
            self._last = now
        return self._last


def _sum(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]
