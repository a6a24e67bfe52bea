"""The calls in progress, as columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abate.sim.fleet.vector_rules import Floats, Whole

FIRST = 1024
"""Initial number of rows."""
GROWTH = 1.5
ALWAYS: dict[str, tuple[type, float]] = {
    "client": (np.int32, 0),
    "began": (np.float64, 0.0),
    "at": (np.float64, 0.0),
    "attempts": (np.int32, 0),
}
"""The columns, with their initial values."""
WHERE_NEEDED: dict[str, tuple[type, float]] = {
    "due": (np.float64, np.inf),
    "previous": (np.float64, np.nan),
    "kind": (np.int16, 0),
}


class CallTable:
    """Calls by number; `keeps` names the optional columns that this world needs.

    Released numbers are used again. The call of a serial client has the client's number.

    >>> pool = CallTable()
    >>> calls = pool.take(np.array([7, 9]), np.array([0.5, 0.25]))
    >>> pool.client[calls], pool.began[calls]
    (array([7, 9], dtype=int32), array([0.5 , 0.25]))
    """

    __slots__ = ("_columns", "_free", "_left", "at", "attempts", "began", "client", "due", "kind", "previous")

    client: NDArray[np.int32]
    began: Floats
    at: Floats
    """The instant of the next event."""
    attempts: NDArray[np.int32]
    """Failed attempts."""
    due: Floats
    """The deadline of the current attempt; infinite if there is none."""
    previous: Floats
    """The delay before the last retry; NaN before the first."""
    kind: NDArray[np.int16]
    """The kind of the failure that is being returned."""

    def __init__(self, serial: int = 0, keeps: tuple[str, ...] = ()) -> None:
        """`serial`: the number of serial clients."""
        size = serial or FIRST
        self._columns = ALWAYS | {name: WHERE_NEEDED[name] for name in keeps}
        for name, (kind, rest) in self._columns.items():
            setattr(self, name, np.full(size, rest, kind))
        self.client[:] = np.arange(size)
        self._free = np.arange(0 if serial else size, dtype=np.int32)
        self._left = len(self._free)

    def take(self, clients: NDArray[np.int32], began: Floats) -> Whole:
        """Return numbers for new calls."""
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

    def release(self, calls: Whole) -> None:
        """Release the numbers of calls that have ended."""
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
