"""The keys of a queue that stand out, in bounded memory: the hottest keys and the failing keys.

The hottest are counted by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005): a new key replaces the
coldest one and inherits its count as an error bound. So no count is too low, none is too high by more than its error
bound, and every key with more than one in `most` of all events is listed.
"""

from __future__ import annotations

MAX_KEYS = 50
"""Keys that are kept of each kind."""
STALE = 900.0
"""Seconds after which a failed key without news is forgotten."""


class HottestKeys:
    """The most frequent keys.

    >>> hottest = HottestKeys(most=2)
    >>> for key in "a", "a", "b", "a", "c": hottest.add(key)
    >>> hottest.top(5)
    [('a', 3), ('c', 1)]
    """

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        self._counts: dict[str, list[int]] = {}  # for each key its count, and the error bound of it

    def add(self, key: str) -> None:
        """Count a key."""
        known = self._counts.get(key)
        if known is not None:
            known[0] += 1
        elif len(self._counts) < self._most:
            self._counts[key] = [1, 0]
        else:
            coldest = min(self._counts, key=lambda other: self._counts[other][0])
            least = self._counts.pop(coldest)[0]
            self._counts[key] = [least + 1, least]

    def fade(self) -> None:
        """Halve all counts, so that recent keys replace those that were hot earlier."""
        halves = ((key, count // 2, excess // 2) for key, (count, excess) in self._counts.items())
        self._counts = {key: [count, excess] for key, count, excess in halves if count}

    def top(self, most: int) -> list[tuple[str, int]]:
        """Return the hottest keys, each with the least number of times that it has come."""
        certain = [(key, count - excess) for key, (count, excess) in self._counts.items()]
        return sorted(certain, key=lambda item: -item[1])[:most]

    def __len__(self) -> int:
        return len(self._counts)


class FailingKeys:
    """The failing keys, until they succeed; those with the most failures are kept.

    >>> failing = FailingKeys()
    >>> failing.note("orders/42", 3, "TimeoutError: slow", now=0.0)
    >>> failing.top(5, now=1.0)
    [('orders/42', 3, 'TimeoutError: slow')]
    >>> failing.forget("orders/42"); failing.top(5, now=2.0)
    []
    """

    __slots__ = ("_keys", "_most")

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        self._keys: dict[str, tuple[int, str, float]] = {}

    def note(self, key: str, times: int, error: str, now: float) -> None:
        """Note that a key has failed, now `times` times in a row."""
        self._keys.pop(key, None)
        if len(self._keys) >= self._most:
            # the fewest failures first, then the oldest news
            del self._keys[min(self._keys, key=lambda other: self._rank(other, now))]
        self._keys[key] = (times, error, now)

    def _rank(self, key: str, now: float) -> int:
        times, _, at = self._keys[key]
        return 0 if now - at > STALE else times

    def forget(self, key: str) -> None:
        """Forget a key that has succeeded, or that will not be retried."""
        self._keys.pop(key, None)

    def top(self, most: int, now: float) -> list[tuple[str, int, str]]:
        """Return the keys with the most failures, each with that number and the last error."""
        fresh = [(key, times, error) for key, (times, error, at) in self._keys.items() if now - at <= STALE]
        return sorted(fresh, key=lambda item: -item[1])[:most]

    def __len__(self) -> int:
        return len(self._keys)
