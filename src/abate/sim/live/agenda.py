"""An agenda on the machine's clock: what is due happens on an event loop, when its instant has come.

An event loop is always a little late. What happens at an instant is told that instant as its time, not the one at which
it was reached, so that delays don't add up: a service whose timers are half a millisecond late is not a slower service.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from abate.sim.agenda import Act, Agenda


class LiveAgenda(Agenda):
    """What the simulator's services and arrivals ask for the time, in real time; `epoch` is instant 0 on the loop.

    >>> async def wait() -> float:
    ...     loop = asyncio.get_running_loop()
    ...     agenda, rung = LiveAgenda(loop, loop.time()), loop.create_future()
    ...     agenda.at(0.001, lambda _: rung.set_result(agenda.time), None)
    ...     return await rung
    >>> asyncio.run(wait())
    0.001
    """

    __slots__ = ("_at", "_loop", "epoch", "late")

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float) -> None:
        self._at: float | None = None
        self._loop = loop
        self.epoch = epoch
        self.late = 0.0
        """By how many seconds the loop was late at most."""
        super().__init__()

    @property
    def time(self) -> float:
        """The instant of what happens now; between two events, the machine's time."""
        return self.now() if self._at is None else self._at

    @time.setter
    def time(self, instant: float) -> None:
        """It is the machine's: nobody sets it."""

    def now(self) -> float:
        """Seconds since the world began."""
        return self._loop.time() - self.epoch

    def at(self, when: float, act: Act, what: Any) -> None:
        """Have `act` called with `what` at an instant."""
        if when < inf:
            self._loop.call_at(self.epoch + when, self._happen, when, act, what)

    def soon(self, act: Act, what: Any) -> None:
        """Have it called after what is ready already."""
        self._loop.call_soon(self._happen, self.time, act, what)

    def _happen(self, when: float, act: Act, what: Any) -> None:
        self.late = max(self.late, self.now() - when)
        self._at = when
        try:
            act(what)
        finally:
            self._at = None
