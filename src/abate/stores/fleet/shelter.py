"""A shelter that a fleet shares: what one process learns about a dependency, all processes apply.

Each process reports what it sees of the dependency, and applies the advice that it gets (see `shelter_rules`): in an
outage one process probes and the others send nothing; during recovery the limit grows step by step. Without a valid
reply of the store each process shelters alone.

A forked child starts its sync when a call first enters its dispatcher. In calm only measured calls enter it, and the
first call of a child always is measured.
"""

from __future__ import annotations

from math import inf
from typing import NoReturn

from abate import forks
from abate.admit.shelter import Shelter
from abate.events import ShelterState
from abate.schedule.backoff import RandomSource
from abate.stores.fleet.background_sync import FleetSync
from abate.stores.fleet.sync_requests import ShelterAdvice, ShelterReport


class FleetShelter(Shelter):
    """A `Shelter` that shares what it knows; made by `Store.shelter`.

    >>> import abate
    >>> shelter = abate.open_store("memory:").shelter("orders", capacity=100)
    >>> policy = abate.Policy(on=ConnectionError, shelter=shelter)
    >>> shelter.state
    'calm'
    """

    __slots__ = ("_answers", "_failures", "_fleet_sync", "_reported_state")

    def __init__(
        self,
        fleet_sync: FleetSync,
        name: str,
        capacity: int = 1000,
        patience: float = 10.0,
        *,
        rng: RandomSource | None = None,
    ) -> None:
        self._fleet_sync = fleet_sync
        self._reported_state: ShelterState = "calm"
        super().__init__(capacity, patience, name=name, rng=rng)
        self._answers = self._failures = 0
        forks.register(self)  # after the dispatcher, which is repaired first
        fleet_sync.join(self)

    def _pickled_settings(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to a store, which is opened in each process")

    def _on_calm_change(self, calm: bool) -> None:
        super()._on_calm_change(calm)
        state = self._dispatchers.main.state
        if state != self._reported_state:  # tell the others
            self._reported_state = state
            self._fleet_sync.sync_soon()
        else:
            self._fleet_sync.start()  # a child may not have started it yet

    def after_fork(self) -> None:
        """Shelter alone in the child until the first advice. The parent reports what it has seen."""
        dispatcher = self._dispatchers.main
        self._answers, self._failures = dispatcher.counts()
        self._reported_state = dispatcher.state
        self.calm = False
        dispatcher.sample_next()  # the first call asks the dispatcher, which starts the sync

    def request(self, now: float) -> ShelterReport:
        """Return what was seen since the last sync."""
        dispatcher = self._dispatchers.main
        answers, failures = dispatcher.counts()
        answered, self._answers = answers - self._answers, answers
        failed, self._failures = failures - self._failures, failures
        # a process without calls must not be the prober
        has_calls = failed or answered or dispatcher.waiters
        state = dispatcher.state if has_calls else "calm"
        return ShelterReport(self.name, state, answered, failed, max(0.0, dispatcher.hint_until - now))

    def apply(self, reply: ShelterAdvice, until: float) -> None:
        """Apply the advice until the next one."""
        dispatcher = self._dispatchers.main
        paused_until = dispatcher.clock.now() + reply.pause if reply.pause else -inf
        match reply.state:
            case "storm":
                dispatcher.apply_remote(True, paused_until if reply.probe else until, inf, reply.members)
            case "recovering" if reply.limit < 1:
                dispatcher.apply_remote(False, until, inf)
            case "recovering":
                dispatcher.apply_remote(False, paused_until, reply.limit)
            case _:
                dispatcher.apply_remote(False, paused_until, inf)

    def fall_back(self) -> None:
        """Shelter alone."""
        self._dispatchers.main.apply_remote(False, -inf, inf)

    def on_close(self) -> None:
        """Shelter alone from now on."""
        self.fall_back()
