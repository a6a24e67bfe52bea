"""Counts by word over the last minute.

The minute has six parts, so the oldest counted event is 50 to 60 seconds old. The number of words is bounded: further
ones are counted as ``other``.
"""

from __future__ import annotations

from collections import deque

PART = 10.0
"""Seconds of one part."""
PARTS = 6
MAX_WORDS = 16
"""Words that are told apart within one part."""
OTHER = "other"


class SlidingCounts:
    """Counts by word over the last minute. The caller passes the time.

    >>> counts = SlidingCounts()
    >>> counts.add("blip", 0.0); counts.add("overload", 30.0); counts.add("blip", 30.0)
    >>> counts.counts(45.0), counts.counts(75.0), counts.counts(300.0)
    ({'blip': 2, 'overload': 1}, {'overload': 1, 'blip': 1}, {})
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[tuple[int, dict[str, int]]] = deque(maxlen=PARTS)

    def add(self, word: str, now: float) -> None:
        """Count one."""
        part = int(now // PART)
        if not self._parts or self._parts[-1][0] < part:
            self._parts.append((part, {}))
        words = self._parts[-1][1]
        if word not in words and len(words) >= MAX_WORDS:
            word = OTHER
        words[word] = words.get(word, 0) + 1

    def counts(self, now: float) -> dict[str, int]:
        """Return the count of each word."""
        oldest = int(now // PART) - PARTS
        total: dict[str, int] = {}
        for part, words in self._parts:
            if part > oldest:
                for word, count in words.items():
                    total[word] = total.get(word, 0) + count
        return total
