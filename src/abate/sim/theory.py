"""What can be known without a run: queues in closed form, the load equation of retries, and when a service stays down.

* A queue with `workers`, of which each request holds one for `service_time` on average, exponentially distributed;
  calls arrive by chance (M/M/c). At most `places` are in service or wait (M/M/c/K), or as many as come.
* **The load equation**: of all attempts a share p(total) is late, and a call that is late is tried again. So the total
  is ``load * (1 + p + p² + …)``, with as many terms as there are attempts, and p depends on the total. Where the two
  sides meet lies a **fixed point**: a stable one is where a service settles, an unstable one is the brink between two.
* **When a service stays down**: once its queue is longer than its callers wait, everything it does is for nothing, all
  attempts fail, and it comes back only if even then fewer arrive than it can serve. A budget counts for what it pays
  when nothing succeeds: its reserve, and its share of the calls if it is funded by requests.

The outlook of a world's services is worked out from that and from its policies (sim/outlook.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from abate.admit.budget import FundedBy
from abate.errors import choice, number, whole
from abate.values import Value

MOST_PLACES = 10_000_000
"""The recursions take a step for each place."""
STEPS = 400
"""Totals that are looked at between two bounds, to tell fixed points apart."""


def blocking(rate: float, service_time: float, workers: int, places: int) -> float:
    """The share of requests that find a queue full.

    >>> round(blocking(0.8, 1.0, workers=1, places=10), 6)
    0.023493
    """
    return _filled(_erlangs(rate, service_time), workers, _places(places, workers))[0]


def mean_time(rate: float, service_time: float, workers: int, places: int | None = None) -> float:
    """Seconds that a request which is let in spends waiting and being served; infinite where the line grows for ever.

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
    """The share of requests that find all workers busy, where there is no limit to those who wait (Erlang's C).

    >>> round(waiting(0.5, 1.0, workers=1), 9), waiting(2.0, 1.0, workers=1)
    (0.5, 1.0)
    """
    load, workers = _erlangs(rate, service_time), _places(workers, workers)
    if load >= workers:
        return 1.0
    full = _all_busy(load, workers)
    return full / (full + (1.0 - load / workers) * (1.0 - full))


def late(seconds: float, rate: float, service_time: float, workers: int) -> float:
    """The share of requests that take longer than `seconds`, where there is no limit to those who wait.

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
    """The share that finds all places taken, the share that does not, and how many are inside on average.

    Place by place: a queue with one place more is in its fullest state as often as one with a place fewer lets it come
    there. Nothing is subtracted, so nothing is lost, however many workers there are.
    """
    full, let_in, inside = 1.0, 0.0, 0.0
    for taken in range(1, places + 1):
        pressure = load * full
        serving = min(taken, workers)
        full, let_in = pressure / (serving + pressure), serving / (serving + pressure)
        inside = let_in * inside + full * taken
    return full, let_in, inside


def _all_busy(load: float, workers: int) -> float:
    """The share that finds all workers busy where nobody waits (Erlang's B): a sum from its largest terms down."""
    term = total = 1.0
    for serving in range(workers, 0, -1):
        term *= serving / load
        total += term
        if term < total * 1e-20 or total > 1e300:
            break
    return 1.0 / total


def _erlangs(rate: float, service_time: float) -> float:
    """How many workers are busy on average, if there are enough."""
    product = number("rate", rate, above=0) * number("service_time", service_time, above=0)
    return number("rate times service_time", product, above=0)


def _places(places: int, workers: int) -> int:
    whole("workers", workers, least=1)
    if not workers <= whole("places", places, least=1) <= MOST_PLACES:
        raise ValueError(f"places must be from the {workers} workers to {MOST_PLACES:,}, not {places!r}")
    return places


class FixedPoint(float):
    """Attempts per second at which a service and its callers are in balance.

    A `stable` one is come back to after a small push; past an unstable one it goes on to the next.

    >>> FixedPoint(560.0, stable=True), FixedPoint(560.0, stable=True).stable
    (560.0, True)
    """

    __slots__ = ("stable",)
    stable: bool

    def __new__(cls, total: float, stable: bool) -> FixedPoint:
        point = super().__new__(cls, total)
        point.stable = stable
        return point


class Feedback(Value):
    """A service, and callers that try again when it is late.

    * `workers` serve one request each, in `service_time` seconds on average; all who come wait in one line.
    * Callers give an attempt up after `timeout` seconds, and make `attempts` at most.
    * `ratio`, `reserve`, `funded_by`: of the budget they share. Unless given, every retry is paid for.

    >>> hotos = Feedback(workers=30, service_time=0.1, timeout=1.0, attempts=2)
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
    attempts: int
    ratio: float = 0.0
    reserve: float = math.inf
    funded_by: FundedBy = "success"

    def checked(self) -> None:
        _places(self.workers, self.workers)
        number("service_time", self.service_time, above=0)
        number("timeout", self.timeout, above=0)
        whole("attempts", self.attempts, least=1)
        number("ratio", self.ratio, least=0)
        number("reserve", self.reserve, least=0, infinite=True)
        choice("funded_by", self.funded_by, ("success", "request"))

    @property
    def capacity(self) -> float:
        """Requests per second that the workers can serve."""
        return self.workers / self.service_time

    def total(self, load: float, total: float) -> float:
        """Attempts per second that `load` calls per second come to, while there are `total` per second.

        >>> Feedback(workers=30, service_time=0.1, timeout=1.0, attempts=2).total(load=160.0, total=310.0)
        320.0
        """
        share = late(self.timeout, total, self.service_time, self.workers)
        wanted = load * _powers(share, self.attempts - 1)
        funds = load if self.funded_by == "request" else total * (1.0 - share)
        return load + min(wanted, self.reserve + self.ratio * funds)

    def fixed_points(self, load: float) -> list[FixedPoint]:
        """Where a service settles under `load` calls per second (stable), and the brinks between (unstable).

        One at the capacity or above is a service that is down: whatever it does is late.

        >>> Feedback(workers=30, service_time=0.1, timeout=1.0, attempts=2).fixed_points(100.0)
        [100.0...]
        """
        number("load", load, above=0)
        found: list[FixedPoint] = []
        below, grows = load, True  # there is no total below the load
        for total in self._totals(load):
            change = self.total(load, total) - total
            if change and (change > 0.0) != grows:
                found.append(FixedPoint(self._between(load, below, total, grows), stable=grows))
                grows = not grows
            if change:
                below = total
        return found

    def _totals(self, load: float) -> list[float]:
        """Totals to look at, in order. Just below the capacity things change within a hair's breadth."""
        most, capacity = load * self.attempts, self.capacity
        found = {load, most, 2.0 * most}
        found |= {load + (most - load) * step / STEPS for step in range(STEPS)}
        if load < capacity:
            found |= {capacity - (capacity - load) * 10.0 ** (-step * 14.0 / STEPS) for step in range(STEPS)}
            found.add(capacity)
        return sorted(found)

    def _between(self, load: float, low: float, high: float, grows: bool) -> float:
        """The total between these at which the sign changes."""
        while low < (middle := (low + high) / 2.0) < high:
            low, high = (middle, high) if (self.total(load, middle) > middle) == grows else (low, middle)
        return high if grows else low

    @property
    def vulnerable(self) -> float:
        """Calls per second above which the service stays down once it has fallen; its capacity, if below it never does.

        With a budget funded by requests and no reserve this is the capacity over ``1 + ratio``: the ratio must be below
        capacity / load - 1.

        >>> Feedback(30, 0.1, 1.0, attempts=4, ratio=0.2, reserve=0.0, funded_by="request").vulnerable
        250.0
        """
        # the attempts and the budget each bound the total, so it takes a load at which neither is below the capacity
        by_attempts = self.capacity / self.attempts
        share = self.ratio if self.funded_by == "request" else 0.0
        return max(by_attempts, (self.capacity - self.reserve) / (1.0 + share))


def _powers(share: float, terms: int) -> float:
    """``share + share² + …``, with so many terms."""
    if not share or share == 1.0:
        return share * terms
    log = math.log(share)
    return share * math.expm1(terms * log) / math.expm1(log)


def calls_below(attempts: Sequence[int], tells_layers: bool = False) -> int:
    """Calls at the bottom of a stack when everything fails there, from the attempts of each layer, outermost first.

    Where layers tell each other that they have retried, only the innermost does.

    >>> calls_below([3] * 5), calls_below([4] * 3), calls_below([3] * 5, tells_layers=True)
    (243, 64, 3)
    """
    if not attempts:
        raise ValueError("attempts must hold a number for each layer, not none")
    for layer, tries in enumerate(attempts):
        whole(f"attempts[{layer}]", tries, least=1)
    return attempts[-1] if tells_layers else math.prod(attempts)
