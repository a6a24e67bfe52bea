"""The oracle: the best that any policy could do in a world, by a scheduler that knows the future.

The same calls arrive, at the same service, and have as much time as with the policy. They wait in the oracle at no
cost. It sends each once, when a worker is free and the service is up, or just before an outage if it then waits in the
service's queue; the call with the earliest deadline first. It leaves out calls that could not be answered in time.

With service times that do not vary, and one timeout for all calls, no policy can answer more calls. With several
timeouts the order is a rule, and if service times vary some of it is luck: a policy may then answer a few calls more.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.arrivals import Arrivals
from abate.sim.measures import EDGE, Run, RunRecorder
from abate.sim.model import Clients, Controllers, Duration, Row, Service
from abate.sim.server import Request, Server
from abate.sim.simulation import single_attempt_policy
from abate.sim.world import Trigger, World


def run(world: World, seed: int, raster: bool = False) -> Run:
    """Run the oracle in a world: no call fails, as the oracle waits until the error is over.

    >>> from abate.sim import Trigger
    >>> api = Service("api", service_time=0.1)
    >>> world = World(Clients(count=10, arrivals="once"), [api], triggers=[Trigger("error", at=0.0, for_=5.0)])
    >>> found = run(world, seed=1)
    >>> found.attempts, found.successes, round(found.completed, 3)
    (10, 10, 6.0)
    """
    agenda, streams, recorder = Agenda(), RandomStreams(seed), RunRecorder(world, raster)
    service, limits = world.service(world.entry), time_limits(world)
    assert isinstance(service, Service)
    server = OracleServer(service, world, agenda, streams, recorder)

    def begin(client: int) -> None:
        now = agenda.time
        recorder.call(client, now)
        server.submit(OracleCall(server, client, now, now + limits[client % len(limits)]))

    Arrivals(world, agenda, streams, begin)
    agenda.run(world.horizon)
    return recorder.run("oracle", seed, {service.name: server.load()})


def undefined(world: World) -> str:
    """Return why there is no oracle for a world, or an empty string.

    >>> undefined(World(Clients(count=3, kind="serial"), [Service("api")]))
    'serial clients call when they have their results, so that no two policies have the same calls'
    """
    clients, service = world.clients, world.service(world.entry)
    if isinstance(clients, Controllers):
        return "one reconcile of a controller may end several calls"
    if clients.kind == "serial" and clients.arrivals != "once":
        return "serial clients call when they have their results, so that no two policies have the same calls"
    if clients.code:
        return "nothing is known of how long calls of your own code may take"
    if isinstance(service, Row):
        return "the outcome of a write to a row depends on the other writes"
    if service.calls:
        return "services that call services have several queues"
    if service.limit is not None:
        return "a rate limit counts the requests that it refuses, too"
    network = Duration.of(service.network)
    return "" if network.is_zero or network.shape == "constant" else "the time of the network varies"


def time_limits(world: World) -> Sequence[float]:
    """Return the longest that calls may take, in seconds; client ``n`` has the limit number ``n % len(limits)``.

    It is the timeout of the call; without one, what the policy's attempts and waits can add up to; infinite if an
    attempt has no timeout either, or if a server may ask for longer waits.

    >>> from abate import Backoff, Policy
    >>> policy = Policy(on=OSError, max_attempts=3, attempt_timeout=1.0, backoff=Backoff(2.0, 4.0))
    >>> [time_limits(World(Clients(3), [Service("api")], of)) for of in (policy, policy.replace(timeout=5.0), None)]
    [(9.0,), (5.0,), (inf,)]
    """
    policy = world.policy or single_attempt_policy()
    if isinstance(world.clients, Clients) and world.clients.timeouts:
        return world.clients.timeouts
    if policy.timeout is not None:
        return (policy.timeout,)
    if policy.attempt_timeout is None or any(trigger.retry_after for trigger in world.triggers):
        return (inf,)
    return (policy.attempt_limit * policy.attempt_timeout + policy.describe().added_latency,)


class OracleCall(Request):
    """A call, which is its own request: the oracle makes one attempt."""

    __slots__ = ("began", "client")
    deadline: float

    def __init__(self, server: OracleServer, client: int, began: float, deadline: float) -> None:
        super().__init__(server.succeeded, None, deadline)
        self.client = client
        self.began = began


Waiting = tuple[float, int, OracleCall]
"""A call by its deadline, and by the order of arrival."""


class OracleServer(Server):
    """A service with the calls that wait for it: it starts them as the oracle would send them."""

    __slots__ = ("_arrived", "_down_since", "_held", "_ready", "_recorder", "_vacant", "_work")

    def __init__(
        self, service: Service, world: World, agenda: Agenda, streams: RandomStreams, recorder: RunRecorder
    ) -> None:
        triggers = world.triggers_of(service.name)
        outages = _outages(service, triggers)
        for start, _ in outages:  # before the other events of the instant: nothing is sent any more
            agenda.at(start, self._fall, None)
        super().__init__(service, world, agenda, streams)
        self._recorder = recorder
        self._ready: list[Waiting] = []
        self._held: list[Waiting] = []
        """Those that have come in an outage, and can't be sent before its end."""
        self._arrived = 0
        self._down_since: float | None = None
        self._vacant = inf
        """How many may still be in the service's queue in an outage."""
        self._work = self._draw()
        """The time that the next request will take."""
        for trigger in triggers:
            agenda.at(trigger.end, self._resize, None)
        for _, end in outages:  # after them: it is known how many workers there are
            agenda.at(end, self._rise, None)

    def _fall(self, _: object) -> None:
        self._down_since, self._vacant = self._agenda.time, self._room

    def _rise(self, _: object) -> None:
        self._down_since, self._vacant = None, inf
        self._ready += self._held
        self._held = []
        heapify(self._ready)
        self._take()

    def _arrive(self, request: Request) -> None:
        assert isinstance(request, OracleCall)
        self._arrived += 1
        heappush(self._ready if self._down_since is None else self._held, (request.deadline, self._arrived, request))
        self._take()

    def _take(self) -> None:
        """Start the calls for which there are workers."""
        now = self._agenda.time
        if not self._pace.at(now):
            return  # stalled
        while self._ready and self._busy < self._size and self._vacant:
            finish = self._pace.after(now, self._work)
            call = self._next_call(finish if self._leg is None else finish + self._leg())
            if call is not None:
                self._requests += 1
                self._vacant -= 1
                # in an outage, it has been sent just before
                sent = now if self._down_since is None else self._down_since - 2 * EDGE
                self._recorder.attempt(call.client, sent)
                self._busy += 1
                call.started = now
                self._at(finish, self._finish, call)
            self._work = self._draw()

    def _next_call(self, answered: float) -> OracleCall | None:
        """Return the first call that would be answered in time; if there is none, leave out at least one."""
        passed: list[Waiting] = []
        found = None
        while self._ready and found is None:
            waiting = heappop(self._ready)
            if answered <= waiting[0]:
                found = waiting[2]
            elif self._constant is None and self._agenda.time < waiting[0]:
                passed.append(waiting)  # the next request may take less time
            else:
                self._leave_out(waiting[2])
        if found is None and passed:
            self._leave_out(passed.pop(0)[2])
        for waiting in passed:
            heappush(self._ready, waiting)
        return found

    def _leave_out(self, call: OracleCall) -> None:
        self._recorder.failure(call.began, self._agenda.time, "deadline")

    def _finish(self, request: Request, failure: Exception | None = None) -> None:
        super()._finish(request, failure)
        self._take()

    def succeeded(self, request: Any, _: Exception | None) -> None:
        """Record an answer."""
        self._recorder.success(request.client, request.began, self._agenda.time)


def _outages(service: Service, triggers: Sequence[Trigger]) -> list[tuple[float, float]]:
    """Return when all requests fail: outages that meet are one.

    >>> _outages(Service("api"), [Trigger("error", at, 4.0) for at in (5.0, 1.0, 8.0, 12.0, 20.0)])
    [(1.0, 16.0), (20.0, 24.0)]
    """
    spans = [(trigger.at, trigger.end) for trigger in triggers if trigger.kind == "error" and trigger.share == 1.0]
    spans += [(0.0, inf)] if service.error_rate == 1.0 else []
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return found
