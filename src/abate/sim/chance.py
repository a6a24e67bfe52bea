"""Where chance comes from: a stream of its own for each purpose, so that one does not disturb the others."""

from __future__ import annotations

from random import Random


class Chance:
    """The streams of one run: those of one name are the same for the same seed.

    >>> Chance(1).stream("arrivals").random() == Chance(1).stream("arrivals").random()
    True
    >>> Chance(1).stream("arrivals").random() == Chance(1).stream("service").random()
    False
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, name: str) -> Random:
        """The stream of this name, from its beginning."""
        return Random(f"{self._seed}/{name}")
