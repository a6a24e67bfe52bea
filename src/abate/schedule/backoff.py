"""Delays before retries: capped exponential backoff with jitter, or the user's own numbers.

The rules:

* the ceiling of retry n is ``min(cap, base * factor ** (n - 1))``: the cap comes first, then the jitter, so
  that a fleet which has reached the cap is still spread out;
* ``full`` draws from [minimum, ceiling], ``equal`` from [ceiling / 2, ceiling], ``none`` takes the ceiling;
* ``decorrelated`` draws from [base, min(cap, 3 * previous)], where the previous delay of the first retry is the
  base;
* a `minimum` raises the base: to twice the minimum for ``full`` and ``equal``, so that the first retries are spread out
  too, and to the minimum for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, Protocol, cast

from abate.errors import choice, number, whole
from abate.frozen import Frozen
from abate.redact import short_repr

Jitter = Literal["full", "equal", "decorrelated", "none"]
JITTERS: tuple[str, ...] = ("full", "equal", "decorrelated", "none")

MAX_DELAYS = 10_000
"""The maximum number of delays read from an iterable; the last one is repeated."""


class RandomSource(Protocol):
    """A `random.Random`, or anything with its `random` method."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class Schedule(Protocol):
    """Computes the delay before retry n (from 1)."""

    @property
    def jittered(self) -> bool:
        """Whether the delays are random."""
        ...

    def delay(self, retry: int, rng: RandomSource, previous: float | None = None) -> float:
        """Return the seconds to wait before this retry; `previous` is the delay before the last one."""
        ...

    def ceiling(self, retry: int) -> float:
        """Return the largest delay for this retry."""
        ...

    def at_least(self, base: float) -> Schedule:
        """Return the schedule for an overloaded server: the same, starting from at least `base`."""
        ...


class Backoff(Frozen):
    """Capped exponential backoff with jitter; no delay is shorter than `minimum`.

    >>> import random
    >>> backoff = Backoff(base=0.1, cap=5.0)
    >>> [backoff.ceiling(retry) for retry in (1, 2, 3, 10_000)]
    [0.1, 0.2, 0.4, 5.0]
    >>> 0.0 <= backoff.delay(3, random.Random(1)) <= 0.4
    True
    >>> 0.05 <= Backoff(base=0.1, cap=5.0, minimum=0.05).delay(1, random.Random(1)) <= 0.1
    True
    """

    base: float = 0.2
    cap: float = 30.0
    factor: float = 2.0
    jitter: Jitter = "full"
    minimum: float = 0.0

    def validate(self) -> None:
        base = number("base", self.base, least=0)
        cap = number("cap", self.cap, least=0)
        if cap < base:
            raise ValueError(f"cap must be at least the base of {self.base!r}, not {self.cap!r}")
        factor = number("factor", self.factor, least=1)
        choice("jitter", self.jitter, JITTERS)
        minimum = number("minimum", self.minimum, least=0)
        if minimum > cap:
            raise ValueError(f"minimum must be at most the cap of {self.cap!r}, not {self.minimum!r}")
        start = max(base, min(cap, 2.0 * minimum if self.jitter in ("full", "equal") else minimum))
        # as floats: powers of an int grow without a limit
        self.__dict__.update(base=base, cap=cap, factor=factor, minimum=minimum, _start=start)

    @property
    def start(self) -> float:
        """The base, raised by the minimum: the ceiling of the first retry."""
        start: float = self.__dict__["_start"]
        return start

    @property
    def jittered(self) -> bool:
        """Whether the delays are random."""
        return self.jitter != "none"

    def ceiling(self, retry: int) -> float:
        """Return the largest delay for this retry."""
        if self.jitter == "decorrelated":
            return self._capped(3.0, retry)
        return self._capped(self.factor, retry - 1)

    def delay(self, retry: int, rng: RandomSource, previous: float | None = None) -> float:
        """Return the seconds to wait before retry number `retry` (from 1)."""
        jitter, start = self.jitter, self.__dict__["_start"]
        if jitter == "decorrelated":
            last = start if previous is None else previous
            top = max(start, min(self.cap, last * 3.0))
            drawn: float = start + (top - start) * rng.random()
            return drawn
        try:
            ceiling: float = start * self.factor ** (retry - 1)
        except OverflowError:
            ceiling = self._capped(self.factor, retry - 1)
        if ceiling > self.cap:
            ceiling = self.cap
        if jitter == "full":
            return self.minimum + (ceiling - self.minimum) * rng.random() if self.minimum else ceiling * rng.random()
        if jitter == "equal":
            return max(self.minimum, ceiling * (0.5 + 0.5 * rng.random()))
        return ceiling

    def at_least(self, base: float) -> Backoff:
        """Return the same backoff, starting from at least `base` (as far as the cap allows)."""
        wider = min(base, self.cap)
        return self if self.base >= wider else Backoff(wider, self.cap, self.factor, self.jitter, self.minimum)

    def _capped(self, factor: float, power: int) -> float:
        start: float = self.__dict__["_start"]
        try:
            ceiling = start * factor**power
        except OverflowError:
            return self.cap if start else 0.0
        return ceiling if ceiling < self.cap else self.cap


class FunctionSchedule(Frozen):
    """The user's function from the number of a retry to seconds."""

    function: Callable[[int], float]
    jittered = False

    def delay(self, retry: int, rng: RandomSource, previous: float | None = None) -> float:
        return number(f"the delay that the schedule gave for retry {retry}", self.function(retry), least=0)

    def ceiling(self, retry: int) -> float:
        return number(f"the delay that the schedule gave for retry {retry}", self.function(retry), least=0)

    def at_least(self, base: float) -> FunctionSchedule:
        return self


class ListSchedule(Frozen):
    """The user's own delays, one per retry; the last one is repeated."""

    delays: tuple[float, ...]
    jittered = False

    def delay(self, retry: int, rng: RandomSource, previous: float | None = None) -> float:
        return self.delays[retry - 1] if retry <= len(self.delays) else self.delays[-1]

    def ceiling(self, retry: int) -> float:
        return self.delays[retry - 1] if retry <= len(self.delays) else self.delays[-1]

    def at_least(self, base: float) -> ListSchedule:
        return self


def schedule(backoff: Schedule | Callable[[int], float] | Iterable[float]) -> Schedule:
    """Turn what a policy was given as ``backoff`` into a schedule.

    A number from a function or an iterable is taken as it is: no jitter is added to it.

    >>> schedule([0.1, 0.5]).ceiling(3)
    0.5
    >>> schedule(lambda retry: 0.1 * retry).ceiling(3)
    0.30000000000000004
    """
    expected = "backoff must be a Backoff, a function of the retry's number, or an iterable of seconds"
    if isinstance(backoff, (str, bytes, type)):
        raise TypeError(f"{expected}, not {short_repr(backoff)}")
    if callable(getattr(backoff, "delay", None)):
        return cast(Schedule, backoff)
    if callable(backoff):
        return FunctionSchedule(backoff)
    if isinstance(backoff, Iterator):
        raise TypeError(f"{expected}; {backoff!r} is an iterator, which only one call could read: give a list")
    if not isinstance(backoff, Iterable):
        raise TypeError(f"{expected}, not {short_repr(backoff)}")
    delays = tuple(
        number(f"backoff[{place}]", delay, least=0) for place, delay in enumerate(islice(backoff, MAX_DELAYS))
    )
    if not delays:
        raise ValueError(f"{expected}, not an empty iterable")
    return ListSchedule(delays)


def max_total_delay(backoff: Schedule, retries: int) -> float:
    """Return the maximum seconds that `retries` retries wait in total."""
    exact = min(whole("retries", retries, least=0), MAX_DELAYS)
    rest = backoff.ceiling(retries) * (retries - exact) if retries > exact else 0.0
    return math.fsum(backoff.ceiling(retry) for retry in range(1, exact + 1)) + rest
