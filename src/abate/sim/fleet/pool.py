"""The calls under way, by number: a column for each thing that has to be known of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abate.sim.arrays import Floats, Whole

FIRST = 1024
"""Calls that there is room for at first."""
GROWTH = 1.5
ALWAYS: dict[str, tuple[type, float]] = {
    "client": (np.int32, 0),
    "began": (np.float64, 0.0),
    "at": (np.float64, 0.0),
    "attempts": (np.int32, 0),
}
"""The columns, with what they hold at first."""
WHERE_NEEDED: dict[str, tuple[type, float]] = {
    "due": (np.float64, np.inf),
    "previous": (np.float64, np.nan),
    "kind": (np.int16, 0),
}


class Pool:
    """Numbers for calls, and what is known of each; `keeps` names the columns that are needed in this world.

    A number that is given back is the first to be used again. Where clients are serial, each has one call at a time,
    and its number is the client's own.

    >>> pool = Pool()
    >>> calls = pool.take(np.array([7, 9]), np.array([0.5, 0.25]))
    >>> pool.client[calls], pool.began[calls]
    (array([7, 9], dtype=int32), array([0.5 , 0.25]))
    """

    __slots__ = ("_columns", "_free", "_left", "at", "attempts", "began", "client", "due", "kind", "previous")

    client: NDArray[np.int32]
    began: Floats
    at: Floats
    """The instant of what is due next."""
    attempts: NDArray[np.int32]
    """Attempts that have failed."""
    due: Floats
    """The instant until which an answer is waited for; infinite where none is."""
    previous: Floats
    """The delay before the last retry; not a number before the first."""
    kind: NDArray[np.int16]
    """The kind of the failure that is on its way back."""

    def __init__(self, serial: int = 0, keeps: tuple[str, ...] = ()) -> None:
        """`serial`: how many serial clients there are."""
        size = serial or FIRST
        self._columns = ALWAYS | {name: WHERE_NEEDED[name] for name in keeps}
        for name, (kind, rest) in self._columns.items():
            setattr(self, name, np.full(size, rest, kind))
        self.client[:] = np.arange(size)
        self._free = np.arange(0 if serial else size, dtype=np.int32)
        self._left = len(self._free)

    def take(self, clients: NDArray[np.int32], began: Floats) -> Whole:
        """Numbers for calls that begin."""
        wanted = len(clients)
        if wanted > self._left:
            self._grow(wanted - self._left)
        self._left -= wanted
        calls = self._free[self._left : self._left + wanted].astype(np.intp)
        self.client[calls] = clients
        self.began[calls] = began
        self.attempts[calls] = 0
        if "previous" in self._columns:
            self.previous[calls] = np.nan
        return calls

    def give_back(self, calls: Whole) -> None:
        """These calls are over."""
        self._free[self._left : self._left + len(calls)] = calls
        self._left += len(calls)

    def _grow(self, missing: int) -> None:
        size = len(self.client)
        wider = max(int(size * GROWTH), size + missing)
        for name, (kind, rest) in self._columns.items():
            grown: NDArray[Any] = np.full(wider, rest, kind)
            grown[:size] = getattr(self, name)
            setattr(self, name, grown)
        free = np.empty(wider, np.int32)
        free[: self._left] = self._free[: self._left]
        free[self._left : self._left + wider - size] = np.arange(size, wider)
        self._free = free
        self._left += wider - size
