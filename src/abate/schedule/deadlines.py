"""Deadlines: the instant by which a call must have ended. They nest, and the nearest one wins."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType

from abate import clock
from abate.errors import number

_due: ContextVar[float | None] = ContextVar("abate_deadline", default=None)


class deadline:
    """Give everything inside the block `seconds` to finish.

    Nothing is interrupted: policies stop waiting and retrying, and clients cut their timeouts to what remains.
    A deadline inside another can only be nearer.

    >>> with deadline(5.0):
    ...     with deadline(60.0) as inner:
    ...         inner.remaining() <= 5.0
    True
    """

    __slots__ = ("_seconds", "_tokens")

    def __init__(self, seconds: float) -> None:
        self._seconds = number("deadline", seconds, least=0)
        self._tokens: list[Token[float | None]] = []

    def __enter__(self) -> deadline:
        instant, outer = clock.current().now() + self._seconds, _due.get()
        self._tokens.append(_due.set(instant if outer is None else min(instant, outer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _due.reset(self._tokens.pop())

    def remaining(self) -> float:
        """Seconds left here, never below zero; all of them before the block is entered."""
        left = remaining()
        return self._seconds if left is None else left


def remaining() -> float | None:
    """Seconds left until the nearest deadline here, never below zero; None without one.

    >>> remaining() is None
    True
    """
    here = _due.get()
    return None if here is None else max(0.0, here - clock.current().now())


def shorter(seconds: float | None) -> float | None:
    """The smaller of `seconds` and what remains here; None where neither bounds anything."""
    here = _due.get()
    if here is None:
        return seconds
    left = max(0.0, here - clock.current().now())
    return left if seconds is None else min(left, seconds)
