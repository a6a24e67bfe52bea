"""A simulated service: workers, a queue, failures, and calls to other services while a worker waits.

* A request is handled by the first rule that applies: a trigger or the error rate makes it fail, the rate limit refuses
  it, a free worker takes it, it waits in the queue, it is answered 503.
* A request that has timed out is still served, although no caller waits, unless the service drops expired requests. A
  request in service is never interrupted.
* A stall delays requests in service as well as waiting ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any

from abate.admit.bucket import TokenBucket
from abate.decide import http
from abate.decide.outcome import FATAL, LAYER, Outcome, Ruling
from abate.decide.rules import Rule
from abate.errors import AbateError
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.measures import Load
from abate.sim.model import Duration, Limit, Row, Service
from abate.sim.varying_rate import VaryingRate
from abate.sim.world import Trigger, World

if TYPE_CHECKING:
    from abate.sim.calls import CallDriver, SimulatedCall


class Answer(AbateError):
    """An error response of a simulated service.

    >>> answer(503, retry_after=2.0)().status_code
    503
    """

    status_code: int
    headers: dict[str, str]
    ruling: Ruling
    """The ruling, unless the policy's own rules have one."""


class Simulated(Rule):
    """Judges simulated responses by the HTTP rules; a conflict is retried."""

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return error.ruling if isinstance(error, Answer) else None


simulated = Simulated()
"""The default `on` of policies in scenarios."""


def answer(status: int, retry_after: float | None = None, exhausted: bool = False) -> type[Answer]:
    """Return the error type for this status; `exhausted` marks that an inner layer has retried already.

    >>> answer(503) is answer(503, None, exhausted=False), answer(503) is answer(503, exhausted=True)
    (True, False)
    """
    return _made(status, retry_after, exhausted)


@cache  # called with positional arguments only: keyword arguments would be other cache keys
def _made(status: int, retry_after: float | None, exhausted: bool) -> type[Answer]:
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:.0f}"}
    if exhausted:
        headers["Abate-Exhausted"] = "1"
    conflict = Ruling.blip(retry_after, answered=True)
    ruling = LAYER if exhausted else conflict if status == 409 else http.judge(status, headers) or FATAL
    return type(f"Answer{status}", (Answer,), {"status_code": status, "headers": headers, "ruling": ruling})


Reply = Callable[["Request", "Exception | None"], object]


class Request:
    """One attempt in flight: the callback for its answer, and its deadline."""

    __slots__ = ("deadline", "over", "owner", "reply", "started", "version")

    started: float
    """When a worker started it."""
    version: int
    """The version that it has read, of a row."""

    def __init__(self, reply: Reply, owner: Any, deadline: float | None) -> None:
        self.reply = reply
        self.owner = owner
        self.deadline = deadline
        self.over = False
        """Whether the caller no longer waits for the answer."""


class Server:
    """A running `Service`."""

    __slots__ = (
        "_agenda",
        "_at",
        "_bucket",
        "_busy",
        "_certain_error",
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
        "_reduced_capacity_spans",
        "_refused",
        "_requests",
        "_room",
        "_served",
        "_service",
        "_size",
        "_steady",
        "_tells",
        "_unavailable",
        "_until",
        "_used",
        "_wasted",
        "_window",
        "callers",
        "submit",
    )

    def __init__(self, service: Service, world: World, agenda: Agenda, streams: RandomStreams) -> None:
        triggers = world.triggers_of(service.name)
        self._service = service
        self._agenda = agenda
        self._at = agenda.at
        self._chance = streams.stream(f"errors/{service.name}").random
        duration = Duration.of(service.service_time)
        self._draw = duration.sampler(streams.stream(f"service/{service.name}"))
        self._constant = float(duration.mean) if duration.shape == "constant" else None
        network = Duration.of(service.network)
        self._leg = None if network.is_zero else network.sampler(streams.stream(f"network/{service.name}"))
        self.submit: Callable[[Request], None] = self._arrive if self._leg is None else self._travel
        """Send a request."""
        self._pace = service_rate(triggers)
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
        self._certain_error = self._errors[0][3] if alone else None  # None: by chance, or overlapping triggers
        self._unavailable = answer(503)()
        self._reduced_capacity_spans = reduced_capacity_spans(service, triggers)
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
        self.callers: Sequence[CallDriver] = ()
        """How this service calls others."""
        for edge in {edge for start, end, _ in self._reduced_capacity_spans for edge in (start, end)}:
            agenda.at(edge, self._resize, None)

    def _travel(self, request: Request) -> None:
        assert self._leg is not None
        self._at(self._agenda.time + self._leg(), self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._requests += 1
        if self._from <= self._agenda.time < self._until:
            failed = self._certain_error or self._failure()
            if failed is not None:
                self._refused += 1
                if self._leg is None:
                    request.reply(request, failed)
                else:
                    self._answer(request, failed)
                return
        if self._limit is not None:
            beyond = self._over_rate_limit(self._limit)
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
        """Return the error that a trigger or the error rate gives this request, if any."""
        now = self._agenda.time
        for start, end, share, error in self._errors:
            if start <= now < end and (share == 1.0 or self._chance() < share):
                return error
        return None

    def _over_rate_limit(self, limit: Limit) -> Answer | None:
        """Return the 429 for a request beyond the rate limit, or None."""
        if self._bucket is not None:
            if self._bucket.try_acquire():
                return None
            return answer(429, 1.0 if limit.retry_after is None else limit.retry_after)()
        now = self._agenda.time
        window, count = self._window
        if floor(now / limit.per) > window:
            window, count = floor(now / limit.per), 0
        self._window = (window, count + 1)
        if count < limit.burst:
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
        """Call other services, after the worker's own work."""
        self._call(request, 0)

    def _call(self, request: Request, place: int) -> None:
        """Call the services that this one needs, one after the other."""
        if place == len(self.callers):
            self._finish(request)
            return

        def over(_: SimulatedCall, reason: str | None) -> None:
            if reason is None:
                self._call(request, place + 1)
            else:
                # a give-up marks the answer as exhausted; a service without retries passes the mark on
                policy = self._service.policy
                retries = policy is not None and policy.attempt_limit > 1 and reason != "fatal"
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
        """Start waiting requests on free workers."""
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
        """Change the number of workers, as a trigger begins or ends."""
        self._size = workers_at(self._service, self._reduced_capacity_spans, self._agenda.time)
        self._take()

    def _forget(self, _: object) -> None:
        """Reset the counts, at the end of the warm-up."""
        self._requests = self._served = self._full = self._refused = self._limited = self._expired = 0
        self._used = self._wasted = 0.0

    def load(self) -> Load:
        """Return the counts since the warm-up."""
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
    """A running `Row`."""

    __slots__ = ("_agenda", "_conflict", "_leg", "_lost", "_version", "_written")

    def __init__(self, row: Row, agenda: Agenda, streams: RandomStreams, warmup: float = 0.0) -> None:
        self._agenda = agenda
        self._leg = Duration.of(row.network).sampler(streams.stream(f"network/{row.name}"))
        self._conflict = answer(409)()
        self._version = 0
        self._forget(None)
        if warmup:
            agenda.at(warmup, self._forget, None)

    def submit(self, request: Request) -> None:
        """Send a request, beginning with its read."""
        self._agenda.at(self._agenda.time + self._leg(), self._read, request)

    def _read(self, request: Request) -> None:
        request.version = self._version
        # two messages: the answer to the read, and the write
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
        """Reset the counts, at the end of the warm-up."""
        self._written = self._lost = 0

    def load(self) -> Load:
        """Return the counts since the warm-up."""
        return Load(requests=self._written + self._lost, served=self._written, errors=self._lost)


def service_rate(triggers: list[Trigger]) -> VaryingRate:
    """Return how fast the workers work, given stalls and slow-downs."""
    spans = [(trigger.at, trigger.end, 0.0) for trigger in triggers if trigger.kind == "stall"]
    spans += [
        (trigger.at, trigger.end, 1.0 / (trigger.factor or 1.0)) for trigger in triggers if trigger.kind == "slow"
    ]
    return VaryingRate(1.0, spans)


def reduced_capacity_spans(service: Service, triggers: list[Trigger]) -> list[tuple[float, float, float]]:
    """Return when only a share of the workers serve: during capacity triggers, and in the cold start after triggers."""
    spans = [(trigger.at, trigger.end, trigger.factor or 0.0) for trigger in triggers if trigger.kind == "capacity"]
    cold: list[tuple[float, float, float]] = []
    for end in sorted(trigger.end for trigger in triggers if service.cold_start and trigger.kind != "spike"):
        # a second trigger within a cold start extends it
        start = cold.pop()[0] if cold and end <= cold[-1][1] else end
        cold.append((start, end + service.cold_start, service.cold_capacity))
    return spans + cold


def workers_at(service: Service, spans: list[tuple[float, float, float]], now: float) -> int:
    """Return the number of workers that serve at an instant."""
    size = float(service.workers)
    for start, end, share in spans:
        if start <= now < end:
            size *= share
    # round down, but not to 0
    return max(floor(size + 1e-9), 1 if size else 0)


def _bucket(limit: Limit, agenda: Agenda) -> TokenBucket | None:
    if limit.kind == "window":
        return None
    return TokenBucket(limit.rate, limit.burst, clock=agenda)
