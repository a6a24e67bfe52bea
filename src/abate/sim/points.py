"""Points of the unit cube at which a search looks: evenly all over it, and near one of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

GOLDEN = 1.1127756842787055
"""For six dimensions what the golden ratio is for one: x to the seventh is x + 1."""
DIMENSIONS = 6


def even(count: int, rng: Random) -> list[tuple[float, ...]]:
    """Points that fill the unit cube evenly: steps of the golden ratio's kin, one per dimension (Roberts' sequence).

    >>> [len(point) for point in even(2, Random(1))]
    [6, 6]
    """
    shift = [rng.random() for _ in range(DIMENSIONS)]
    return [
        tuple((start + step * GOLDEN ** -(place + 1)) % 1.0 for place, start in enumerate(shift))
        for step in range(count)
    ]


def around(point: Sequence[float], count: int, width: float, rng: Random) -> list[tuple[float, ...]]:
    """Points near this one.

    >>> around([0.5], 2, 0.0, Random(1))
    [(0.5,), (0.5,)]
    """
    return [tuple(min(max(0.0, rng.gauss(place, width)), 1.0 - 1e-9) for place in point) for _ in range(count)]
