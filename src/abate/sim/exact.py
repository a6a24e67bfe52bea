"""The exact engine: one heap, the production objects, every event in its order; the standard library is enough."""

from __future__ import annotations

import gc
from collections.abc import Callable

from abate.call.giveup import give_ups
from abate.call.machine import Call, Stop, Wait
from abate.sim.arrivals import Arrivals
from abate.sim.calls import Caller, Journey, plain
from abate.sim.clients import Controllers
from abate.sim.control import control
from abate.sim.measures import EDGE, PER_SECOND, Run
from abate.sim.server import Request
from abate.sim.stage import Stage
from abate.sim.world import World


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
    elif not raster and all(plain(policy) for policy in stage.policies):
        PlainCrowd(stage)
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


class Trip(Request):
    """A call of a plain policy: it is its own request, as nothing cuts its attempts short."""

    __slots__ = ("began", "client", "machine")

    def __init__(self, reply: Callable[[Trip, Exception | None], object], client: int, began: float) -> None:
        self.reply = reply  # type: ignore[assignment]  # a trip is answered, not just any request
        self.deadline = None
        self.over = False
        self.client = client
        self.began = began
        self.machine: Call | None = None


class PlainCrowd:
    """The clients of a world whose policy has nothing to do but to deposit where a call succeeds at once.

    What a stand-in is in production, this is here: the same as `Crowd`, with as few steps as there can be.
    """

    __slots__ = (
        "_again",
        "_agenda",
        "_answered",
        "_arrivals",
        "_at",
        "_attempts",
        "_calls",
        "_deposits",
        "_ended",
        "_latencies",
        "_made",
        "_policies",
        "_processes",
        "_recorder",
        "_submit",
        "_succeeded",
        "_successes",
        "_warmup",
    )

    def __init__(self, stage: Stage) -> None:
        recorder = self._recorder = stage.recorder
        self._agenda = stage.agenda
        self._at = stage.agenda.at
        self._submit = stage.entry.submit
        self._policies = stage.policies
        self._deposits = [policy.budget.deposit for policy in stage.policies]
        self._processes = len(stage.policies)
        self._calls, self._attempts, self._successes = recorder.calls, recorder.attempts, recorder.successes
        self._ended = recorder.ended
        self._made, self._succeeded, self._latencies = recorder.made, recorder.succeeded, recorder.latencies
        self._warmup = stage.world.warmup
        self._answered, self._again = self.answered, self.again  # made once, and not for each call
        self._arrivals = Arrivals(stage.world, stage.agenda, stage.chance, self.begin)

    def begin(self, client: int) -> None:
        """A client calls."""
        now = self._agenda.time
        place = int(now * PER_SECOND + EDGE)
        self._calls[place] += 1
        self._attempts[place] += 1
        if now >= self._warmup:
            self._made[client] += 1
        self._submit(Trip(self._answered, client, now))

    def answered(self, trip: Trip, failure: Exception | None) -> None:
        """An attempt has ended."""
        now, machine = self._agenda.time, trip.machine
        if failure is None:
            if machine is None:
                self._deposits[trip.client % self._processes]()
            else:
                machine.succeeded()
            self._successes[int(now * PER_SECOND + EDGE)] += 1
            self._ended[int(trip.began * PER_SECOND + EDGE)] += 1
            if trip.began >= self._warmup:
                self._latencies.append(now - trip.began)
                self._succeeded[trip.client] += 1
            self._recorder.completed = now
        else:
            if machine is None:
                policy = self._policies[trip.client % self._processes]
                machine = trip.machine = Call(policy, None, give_ups.last)
            action = machine.failed(failure, now)
            if type(action) is Wait:
                wait = action.until - now
                if wait > 0.0:
                    self._at(now + wait, self._again, trip)
                else:
                    self._agenda.soon(self._again, trip)
                return
            assert isinstance(action, Stop)
            self._recorder.failure(trip.began, now, action.reason)
        if self._arrivals.serial:
            self._arrivals.finished(trip.client)

    def again(self, trip: Trip) -> None:
        """A wait is over."""
        assert trip.machine is not None
        trip.machine.unspent = False
        self._attempts[int(self._agenda.time * PER_SECOND + EDGE)] += 1
        self._submit(trip)


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
