"""Closed forms that the simulator is compared with: queues, and the load equation of retries.

* **Queues**: `workers` serve requests in `service_time` on average, exponentially distributed; arrivals are Poisson
  (M/M/c). At most `places` requests are in service or wait (M/M/c/K); without them, any number.
* **The load equation**: a share p(total) of all attempts is late, and a late call is tried again. So the total is
  ``load * (1 + p + p² + …)``, with one term per attempt, and p depends on the total. A solution is a **fixed point**: a
  service settles at a stable one; an unstable one separates two stable ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

STEPS = 400
"""Totals that are evaluated between two bounds, to separate fixed points."""


def blocking(rate: float, service_time: float, workers: int, places: int) -> float:
    """Return the share of requests that find the queue full."""
    return _filled(rate * service_time, workers, places)[0]


def mean_time(rate: float, service_time: float, workers: int, places: int) -> float:
    """Return the mean seconds that an admitted request waits and is served."""
    load = rate * service_time
    _, let_in, inside = _filled(load, workers, places)
    return service_time * inside / (load * let_in)  # Little's law


def waiting(rate: float, service_time: float, workers: int) -> float:
    """Return the share of requests that find all workers busy, with an unbounded queue (Erlang C)."""
    load = rate * service_time
    if load >= workers:
        return 1.0
    full = _filled(load, workers, workers)[0]  # Erlang B
    return full / (full + (1.0 - load / workers) * (1.0 - full))


def late(seconds: float, rate: float, service_time: float, workers: int) -> float:
    """Return the share of requests that take longer than `seconds`, with an unbounded queue."""
    load = rate * service_time
    if load >= workers or not seconds:
        return 1.0
    span = seconds / service_time
    served_late = math.exp(-span)
    spare = workers - 1.0 - load
    # (exp(-span) - exp(-span * (workers - load))) / spare, of which both sides vanish where `spare` does
    if abs(spare * span) < 1.0:
        waited = served_late * span * (-math.expm1(-spare * span) / (spare * span) if spare * span else 1.0)
    else:
        waited = (served_late - math.exp(-span * (workers - load))) / spare
    return min(1.0, served_late + waiting(rate, service_time, workers) * waited)


def _filled(load: float, workers: int, places: int) -> tuple[float, float, float]:
    """Return the share that finds all places taken, the share that does not, and the mean number inside.

    It is a recursion over the places, without subtraction, so that it is exact for any number of workers.
    """
    full, let_in, inside = 1.0, 0.0, 0.0
    for taken in range(1, places + 1):
        pressure = load * full
        serving = min(taken, workers)
        full, let_in = pressure / (serving + pressure), serving / (serving + pressure)
        inside = let_in * inside + full * taken
    return full, let_in, inside


class FixedPoint(NamedTuple):
    """Attempts per second at which a service and its callers are in balance; a `stable` one attracts loads near it."""

    total: float
    stable: bool


class RetryFeedback(NamedTuple):
    """A service with an unbounded queue, and callers that retry when it is late, within a shared budget."""

    workers: int
    service_time: float
    timeout: float
    max_attempts: int
    ratio: float = 0.0
    reserve: float = math.inf
    funded_by: str = "success"

    @property
    def capacity(self) -> float:
        """Requests per second that the workers can serve."""
        return self.workers / self.service_time

    def total(self, load: float, total: float) -> float:
        """Return the attempts per second that `load` calls per second cause, while there are `total` per second."""
        share = late(self.timeout, total, self.service_time, self.workers)
        wanted = load * math.fsum(share**retry for retry in range(1, self.max_attempts))
        funds = load if self.funded_by == "request" else total * (1.0 - share)
        return load + min(wanted, self.reserve + self.ratio * funds)

    def fixed_points(self, load: float) -> list[FixedPoint]:
        """Return the fixed points under `load` calls per second, in ascending order.

        At one at or above the capacity the service is down: every response is late.
        """
        found: list[FixedPoint] = []
        below, grows = load, True  # the total is at least the load
        for total in self._totals(load):
            change = self.total(load, total) - total
            if change and (change > 0.0) != grows:
                found.append(FixedPoint(self._between(load, below, total, grows), stable=grows))
                grows = not grows
            if change:
                below = total
        return found

    def _totals(self, load: float) -> list[float]:
        """Return the totals to evaluate, in order; they are dense just below the capacity, where p changes fast."""
        most, capacity = load * self.max_attempts, self.capacity
        found = {load, most, 2.0 * most}
        found |= {load + (most - load) * step / STEPS for step in range(STEPS)}
        if load < capacity:
            found |= {capacity - (capacity - load) * 10.0 ** (-step * 14.0 / STEPS) for step in range(STEPS)}
            found.add(capacity)
        return sorted(found)

    def _between(self, load: float, low: float, high: float, grows: bool) -> float:
        """Return the total between these at which the sign changes, by bisection."""
        while low < (middle := (low + high) / 2.0) < high:
            low, high = (middle, high) if (self.total(load, middle) > middle) == grows else (low, middle)
        return high if grows else low
