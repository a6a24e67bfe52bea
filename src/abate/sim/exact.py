"""The exact engine: one heap, the production objects, every event in its order; the standard library is enough."""

from __future__ import annotations

import gc

from abate.sim.arrivals import Arrivals
from abate.sim.calls import Caller, Journey
from abate.sim.control import control
from abate.sim.measures import Run
from abate.sim.stage import Stage
from abate.sim.world import Controllers, World


def run(world: World, seed: int, raster: bool = False) -> Run:
    """Run a world, from event to event.

    >>> import abate.sim as sim
    >>> world = sim.World(sim.Clients(count=10, arrivals="once"), [sim.Service("api", service_time=0.1)])
    >>> run(world, seed=1).attempts
    10
    """
    stage = Stage(world, seed, raster)
    if isinstance(world.clients, Controllers):
        control(stage)
    else:
        Crowd(stage)
    collects = gc.isenabled()
    gc.disable()  # a million calls make no garbage that goes in circles
    try:
        stage.agenda.run(world.horizon)
    finally:
        if collects:
            gc.enable()
    return stage.recorder.run("exact", seed, stage.loads(), stage.notes)


class Crowd:
    """The clients of a world, as machines."""

    __slots__ = ("_agenda", "_arrivals", "_callers", "_processes", "_recorder")

    def __init__(self, stage: Stage) -> None:
        self._agenda = stage.agenda
        self._recorder = stage.recorder
        self._processes = len(stage.policies)
        self._callers = [Caller(policy, stage.entry, stage.agenda, stage.recorder.attempt) for policy in stage.policies]
        self._arrivals = Arrivals(stage.world, stage.agenda, stage.chance, self.begin)

    def begin(self, client: int) -> None:
        """A client calls."""
        self._recorder.call(client, self._agenda.time)
        self._callers[client % self._processes].call(self.over, None, client)

    def over(self, journey: Journey, reason: str | None) -> None:
        """A client has its result."""
        now = self._agenda.time
        if reason is None:
            self._recorder.success(journey.client, journey.began, now)
        else:
            self._recorder.failure(journey.began, now, reason)
        if self._arrivals.serial:
            self._arrivals.finished(journey.client)
