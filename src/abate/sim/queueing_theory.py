"""Closed forms: queues, the load equation of retries, and the load above which a service stays down.

* **Queues**: `workers` serve requests in `service_time` on average, exponentially distributed; arrivals are Poisson
  (M/M/c). At most `places` requests are in service or wait (M/M/c/K), or any number.
* **The load equation**: a share p(total) of all attempts is late, and a late call is tried again. So the total is
  ``load * (1 + p + p² + …)``, with one term per attempt, and p depends on the total. A solution is a **fixed point**: a
  service settles at a stable one; an unstable one separates two stable ones.
* **Staying down**: once the queue is longer than the callers' timeout, every attempt fails, and the service recovers
  only if even then fewer requests arrive than it can serve. What a budget admits when nothing succeeds is its reserve,
  and its ratio of the calls if it is funded by requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from abate.admit.budget import FundedBy
from abate.errors import choice, number, whole
from abate.frozen import Frozen

MAX_PLACES = 10_000_000
"""The recursions take a step for each place."""
STEPS = 400
"""Totals that are evaluated between two bounds, to separate fixed points."""


def blocking(rate: float, service_time: float, workers: int, places: int) -> float:
    """Return the share of requests that find the queue full.

    >>> round(blocking(0.8, 1.0, workers=1, places=10), 6)
    0.023493
    """
    return _filled(_erlangs(rate, service_time), workers, _places(places, workers))[0]


def mean_time(rate: float, service_time: float, workers: int, places: int | None = None) -> float:
    """Return the mean seconds that an admitted request waits and is served; infinite if the queue grows without limit.

    >>> round(mean_time(0.8, 1.0, workers=1, places=10), 4), mean_time(0.5, 1.0, workers=1)
    (3.7971, 2.0)
    """
    load, workers = _erlangs(rate, service_time), _places(workers, workers)
    if places is None and load >= workers:
        return math.inf
    if places is None:
        return service_time * (1.0 + waiting(rate, service_time, workers) / (workers - load))
    _, let_in, inside = _filled(load, workers, _places(places, workers))
    return service_time * inside / (load * let_in)  # Little's law


def waiting(rate: float, service_time: float, workers: int) -> float:
    """Return the share of requests that find all workers busy, with an unbounded queue (Erlang C).

    >>> round(waiting(0.5, 1.0, workers=1), 9), waiting(2.0, 1.0, workers=1)
    (0.5, 1.0)
    """
    load, workers = _erlangs(rate, service_time), _places(workers, workers)
    if load >= workers:
        return 1.0
    full = _all_busy(load, workers)
    return full / (full + (1.0 - load / workers) * (1.0 - full))


def late(seconds: float, rate: float, service_time: float, workers: int) -> float:
    """Return the share of requests that take longer than `seconds`, with an unbounded queue.

    >>> round(late(1.0, 290.0, 0.1, workers=30), 6), late(1.0, 300.0, 0.1, workers=30)
    (0.000407, 1.0)
    """
    number("seconds", seconds, least=0, infinite=True)
    load, workers = _erlangs(rate, service_time), _places(workers, workers)
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


def _all_busy(load: float, workers: int) -> float:
    """Return the share of requests that find all workers busy, without a queue (Erlang B)."""
    term = total = 1.0
    for serving in range(workers, 0, -1):
        term *= serving / load
        total += term
        if term < total * 1e-20 or total > 1e300:
            break
    return 1.0 / total


def _erlangs(rate: float, service_time: float) -> float:
    """Return the offered load in Erlangs: busy workers on average, if there are enough."""
    product = number("rate", rate, above=0) * number("service_time", service_time, above=0)
    return number("rate times service_time", product, above=0)


def _places(places: int, workers: int) -> int:
    whole("workers", workers, least=1)
    if not workers <= whole("places", places, least=1) <= MAX_PLACES:
        raise ValueError(f"places must be from the {workers} workers to {MAX_PLACES:,}, not {places!r}")
    return places


class FixedPoint(float):
    """Attempts per second at which a service and its callers are in balance.

    After a small disturbance the load returns to a `stable` point, and moves away from an unstable one.

    >>> FixedPoint(560.0, stable=True), FixedPoint(560.0, stable=True).stable
    (560.0, True)
    """

    __slots__ = ("stable",)
    stable: bool

    def __new__(cls, total: float, stable: bool) -> FixedPoint:
        point = super().__new__(cls, total)
        point.stable = stable
        return point


class RetryFeedback(Frozen):
    """A service, and callers that retry when it is late.

    * `workers` serve one request each, in `service_time` seconds on average, from one unbounded queue.
    * An attempt times out after `timeout` seconds; a call makes at most `max_attempts`.
    * `ratio`, `reserve`, `funded_by`: of the shared budget. By default retries are unlimited.

    >>> hotos = RetryFeedback(workers=30, service_time=0.1, timeout=1.0, max_attempts=2)
    >>> hotos.vulnerable
    150.0
    >>> [round(point) for point in hotos.fixed_points(280.0)]
    [280, 297, 560]
    >>> [point.stable for point in hotos.fixed_points(280.0)]
    [True, False, True]
    """

    workers: int
    service_time: float
    timeout: float
    max_attempts: int
    ratio: float = 0.0
    reserve: float = math.inf
    funded_by: FundedBy = "success"

    def validate(self) -> None:
        _places(self.workers, self.workers)
        number("service_time", self.service_time, above=0)
        number("timeout", self.timeout, above=0)
        whole("max_attempts", self.max_attempts, least=1)
        number("ratio", self.ratio, least=0)
        number("reserve", self.reserve, least=0, infinite=True)
        choice("funded_by", self.funded_by, ("success", "request"))

    @property
    def capacity(self) -> float:
        """Requests per second that the workers can serve."""
        return self.workers / self.service_time

    def total(self, load: float, total: float) -> float:
        """Return the attempts per second that `load` calls per second cause, while there are `total` per second.

        >>> RetryFeedback(workers=30, service_time=0.1, timeout=1.0, max_attempts=2).total(load=160.0, total=310.0)
        320.0
        """
        share = late(self.timeout, total, self.service_time, self.workers)
        wanted = load * _powers(share, self.max_attempts - 1)
        funds = load if self.funded_by == "request" else total * (1.0 - share)
        return load + min(wanted, self.reserve + self.ratio * funds)

    def fixed_points(self, load: float) -> list[FixedPoint]:
        """Return the fixed points under `load` calls per second, in ascending order.

        At one at or above the capacity the service is down: every response is late.

        >>> RetryFeedback(workers=30, service_time=0.1, timeout=1.0, max_attempts=2).fixed_points(100.0)
        [100.0...]
        """
        number("load", load, above=0)
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

    @property
    def vulnerable(self) -> float:
        """Calls per second above which the service stays down once it has failed; the capacity if there are none.

        With a budget funded by requests and no reserve this is the capacity over ``1 + ratio``: the ratio must be below
        capacity / load - 1.

        >>> RetryFeedback(30, 0.1, 1.0, max_attempts=4, ratio=0.2, reserve=0.0, funded_by="request").vulnerable
        250.0
        """
        # attempts and budget each bound the total: both bounds must reach the capacity
        by_attempts = self.capacity / self.max_attempts
        share = self.ratio if self.funded_by == "request" else 0.0
        return max(by_attempts, (self.capacity - self.reserve) / (1.0 + share))


def _powers(share: float, terms: int) -> float:
    """Return ``share + share² + …``, with this number of terms."""
    if not share or share == 1.0:
        return share * terms
    log = math.log(share)
    return share * math.expm1(terms * log) / math.expm1(log)


def calls_at_bottom(attempts: Sequence[int], tells_layers: bool = False) -> int:
    """Return the requests at the bottom of a stack if all fail, from the attempts of each layer, outermost first.

    If layers report that they have retried, only the innermost layer retries.

    >>> calls_at_bottom([3] * 5), calls_at_bottom([4] * 3), calls_at_bottom([3] * 5, tells_layers=True)
    (243, 64, 3)
    """
    if not attempts:
        raise ValueError("attempts must hold a number for each layer, not none")
    for layer, tries in enumerate(attempts):
        whole(f"attempts[{layer}]", tries, least=1)
    return attempts[-1] if tells_layers else math.prod(attempts)
