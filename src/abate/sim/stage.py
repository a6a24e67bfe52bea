"""What the engines that go from event to event share: the services of a world, and the policies of its clients."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.sim.agenda import Agenda
from abate.sim.binding import bound, failures_of, names_any, once
from abate.sim.calls import Caller
from abate.sim.chance import Chance
from abate.sim.measures import Load, Recorder
from abate.sim.server import RowServer, Server
from abate.sim.world import Row, World


class Stage:
    """A world that is ready to run."""

    __slots__ = ("agenda", "chance", "entry", "notes", "policies", "recorder", "servers", "world")

    def __init__(self, world: World, seed: int, raster: bool) -> None:
        self.world = world
        self.agenda = Agenda()
        self.chance = Chance(seed)
        self.recorder = Recorder(world, raster)
        self.notes: list[str] = []
        self.servers: dict[str, Server | RowServer] = {
            service.name: RowServer(service, self.agenda, self.chance)
            if isinstance(service, Row)
            else Server(service, world, self.agenda, self.chance)
            for service in world.services
        }
        for service in world.services:
            server = self.servers[service.name]
            if isinstance(server, Server):
                server.callers = [
                    Caller(self._bound(service.policy, name, f"policy/{service.name}"), self.servers[name], self.agenda)
                    for name in service.calls
                ]
        self.entry = self.servers[world.entry]
        self.policies = [
            self._bound(world.policy, world.entry, f"policy/{process}") for process in range(world.clients.processes)
        ]
        """Those of the clients, one per process."""

    def _bound(self, policy: Policy | None, called: str, stream: str) -> Policy:
        failures = sorted(failures_of(self.world, self.world.service(called)), key=lambda kind: kind.__name__)
        given = policy or once()
        if policy is not None and policy.max_attempts > 1 and not names_any(given, failures):
            note = f"policy {given.name or 'of the clients'!r} names none of the failures that are simulated: all count"
            if note not in self.notes:
                self.notes.append(note)
        return bound(given, self.agenda, self.chance.stream(stream), failures)

    def loads(self) -> dict[str, Load]:
        """What each service saw so far."""
        return {name: server.load() for name, server in self.servers.items()}
