"""Asks many queues at once how deep they are, and waits for none of them longer than for all.

A queue in memory tells at once. A store is asked in a thread: one that does not answer would hold up whoever collects
metrics, and with them the news that the store does not answer. A question that is still open is not asked again, nor
waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import copy_context
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from abate import forks
from abate.redact import described

if TYPE_CHECKING:
    from abate.stores import Depth

PATIENCE = 1.0
"""Seconds that all the stores have together."""


class Answer:
    """How deep a queue is, or what kept it from telling."""

    __slots__ = ("_told", "depth", "failing")

    def __init__(self) -> None:
        self.depth: Depth | None = None
        self.failing: str | None = "the store does not answer"
        self._told = Flag()

    def ask(self, service: Any) -> None:
        """Ask, for as long as it takes."""
        try:
            self.depth, self.failing = service.depth(), None
        except Exception as error:  # a source of the user's own may raise anything
            self.failing = described(error)
        finally:
            self._told.set()

    def wait(self, until: float) -> bool:
        """Wait until an instant, at most: is it there?"""
        return self._told.wait(max(0.0, until - time.monotonic()))


class Questions:
    """For each service, the last question that it did not answer in time. One step each, so there is no lock."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the questions: the threads that asked them do not exist in the child."""
        self.open: WeakKeyDictionary[Any, Answer] = WeakKeyDictionary()


_late = forks.keep(Questions())


def depths(services: Iterable[Any]) -> list[Answer]:
    """How deep the queues of these services are.

    >>> import abate
    >>> @abate.controller()
    ... def reconcile(key): ...
    >>> reconcile.add("orders/42")
    >>> [answer.depth.ready for answer in depths([reconcile])]
    [1]
    """
    until = time.monotonic() + PATIENCE
    asked = [(service, *_asked(service)) for service in services]
    for service, answer, now in asked:
        if now and not answer.wait(until):
            _late.open[service] = answer
    return [answer for _, answer, _ in asked]


def _asked(service: Any) -> tuple[Answer, bool]:
    """The answer to come, and whether it was asked for just now."""
    answer = Answer()
    if getattr(service, "in_memory", False):
        answer.ask(service)
        return answer, True
    late = _late.open.get(service)
    if late is not None and not late.wait(0.0):
        return late, False
    try:
        ask = copy_context().run  # a store looks at the clock, too
        Thread(target=ask, args=(answer.ask, service), name="abate-depth", daemon=True).start()
    except RuntimeError:  # no thread to be had
        answer.ask(service)
    return answer, True
