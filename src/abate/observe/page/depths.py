"""How deep queues are. One in memory tells at once; a store is asked in a thread, every few seconds, and one that does
not answer keeps nobody waiting: what it said last is shown, with the trouble it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from abate.redact import described
from abate.stores import Depth
from abate.work.crew import Crew

EVERY = 5.0
"""Seconds between two questions to a store about one queue."""
THREADS = 4


class Known:
    """What is known about one queue."""

    __slots__ = ("asked", "asking", "depth", "failing")

    def __init__(self) -> None:
        self.depth: Depth | None = None
        self.failing: str | None = None
        self.asked: float | None = None
        self.asking = False


class Depths:
    """The depths of the queues of controllers and consumers.

    >>> import abate
    >>> @abate.controller()
    ... def reconcile(key): ...
    >>> reconcile.add("orders/42")
    >>> Depths().of(reconcile).depth.ready
    1
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
        self._crew = Crew(THREADS)

    def of(self, service: Any) -> Known:
        """What is known about the queue of a service, without waiting."""
        known = self._noted(service)
        if _in_memory(service):
            known.depth = service.depth()
        return known

    def _noted(self, service: Any) -> Known:
        known = self._known.get(service)
        if known is None:
            known = self._known[service] = Known()
        return known

    def due(self, services: Iterable[Any], now: float) -> list[Any]:
        """Those whose stores are to be asked now; each is taken to be asked from now on."""
        due = []
        for service in services:
            known = self._noted(service)
            if _in_memory(service) or known.asking or (known.asked is not None and now < known.asked + EVERY):
                continue
            known.asked, known.asking = now, True
            due.append(service)
        return due

    async def ask(self, service: Any) -> None:
        """Ask the store of a service."""
        known = self._noted(service)
        try:
            known.depth = await self._crew.run(service.depth)
            known.failing = None
        except Exception as error:  # a source of the user's own may raise anything
            known.failing = described(error)
        finally:
            known.asking = False

    def close(self) -> None:
        """Let the threads end."""
        self._crew.dismiss()


def _in_memory(service: Any) -> bool:
    return bool(getattr(service, "in_memory", False))
