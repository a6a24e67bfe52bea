"""What the engines that go from event to event share: the services of a world, and the policies of its clients."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.clock import Clock
from abate.sim.agenda import Agenda
from abate.sim.binding import bound, failures_of, once, unnamed
from abate.sim.calls import Caller
from abate.sim.chance import Chance
from abate.sim.measures import Load, Recorder
from abate.sim.server import RowServer, Server, Serves
from abate.sim.services import Row
from abate.sim.world import World


class Setting:
    """What those who call need to know of the world they are in."""

    __slots__ = ("agenda", "chance", "entry", "notes", "policies", "recorder", "world")

    world: World
    agenda: Agenda
    chance: Chance
    recorder: Recorder
    notes: list[str]
    entry: Serves
    """The service that they call."""
    policies: list[Policy]
    """Theirs, one per process."""

    def _bound(self, policy: Policy | None, called: str, stream: str, clock: Clock) -> Policy:
        failures = sorted(failures_of(self.world, self.world.service(called)), key=lambda kind: kind.__name__)
        given = policy or once()
        note = unnamed(given, failures)
        if note is not None and note not in self.notes:
            self.notes.append(note)
        return bound(given, clock, self.chance.stream(stream), failures)

    def _bind_all(self, clock: Clock) -> None:
        world = self.world
        self.policies = [
            self._bound(world.policy, world.entry, f"policy/{process}", clock)
            for process in range(world.clients.processes)
        ]


class Stage(Setting):
    """A world that is ready to run."""

    __slots__ = ("servers",)

    def __init__(self, world: World, seed: int, raster: bool) -> None:
        self.world = world
        self.agenda = Agenda()
        self.chance = Chance(seed)
        self.recorder = Recorder(world, raster)
        self.notes = []
        self.servers: dict[str, Server | RowServer] = {
            service.name: RowServer(service, self.agenda, self.chance, world.warmup)
            if isinstance(service, Row)
            else Server(service, world, self.agenda, self.chance)
            for service in world.services
        }
        for service in world.services:
            server = self.servers[service.name]
            if isinstance(server, Server):
                server.callers = [
                    Caller(
                        self._bound(service.policy, name, f"policy/{service.name}/{name}", self.agenda),
                        self.servers[name],
                        self.agenda,
                    )
                    for name in service.calls
                ]
        self.entry = self.servers[world.entry]
        self._bind_all(self.agenda)

    def loads(self) -> dict[str, Load]:
        """What each service saw so far."""
        return {name: server.load() for name, server in self.servers.items()}
