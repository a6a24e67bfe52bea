"""Weak lists of live objects: the policies, services and stores of this process, for reports.

An object is registered once, when it is made, so what it does later costs nothing here. There is no lock: every
change is one atomic operation of a dict, because the collector, a signal handler or another thread may register or
list objects at any moment.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")

SWEEP = 256
"""Dead references are removed whenever this many objects were added."""


class Registry(Generic[T]):
    """Live objects, in the order in which they were added.

    >>> class Thing: ...
    >>> things, first = Registry(), Thing()
    >>> things.add(first); things.add(Thing())
    >>> things.alive() == [first]
    True
    """

    __slots__ = ("_known", "_numbers")

    def __init__(self) -> None:
        self._known: dict[int, ref[T]] = {}
        self._numbers = count(1)

    def add(self, thing: T) -> None:
        """Register an object, weakly."""
        # unlike an id, a number is never reused, so that cleaning up can't remove a new object
        number = next(self._numbers)
        self._known[number] = ref(thing)
        if number % SWEEP == 0:
            self.alive()

    def alive(self) -> list[T]:
        """Return the objects that are alive now."""
        found: list[T] = []
        # copied atomically: building a list may run the collector, and with it code that adds an object
        for number, known in self._known.copy().items():
            thing = known()
            if thing is None:
                self._known.pop(number, None)
            else:
                found.append(thing)
        return found


policies: Registry[Any] = Registry()
services: Registry[Any] = Registry()
"""Controllers and consumers."""
stores: Registry[Any] = Registry()
