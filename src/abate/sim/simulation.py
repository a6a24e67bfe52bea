"""What the exact and the coroutine engine share: a world's agenda, random streams, services, and policies."""

from __future__ import annotations

from abate.call.policy import Policy
from abate.sim.agenda import Agenda
from abate.sim.binding import bind_policy, possible_failures, single_attempt_policy, unmatched_policy_note
from abate.sim.calls import Caller
from abate.sim.measures import Load, RunRecorder
from abate.sim.model import Row
from abate.sim.random_streams import RandomStreams
from abate.sim.server import RowServer, Server
from abate.sim.world import World


class Simulation:
    """A world that is ready to run: its services, and the policies of its clients, one per process."""

    __slots__ = ("agenda", "entry", "notes", "policies", "recorder", "servers", "streams", "world")

    def __init__(self, world: World, seed: int, raster: bool) -> None:
        self.world = world
        self.agenda = Agenda()
        self.streams = RandomStreams(seed)
        self.recorder = RunRecorder(world, raster)
        self.notes: list[str] = []
        self.servers: dict[str, Server | RowServer] = {
            service.name: RowServer(service, self.agenda, self.streams, world.warmup)
            if isinstance(service, Row)
            else Server(service, world, self.agenda, self.streams)
            for service in world.services
        }
        for service in world.services:
            server = self.servers[service.name]
            if isinstance(server, Server):
                server.callers = [
                    Caller(
                        self._bound(service.policy, name, f"policy/{service.name}/{name}"),
                        self.servers[name],
                        self.agenda,
                    )
                    for name in service.calls
                ]
        self.entry = self.servers[world.entry]
        self.policies = [
            self._bound(world.policy, world.entry, f"policy/{process}") for process in range(world.clients.processes)
        ]

    def _bound(self, policy: Policy | None, called: str, stream: str) -> Policy:
        failures = sorted(possible_failures(self.world, self.world.service(called)), key=lambda kind: kind.__name__)
        given = policy or single_attempt_policy()
        note = unmatched_policy_note(given, failures)
        if note is not None and note not in self.notes:
            self.notes.append(note)
        return bind_policy(given, self.agenda, self.streams.stream(stream), failures)

    def loads(self) -> dict[str, Load]:
        """Return what each service has counted so far."""
        return {name: server.load() for name, server in self.servers.items()}
