"""Deadlines: the instant by which a call must have ended. They nest, and the nearest one wins."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

from abate import clock
from abate.errors import number


class _Due(NamedTuple):
    """An instant, and what stood around it. The context holds both, so that one `deadline` serves many."""

    instant: float
    outer: _Due | None


_due: ContextVar[_Due | None] = ContextVar("abate_deadline", default=None)


class deadline:
    """Give everything inside the block `seconds` to finish.

    Nothing is interrupted: policies stop waiting and retrying, and clients cut their timeouts to what remains.
    A deadline inside another can only be nearer.

    >>> with deadline(5.0):
    ...     with deadline(60.0) as inner:
    ...         inner.remaining() <= 5.0
    True
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = number("deadline", seconds, least=0)

    def __enter__(self) -> deadline:
        instant, outer = clock.current().now() + self._seconds, _due.get()
        _due.set(_Due(instant if outer is None else min(instant, outer.instant), outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = _due.get()
        if here is not None:  # a generator may be closed in another context than the one that entered
            _due.set(here.outer)

    def remaining(self) -> float:
        """Seconds left here, never below zero; before the block is entered, what there would be."""
        left = remaining()
        return self._seconds if left is None else min(self._seconds, left)


def remaining() -> float | None:
    """Seconds left until the nearest deadline here, never below zero; None without one.

    >>> remaining() is None
    True
    """
    here = _due.get()
    return None if here is None else max(0.0, here.instant - clock.current().now())


nearest = _due.get
"""The nearest deadline here; None without one: a look that costs less than to call `shorter`."""


def shorter(seconds: float | None) -> float | None:
    """The smaller of `seconds` and what remains here; None where neither bounds anything."""
    here = _due.get()
    if here is None:
        return seconds
    left = max(0.0, here.instant - clock.current().now())
    return left if seconds is None else min(left, seconds)
