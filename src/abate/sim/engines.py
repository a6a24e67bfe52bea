"""The engines by their names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from abate.errors import choice
from abate.sim.measures import Run
from abate.sim.world import ENGINES, World

Simulate = Callable[[World, int, bool], Run]


def engine_of(name: str) -> Simulate:
    """What runs a world.

    >>> engine_of("exact").__module__
    'abate.sim.exact'
    """
    # imported when it is asked for: one of them needs NumPy
    simulate: Simulate = import_module(f"abate.sim.{choice('engine', name, ENGINES)}").run
    return simulate
