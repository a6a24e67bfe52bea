"""How long things take in a simulated world: a mean, and the shape around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Literal

from abate.errors import choice, number
from abate.values import Value

Shape = Literal["constant", "exponential", "uniform", "normal", "lognormal"]
SHAPES = ("constant", "exponential", "uniform", "normal", "lognormal")
SPREAD = ("uniform", "normal", "lognormal")
"""The shapes that have a width of their own."""


class Duration(Value):
    """Seconds, drawn anew each time.

    * ``constant``: the mean itself; ``exponential``: the mean of a queueing theorist;
    * ``uniform``: within `spread` of the mean; ``normal``: with this standard deviation, its sign left out;
    * ``lognormal``: with this standard deviation, skewed as latencies are.

    >>> Duration(0.1).mean, Duration(0.1, "exponential").shape
    (0.1, 'exponential')
    >>> Duration(0.01, "normal", spread=0.002).drawn_from(Random(1))() > 0
    True
    """

    mean: float
    shape: Shape = "constant"
    spread: float = 0.0

    def checked(self) -> None:
        number("mean", self.mean, least=0)
        choice("shape", self.shape, SHAPES)
        number("spread", self.spread, least=0)
        if self.spread and self.shape not in SPREAD:
            raise ValueError(f"spread must be 0 for the shape {self.shape!r}, not {self.spread!r}")
        if self.shape == "uniform" and self.spread > self.mean:
            raise ValueError(f"spread must be at most the mean of {self.mean!r}, not {self.spread!r}")
        if self.shape == "lognormal" and not self.mean:
            raise ValueError("mean must be above 0 for the shape 'lognormal', not 0")

    @classmethod
    def of(cls, value: Duration | float) -> Duration:
        """A number is a constant duration.

        >>> Duration.of(0.5)
        Duration(mean=0.5, shape='constant', spread=0.0)
        """
        return value if isinstance(value, Duration) else cls(value)

    @property
    def nothing(self) -> bool:
        """Does it take no time at all?"""
        return not self.mean and not self.spread

    def drawn_from(self, rng: Random) -> Callable[[], float]:
        """A function that draws the next one.

        >>> Duration(0.25).drawn_from(Random(1))()
        0.25
        """
        mean, spread = float(self.mean), float(self.spread)
        if self.nothing or self.shape == "constant":
            return lambda: mean
        if self.shape == "exponential":
            uniform, log = rng.random, math.log
            return lambda: -mean * log(1.0 - uniform())
        if self.shape == "uniform":
            return lambda: rng.uniform(mean - spread, mean + spread)
        if self.shape == "normal":
            return lambda: abs(rng.gauss(mean, spread))
        variance = math.log1p((spread / mean) ** 2)
        centre, width = math.log(mean) - variance / 2, math.sqrt(variance)
        return lambda: math.exp(rng.gauss(centre, width))
