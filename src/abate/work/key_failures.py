"""Counts the failures of keys, and decides when a key that failed may come back. Without clock, lock or I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

from abate.errors import number, whole
from abate.schedule.backoff import RandomSource, Schedule

K = TypeVar("K", bound=Hashable)

MAX_FAILURES = 100_000
"""Keys whose failures are counted; beyond that, the key that failed longest ago is forgotten."""


class KeyFailures(Generic[K]):
    """The failures of keys, each with its own backoff, and a rate for all failed keys together.

    >>> import random
    >>> from abate import Backoff
    >>> failures = KeyFailures(Backoff(1.0, jitter="none"))
    >>> [failures.next_delay(key, 0.0, random) for key in "aab"], failures.requeues("a")
    ([1.0, 2.0, 1.0], 2)
    """

    __slots__ = ("_backoff", "_burst", "_failures", "_next_token_at", "_rate")

    def __init__(self, backoff: Schedule | None = None, rate: float | None = None, burst: int = 1) -> None:
        self._backoff = backoff
        self._rate = None if rate is None else number("rate", rate, above=0)
        self._burst = whole("burst", burst, least=1)
        self._next_token_at = -inf  # when the rate has its next token
        self._failures: OrderedDict[K, int] = OrderedDict()

    def next_delay(self, key: K, now: float, rng: RandomSource) -> float:
        """Count a failure of a key. Return the seconds until it may come back, by its backoff and the shared rate."""
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures  # at the end: the first one failed longest ago
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        own = self.backoff_delay(failures, rng)
        if self._rate is None:
            return own
        self._next_token_at = max(self._next_token_at, now - self._burst / self._rate) + 1 / self._rate
        return max(own, self._next_token_at - now)

    def forget(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def backoff_delay(self, failures: int, rng: RandomSource) -> float:
        """Return the backoff in seconds after this number of failures."""
        return 0.0 if self._backoff is None else self._backoff.delay(failures, rng)

    def requeues(self, key: K) -> int:
        """Return how often a key has failed since `forget`."""
        return self._failures.get(key, 0)
