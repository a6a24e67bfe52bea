"""A simulated service: workers, a queue, what goes wrong, and calls to other services while a worker waits.

The rules:

* a request that arrives is answered by the first of these that applies: a trigger or chance makes it fail, the rate
  limit refuses it, a worker is free, the queue has room; otherwise 503;
* a request that the caller has given up on is served all the same, for nothing, unless the service drops what has
  expired; those in service are never broken off;
* a stall holds up what is being served as well as what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from abate.admit.bucket import TokenBucket
from abate.sim.agenda import Agenda
from abate.sim.answers import Answer, answer
from abate.sim.chance import Chance
from abate.sim.durations import Duration
from abate.sim.measures import Load
from abate.sim.pace import Pace
from abate.sim.services import Limit, Row, Service
from abate.sim.world import Trigger, World

if TYPE_CHECKING:
    from abate.sim.calls import Journey, Over

Reply = Callable[["Request", "Exception | None"], object]


class Request:
    """One attempt on its way: who wants the answer, and until when."""

    __slots__ = ("deadline", "over", "owner", "reply", "started", "version")

    started: float
    """When a worker began with it."""
    version: int
    """What it read, of a row."""

    def __init__(self, reply: Reply, owner: Any, deadline: float | None) -> None:
        self.reply = reply
        self.owner = owner
        self.deadline = deadline
        self.over = False
        """Does nobody wait for the answer any more?"""


class Elsewhere(Protocol):
    """A service that is not here, and takes requests all the same."""

    def submit(self, request: Request) -> None:
        """Send a request."""
        ...


class Calls(Protocol):
    """What makes calls of a service."""

    def call(self, over: Over, deadline: float | None = None) -> None:
        """Make a call, which ends by `deadline`."""
        ...


class Server:
    """A `Service` that runs."""

    __slots__ = (
        "_agenda",
        "_at",
        "_bucket",
        "_busy",
        "_chance",
        "_constant",
        "_draw",
        "_errors",
        "_expired",
        "_fifo",
        "_from",
        "_full",
        "_leg",
        "_limit",
        "_limited",
        "_next",
        "_pace",
        "_queue",
        "_refused",
        "_requests",
        "_room",
        "_served",
        "_service",
        "_shrunk",
        "_size",
        "_steady",
        "_sure",
        "_tells",
        "_unavailable",
        "_until",
        "_used",
        "_wasted",
        "_window",
        "callers",
        "submit",
    )

    def __init__(self, service: Service, world: World, agenda: Agenda, chance: Chance) -> None:
        triggers = world.triggers_of(service.name)
        self._service = service
        self._agenda = agenda
        self._at = agenda.at
        self._chance = chance.stream(f"errors/{service.name}").random
        duration = Duration.of(service.service_time)
        self._draw = duration.drawn_from(chance.stream(f"service/{service.name}"))
        self._constant = float(duration.mean) if duration.shape == "constant" else None
        network = Duration.of(service.network)
        self._leg = None if network.nothing else network.drawn_from(chance.stream(f"network/{service.name}"))
        self.submit: Callable[[Request], None] = self._arrive if self._leg is None else self._travel
        """Send a request."""
        self._pace = pace(triggers)
        self._steady = self._pace.steady
        self._errors = [
            (trigger.at, trigger.end, trigger.share, answer(trigger.status, trigger.retry_after)())
            for trigger in triggers
            if trigger.kind == "error"
        ]
        if service.error_rate:
            self._errors.append((0.0, inf, service.error_rate, answer(service.status)()))
        self._from = min((start for start, _, _, _ in self._errors), default=inf)
        self._until = max((end for _, end, _, _ in self._errors), default=0.0)
        alone = len(self._errors) == 1 and self._errors[0][2] == 1.0
        self._sure = self._errors[0][3] if alone else None  # what all of them are answered, from the one to the other
        self._unavailable = answer(503)()
        self._shrunk = shrunk(service, triggers)
        self._size = service.workers
        self._room = float("inf") if service.queue_limit is None else service.queue_limit
        self._fifo = service.order == "fifo"
        self._queue: deque[Request] = deque()
        self._next = self._queue.popleft if self._fifo else self._queue.pop
        self._tells = world.tells_layers
        self._limit = service.limit
        self._bucket = None if service.limit is None else _bucket(service.limit, agenda)
        self._window = (0, 0)
        self._busy = 0
        self._forget(None)
        if world.warmup:
            agenda.at(world.warmup, self._forget, None)
        self.callers: Sequence[Calls] = ()
        """How the services are called that this one calls."""
        for edge in {edge for start, end, _ in self._shrunk for edge in (start, end)}:
            agenda.at(edge, self._resize, None)

    def _travel(self, request: Request) -> None:
        assert self._leg is not None
        self._at(self._agenda.time + self._leg(), self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._requests += 1
        if self._from <= self._agenda.time < self._until:
            failed = self._sure or self._failure()
            if failed is not None:
                self._refused += 1
                if self._leg is None:
                    request.reply(request, failed)
                else:
                    self._answer(request, failed)
                return
        if self._limit is not None:
            beyond = self._beyond(self._limit)
            if beyond is not None:
                self._limited += 1
                self._answer(request, beyond)
                return
        if self._busy < self._size:
            self._start(request)
        elif len(self._queue) < self._room:
            self._queue.append(request)
        else:
            self._full += 1
            self._answer(request, self._unavailable)

    def _failure(self) -> Exception | None:
        """Is it made to fail, by a trigger or by chance?"""
        now = self._agenda.time
        for start, end, share, error in self._errors:
            if start <= now < end and (share == 1.0 or self._chance() < share):
                return error
        return None

    def _beyond(self, limit: Limit) -> Answer | None:
        """Is it beyond the rate limit?"""
        if self._bucket is not None:
            if self._bucket.try_acquire():
                return None
            return answer(429, 1.0 if limit.retry_after is None else limit.retry_after)()
        now = self._agenda.time
        window, count = self._window
        if floor(now / limit.per) > window:
            window, count = floor(now / limit.per), 0
        self._window = (window, count + 1)
        if count < limit.most:
            return None
        left = max(1.0, float(ceil((window + 1) * limit.per - now)))
        return answer(429, left if limit.retry_after is None else limit.retry_after)()

    def _start(self, request: Request) -> None:
        self._busy += 1
        now = request.started = self._agenda.time
        work = self._draw() if self._constant is None else self._constant
        self._at(
            now + work if self._steady else self._pace.after(now, work),
            self._worked if self.callers else self._finish,
            request,
        )

    def _worked(self, request: Request) -> None:
        """A worker has done its own part, and waits for that of others."""
        self._call(request, 0)

    def _call(self, request: Request, place: int) -> None:
        """Call the services that this one needs, one after the other."""
        if place == len(self.callers):
            self._finish(request)
            return

        def over(_: Journey, reason: str | None) -> None:
            if reason is None:
                self._call(request, place + 1)
            else:
                # a give-up tells those further out not to begin anew; who does not retry passes on what it was told
                policy = self._service.policy
                retries = policy is not None and policy.max_attempts > 1 and reason != "fatal"
                told = self._tells and (retries or reason == "layer")
                self._finish(request, answer(502, exhausted=told)())

        self.callers[place].call(over, request.deadline if self._tells else None)

    def _finish(self, request: Request, failure: Exception | None = None) -> None:
        used = self._agenda.time - request.started
        self._used += used
        self._served += 1
        if request.over:
            self._wasted += used
        self._busy -= 1
        if self._queue:
            self._take()
        if self._leg is None:
            request.reply(request, failure)
        else:
            self._answer(request, failure)

    def _take(self) -> None:
        """Let free workers go on with what waits."""
        drops = self._service.drop_expired
        while self._queue and self._busy < self._size:
            request = self._next()
            if drops and (request.over or (request.deadline is not None and self._agenda.time >= request.deadline)):
                self._expired += 1
            else:
                self._start(request)

    def _answer(self, request: Request, failure: Exception | None) -> None:
        if self._leg is None:
            request.reply(request, failure)
        else:
            self._at(self._agenda.time + self._leg(), lambda failure: request.reply(request, failure), failure)

    def _resize(self, _: object) -> None:
        """A trigger begins or ends: more or fewer workers serve."""
        self._size = staff(self._service, self._shrunk, self._agenda.time)
        self._take()

    def _forget(self, _: object) -> None:
        """Begin to count: what it saw in the warm-up counts for nothing."""
        self._requests = self._served = self._full = self._refused = self._limited = self._expired = 0
        self._used = self._wasted = 0.0

    def load(self) -> Load:
        """What it saw so far, after the warm-up."""
        return Load(
            requests=self._requests,
            served=self._served,
            full=self._full,
            errors=self._refused,
            limited=self._limited,
            expired=self._expired,
            busy=self._used,
            wasted=self._wasted,
        )


class RowServer:
    """A `Row` that runs."""

    __slots__ = ("_agenda", "_conflict", "_leg", "_lost", "_version", "_written")

    def __init__(self, row: Row, agenda: Agenda, chance: Chance, warmup: float = 0.0) -> None:
        self._agenda = agenda
        self._leg = Duration.of(row.network).drawn_from(chance.stream(f"network/{row.name}"))
        self._conflict = answer(409)()
        self._version = 0
        self._forget(None)
        if warmup:
            agenda.at(warmup, self._forget, None)

    def submit(self, request: Request) -> None:
        """A request is sent: the read first."""
        self._agenda.at(self._agenda.time + self._leg(), self._read, request)

    def _read(self, request: Request) -> None:
        request.version = self._version
        # the answer to the read, and the write
        self._agenda.at(self._agenda.time + self._leg() + self._leg(), self._write, request)

    def _write(self, request: Request) -> None:
        failure = None
        if request.version == self._version:
            self._version += 1
            self._written += 1
        else:
            self._lost += 1
            failure = self._conflict
        self._agenda.at(self._agenda.time + self._leg(), lambda failure: request.reply(request, failure), failure)

    def _forget(self, _: object) -> None:
        """Begin to count: what it saw in the warm-up counts for nothing."""
        self._written = self._lost = 0

    def load(self) -> Load:
        """What it saw so far, after the warm-up."""
        return Load(requests=self._written + self._lost, served=self._written, errors=self._lost)


Serves: TypeAlias = Server | RowServer | Elsewhere


def pace(triggers: list[Trigger]) -> Pace:
    """How fast the workers work, given what goes wrong."""
    spans = [(trigger.at, trigger.end, 0.0) for trigger in triggers if trigger.kind == "stall"]
    spans += [
        (trigger.at, trigger.end, 1.0 / (trigger.factor or 1.0)) for trigger in triggers if trigger.kind == "slow"
    ]
    return Pace(1.0, spans)


def shrunk(service: Service, triggers: list[Trigger]) -> list[tuple[float, float, float]]:
    """When only a share of the workers serve: during triggers of capacity, and after any but spikes until warm."""
    spans = [(trigger.at, trigger.end, trigger.factor or 0.0) for trigger in triggers if trigger.kind == "capacity"]
    cold: list[tuple[float, float, float]] = []
    for end in sorted(trigger.end for trigger in triggers if service.cold_start and trigger.kind != "spike"):
        # who is cold already is not colder for a second trigger, but longer
        start = cold.pop()[0] if cold and end <= cold[-1][1] else end
        cold.append((start, end + service.cold_start, service.cold_capacity))
    return spans + cold


def staff(service: Service, spans: list[tuple[float, float, float]], now: float) -> int:
    """How many workers serve at an instant, given when only a share of them do."""
    size = float(service.workers)
    for start, end, share in spans:
        if start <= now < end:
            size *= share
    # a share of a worker is a worker
    return max(floor(size + 1e-9), 1 if size else 0)


def _bucket(limit: Limit, agenda: Agenda) -> TokenBucket | None:
    if limit.kind == "window":
        return None
    return TokenBucket(limit.rate, limit.most, clock=agenda)
