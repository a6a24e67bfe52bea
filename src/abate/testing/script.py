"""A scripted function: raises, takes time, or returns, as given."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from abate import clock
from abate.errors import number


@dataclass(frozen=True, slots=True)
class Late:
    """An outcome after a delay."""

    seconds: float
    outcome: object


def after(seconds: float, outcome: object) -> Late:
    """Return an outcome that comes after `seconds` on the context's clock.

    >>> import abate
    >>> with abate.testing.VirtualClock() as clock:
    ...     Script(after(2.5, "fine"))(), clock.now()
    ('fine', 2.5)
    """
    return Late(number("seconds", seconds, least=0), outcome)


class Script:
    """A function with given outcomes, in order: exceptions are raised, anything else is returned.

    `acall` is the same as a coroutine function. `calls` holds the arguments of every call. When the outcomes have
    run out, a further call is an AssertionError.

    >>> script = Script(ConnectionError("gone"), 42)
    >>> try: script("a")
    ... except ConnectionError as error: print(error)
    gone
    >>> script("b"), script.calls
    (42, [(('a',), {}), (('b',), {})])
    """

    def __init__(self, *outcomes: object) -> None:
        self._outcomes = outcomes
        self._places = count()
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        outcome = self._next(args, kwargs)
        if isinstance(outcome, Late):
            clock.current().sleep(outcome.seconds)
            outcome = outcome.outcome
        return _played(outcome)

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Play the next outcome, as a coroutine function."""
        outcome = self._next(args, kwargs)
        if isinstance(outcome, Late):
            await clock.current().asleep(outcome.seconds)
            outcome = outcome.outcome
        return _played(outcome)

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        self.calls.append((args, kwargs))
        place = next(self._places)
        if place >= len(self._outcomes):
            raise AssertionError(f"call {place + 1} of a script with {len(self._outcomes)} outcomes")
        return self._outcomes[place]


def _played(outcome: object) -> object:
    if isinstance(outcome, BaseException):
        # a shared error object would keep the frames of every call that raised it
        raise outcome.with_traceback(None)
    if isinstance(outcome, type) and issubclass(outcome, BaseException):
        raise outcome
    return outcome
