"""When clients call: independently of results (open), or each client after its last result (serial)."""

from __future__ import annotations

from collections.abc import Callable
from math import log

from abate.schedule.periodic import consistent_jitter
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.model import Clients
from abate.sim.varying_rate import VaryingRate
from abate.sim.world import World

AHEAD = 0.05
"""Seconds for which Poisson arrivals are drawn at once."""

Begin = Callable[[int], object]
"""Called with the client, at the instant of its call."""


class Arrivals:
    """Begins the calls of clients; for serial clients, call `finished` when a call has ended."""

    __slots__ = ("_agenda", "_begin", "_clients", "_count", "_pace", "_period", "_uniform", "serial")

    def __init__(self, world: World, agenda: Agenda, streams: RandomStreams, begin: Begin) -> None:
        clients = world.clients
        assert isinstance(clients, Clients)
        self._agenda = agenda
        self._begin = begin
        self._clients = clients
        self._count = clients.count
        self._period = 1.0 / clients.rate
        self._uniform = streams.stream("arrivals").random
        self.serial = clients.kind == "serial" and clients.arrivals != "once"
        # the rate of one client, or that of all clients for a Poisson stream
        self._pace = VaryingRate(
            clients.rate if self.serial or clients.arrivals != "poisson" else clients.offered, world.spikes
        )
        if clients.arrivals == "once":
            self._once()
        elif clients.arrivals == "periodic":
            self._periodic()
        elif self.serial:
            for client in range(clients.count):
                self._think(client, clients.start)
        else:
            agenda.at(self._pace.after(clients.start, self._gap()), self._arrive, None)

    def _gap(self) -> float:
        return -log(1.0 - self._uniform())

    def _arrive(self, _: None) -> None:
        """Draw the next calls of the Poisson stream of all clients; each call gets a random client."""
        agenda, uniform, pace, count = self._agenda, self._uniform, self._pace, self._count
        at, begin, usual = agenda.at, self._begin, pace.usual
        when = agenda.time
        edge = when + AHEAD
        while when < edge:
            gap = -log(1.0 - uniform())
            at(when, begin, int(uniform() * count))
            when = when + gap / usual if pace.steady else pace.after(when, gap)
        at(when, self._arrive, None)

    def _think(self, client: int, now: float) -> None:
        pause = 1.0 if self._clients.arrivals == "periodic" else self._gap()
        self._agenda.at(self._pace.after(now, pause), self._begin, client)

    def finished(self, client: int) -> None:
        """Schedule the next call of a serial client."""
        if self.serial:
            self._think(client, self._agenda.time)

    # -- periodic and single calls

    def _once(self) -> None:
        clients, at = self._clients, self._agenda.at
        if clients.offset == "none" or not clients.spread:
            at(clients.start, self._all, None)
            return
        for client in range(clients.count):
            at(clients.start + self._offset(client, clients.spread), self._begin, client)

    def _periodic(self) -> None:
        clients = self._clients
        if self.serial or clients.offset == "consistent":
            for client in range(clients.count):
                first = clients.start + self._offset(client, self._period)
                self._agenda.at(first, self._begin if self.serial else self._beat, client)
        else:
            self._agenda.at(clients.start, self._round, clients.start)

    def _offset(self, client: int, width: float) -> float:
        offset = self._clients.offset
        if offset == "none":
            return 0.0
        return self._uniform() * width if offset == "random" else consistent_jitter(f"client-{client}", width)

    def _beat(self, client: int) -> None:
        """Begin a periodic call of a client with its own offset."""
        self._agenda.at(self._pace.after(self._agenda.time, 1.0), self._beat, client)
        self._begin(client)

    def _round(self, due: float) -> None:
        """Begin a period, in which every client calls once."""
        following = self._pace.after(due, 1.0)
        self._agenda.at(following, self._round, following)
        if self._clients.offset == "none":
            self._all(None)
            return
        for client in range(self._count):
            self._agenda.at(due + self._uniform() * (following - due), self._begin, client)

    def _all(self, _: None) -> None:
        for client in range(self._count):
            self._begin(client)
