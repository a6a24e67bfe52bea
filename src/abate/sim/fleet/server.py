"""The service that a fleet calls: `abate.sim.server`, one bucket at a time, by the same rules.

The end of a request is known when a worker starts it, as requests in service are never interrupted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abate.sim.fleet.request_queue import RequestQueue
from abate.sim.fleet.server_workers import DiscreteWorkers, FluidWorkers, Started
from abate.sim.fleet.timer_wheel import WIDTH
from abate.sim.fleet.vector_rules import Floats, Whole, stream
from abate.sim.measures import Load
from abate.sim.model import Duration, Service
from abate.sim.world import World

LATE, FULL, CHANCE, TRIGGERED = range(4)
"""The kinds of failures: timeout, full queue, error rate; triggers are numbered from `TRIGGERED` on."""

Refused = tuple[int, Whole, Floats, Floats]
"""A kind of failure, the calls that fail, the instants, and the deadlines."""


def is_fluid(service: Service) -> bool:
    """Return whether serving takes at most a bucket, on average.

    >>> is_fluid(Service("api", workers=100, service_time=0.005)), is_fluid(Service("api", service_time=0.1))
    (True, False)
    """
    return Duration.of(service.service_time).mean <= WIDTH


class Server:
    """A running `Service`."""

    __slots__ = (
        "_chance",
        "_errors",
        "_full",
        "_horizon",
        "_queue",
        "_refused",
        "_requests",
        "_room",
        "_served",
        "_service",
        "_used",
        "_wasted",
        "_workers",
    )

    def __init__(self, service: Service, world: World, seed: int, buckets: int) -> None:
        triggers = world.triggers_of(service.name)
        self._service = service
        self._horizon = world.horizon
        self._errors = [trigger for trigger in triggers if trigger.kind == "error"]
        self._chance = stream(seed, f"errors/{service.name}")
        self._queue = RequestQueue()
        self._room = service.queue_limit
        self._workers = (FluidWorkers if is_fluid(service) else DiscreteWorkers)(
            service, triggers, stream(seed, f"service/{service.name}"), buckets
        )
        self._requests = self._served = self._full = self._refused = 0
        self._used = self._wasted = 0.0

    def arrive(self, bucket: int, calls: Whole, at: Floats, due: Floats) -> tuple[list[Refused], list[Started]]:
        """Handle arrivals, sorted by instant; return those refused, and those started in this bucket."""
        self._requests += len(calls)
        refused: list[Refused] = []
        kinds = self._failures(bucket, at) if self._errors or self._service.error_rate else None
        if kinds is not None:
            for kind in np.unique(kinds[kinds >= 0]).tolist():
                chosen = kinds == kind
                refused.append((kind, calls[chosen], at[chosen], due[chosen]))
            passed = kinds < 0
            calls, at, due = calls[passed], at[passed], due[passed]
            self._refused += len(kinds) - len(calls)
        full = self._workers.begin_bucket(bucket, len(self._queue), at)
        if full is not None:
            refused.append((FULL, calls[full], at[full], due[full]))
            calls, at, due = calls[~full], at[~full], due[~full]
        self._queue.append(calls, at, due)
        started = self._workers.serve(bucket, self._queue)
        if self._room is not None and len(self._queue) > self._room:
            refused.append((FULL, *self._queue.drop_last(len(self._queue) - self._room)))
        self._full += sum(len(calls) for kind, calls, _, _ in refused if kind == FULL)
        for part in started:
            self._account(part)
        return refused, started

    def _failures(self, bucket: int, at: Floats) -> NDArray[np.int16] | None:
        """Return the kind of failure of each request by trigger or error rate; below 0 for none."""
        kinds = np.full(len(at), -1, np.int16)
        # some are left over from the last bucket
        start, end = (bucket - 1) * WIDTH, (bucket + 1) * WIDTH
        hit = False
        for kind, trigger in enumerate(self._errors, TRIGGERED):
            if trigger.at < end and start < trigger.end:
                failing = (trigger.at <= at) & (at < trigger.end) & (kinds < 0)
                if trigger.share < 1.0:
                    failing &= self._chance.random(len(at)) < trigger.share
                kinds[failing] = kind
                hit = True
        if self._service.error_rate:
            kinds[(kinds < 0) & (self._chance.random(len(at)) < self._service.error_rate)] = CHANCE
            hit = True
        return kinds if hit else None

    def _account(self, part: Started) -> None:
        """Count the work that ends before the horizon."""
        finish, used = part.finish, part.finish - part.begin
        if len(finish) and finish.max() > self._horizon:
            within = finish <= self._horizon
            finish, used, due = finish[within], used[within], part.due[within]
        else:
            due = part.due
        self._served += len(finish)
        self._used += float(used.sum())
        late = finish >= due
        if late.any():
            self._wasted += float(used[late].sum())

    def load(self) -> Load:
        """Return the counts so far."""
        return Load(
            requests=self._requests,
            served=self._served,
            full=self._full,
            errors=self._refused,
            expired=self._workers.expired,
            busy=self._used,
            wasted=self._wasted,
        )
