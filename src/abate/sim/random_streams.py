"""Named random streams: one for each purpose, so that one purpose does not change the numbers of another."""

from __future__ import annotations

from random import Random


class RandomStreams:
    """The streams of one run. The same seed and name give the same numbers.

    >>> RandomStreams(1).stream("arrivals").random() == RandomStreams(1).stream("arrivals").random()
    True
    >>> RandomStreams(1).stream("arrivals").random() == RandomStreams(1).stream("service").random()
    False
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> Random:
        """Return the stream of this name, from its beginning."""
        return Random(f"{self._seed}/{name}")
