"""The keys of a queue that stand out, in bounded memory however many there are: the hottest, and those that fail.

The hottest are counted by the space-saving rule (Metwally, Agrawal, El Abbadi 2005): a key that is not known takes the
place of the coldest one, and inherits its count as an excess. So no count is too low, none is too high by more than its
excess, and whatever makes up more than one in `most` of all is there.
"""

from __future__ import annotations

MOST = 50
"""Keys that are kept of each kind."""
STALE = 900.0
"""Seconds after which a key that failed, and was not heard of since, is forgotten."""


class Hottest:
    """The keys that come most often.

    >>> hottest = Hottest(most=2)
    >>> for key in "a", "a", "b", "a", "c": hottest.add(key)
    >>> hottest.top(5)
    [('a', 3), ('c', 1)]
    """

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._counts: dict[str, list[int]] = {}  # of each key: its count, and the excess in it

    def add(self, key: str) -> None:
        """A key has come."""
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
        """Halve everything, so that what was hot once gives way to what is hot now."""
        halves = ((key, count // 2, excess // 2) for key, (count, excess) in self._counts.items())
        self._counts = {key: [count, excess] for key, count, excess in halves if count}

    def top(self, most: int) -> list[tuple[str, int]]:
        """The hottest, each with a number of times that it has come for certain."""
        certain = [(key, count - excess) for key, (count, excess) in self._counts.items()]
        return sorted(certain, key=lambda item: -item[1])[:most]

    def __len__(self) -> int:
        return len(self._counts)


class Failing:
    """The keys that fail, until they are done: those that have failed most often stay.

    >>> failing = Failing()
    >>> failing.note("orders/42", 3, "TimeoutError: slow", now=0.0)
    >>> failing.top(5, now=1.0)
    [('orders/42', 3, 'TimeoutError: slow')]
    >>> failing.forget("orders/42"); failing.top(5, now=2.0)
    []
    """

    __slots__ = ("_keys", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: dict[str, tuple[int, str, float]] = {}

    def note(self, key: str, times: int, error: str, now: float) -> None:
        """A key has failed, `times` times in a row by now."""
        self._keys.pop(key, None)
        if len(self._keys) >= self._most:
            # among those that failed least often, the one that was heard of longest ago comes first
            del self._keys[min(self._keys, key=lambda other: self._rank(other, now))]
        self._keys[key] = (times, error, now)

    def _rank(self, key: str, now: float) -> int:
        times, _, at = self._keys[key]
        return 0 if now - at > STALE else times

    def forget(self, key: str) -> None:
        """A key is fine again, or nobody comes back to it."""
        self._keys.pop(key, None)

    def top(self, most: int, now: float) -> list[tuple[str, int, str]]:
        """Those that have failed most often, each with how often and the last error."""
        fresh = [(key, times, error) for key, (times, error, at) in self._keys.items() if now - at <= STALE]
        return sorted(fresh, key=lambda item: -item[1])[:most]

    def __len__(self) -> int:
        return len(self._keys)
