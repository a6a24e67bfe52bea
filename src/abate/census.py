"""Who is there: the policies, queues and stores of this process, for those who look at them now and then.

They are kept weakly, and noted once, when they are made: what they do costs nothing here.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class Census(Generic[T]):
    """The things of one kind that are alive, in the order in which they came.

    >>> class Thing: ...
    >>> things, first = Census(), Thing()
    >>> things.note(first); things.note(Thing())
    >>> things.alive() == [first]
    True
    """

    __slots__ = ("_lock", "_things")

    def __init__(self) -> None:
        self._lock = Lock()
        self._things: dict[int, ref[T]] = {}

    def after_fork(self) -> None:
        """Who held the lock is not in the child."""
        self._lock = Lock()

    def note(self, thing: T) -> None:
        """Somebody has come."""
        # by identity: policies are equal when their settings are
        with self._lock:
            self._things[id(thing)] = ref(thing)
            if len(self._things) & 0xFF == 0:
                self._forget()

    def _forget(self) -> None:
        self._things = {place: thing for place, thing in self._things.items() if thing() is not None}

    def alive(self) -> list[T]:
        """Those who are there now."""
        with self._lock:
            self._forget()
            return [thing for known in self._things.values() if (thing := known()) is not None]


policies: Census[Any] = Census()
services: Census[Any] = Census()
"""Controllers and consumers."""
stores: Census[Any] = Census()


def _mend_in_child() -> None:
    for census in (policies, services, stores):
        census.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mend_in_child)
