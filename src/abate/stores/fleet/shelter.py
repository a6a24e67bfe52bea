"""A shelter whose fleet knows together what each process would have to find out for itself.

Each process tells what it sees of the dependency, and goes by the forecast that it is given (see `weather`): in a storm
one process probes and the others send nothing; when the dependency comes back, the doors open one after the other.
Without news from the store each shelters alone. A fork's child starts its courier with the first call that comes to its
door: in calm that is the first that is measured, which in a child is the first of all.
"""

from __future__ import annotations

from math import inf
from typing import NoReturn

from abate import forks
from abate.admit.shelter import Shelter
from abate.admit.weather import State
from abate.schedule.backoff import Uniform
from abate.stores.fleet.courier import Courier
from abate.stores.fleet.offers import Forecast, Sight


class FleetShelter(Shelter):
    """A `Shelter` that shares what it knows; made by `Store.shelter`.

    >>> import abate
    >>> shelter = abate.open_store("memory:").shelter("orders", capacity=100)
    >>> policy = abate.Policy(on=ConnectionError, shelter=shelter)
    >>> shelter.state
    'calm'
    """

    __slots__ = ("_answers", "_courier", "_failures", "_told")

    def __init__(
        self, courier: Courier, name: str, capacity: int = 1000, patience: float = 10.0, *, rng: Uniform | None = None
    ) -> None:
        self._courier = courier
        self._told: State = "calm"
        super().__init__(capacity, patience, name=name, rng=rng)
        self._answers = self._failures = 0
        forks.keep(self)  # after the door, which is mended first
        courier.join(self)

    def _made_from(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _calmed(self, calm: bool) -> None:
        super()._calmed(calm)
        state = self._doors.main.weather.state
        if state != self._told:  # news for the others
            self._told = state
            self._courier.hurry()
        else:
            self._courier.start()  # in a child it has not begun yet

    def after_fork(self) -> None:
        """In a child: go by what is seen here until it is told more; what the parent has seen, the parent tells."""
        weather = self._doors.main.weather
        self._answers, self._failures, self._told = weather.answers, weather.failures, weather.state
        self.calm, weather.look = False, -inf  # the first call comes to the door, and with it the courier begins

    def offer(self, now: float) -> Sight:
        """What was seen since the last time."""
        weather = self._doors.main.weather
        answered, self._answers = weather.answers - self._answers, weather.answers
        failed, self._failures = weather.failures - self._failures, weather.failures
        # who has no calls for it must not be the one who probes
        concerned = failed or answered or self._doors.main.waiters
        state = weather.state if concerned else "calm"
        return Sight(self.name, state, answered, failed, max(0.0, weather.hinted - now))

    def take(self, answer: Forecast, until: float) -> None:
        """Go by the forecast until the next."""
        door = self._doors.main
        closed = door.clock.now() + answer.closed if answer.closed else -inf
        match answer.state:
            case "storm":
                door.heed(True, closed if answer.probe else until, inf, answer.members)
            case "recovering" if answer.limit < 1:
                door.heed(False, until, inf)
            case "recovering":
                door.heed(False, closed, answer.limit)
            case _:
                door.heed(False, closed, inf)

    def unheard(self) -> None:
        """Shelter alone."""
        self._doors.main.heed(False, -inf, inf)

    def closed(self) -> None:
        """Shelter alone from now on."""
        self.unheard()
