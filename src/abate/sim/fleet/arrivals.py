"""When the clients of a fleet call: `abate.sim.arrivals`, one bucket at a time.

Open clients are Poisson arrivals, periodic arrivals (all at once, or at random instants) or offset arrivals (each
client at its own offset). For serial clients there are only their first calls and think times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from abate.schedule.periodic import consistent_jitter
from abate.sim.fleet.timer_wheel import WIDTH
from abate.sim.fleet.vector_rules import Floats, VectorRate, stream
from abate.sim.model import Clients
from abate.sim.varying_rate import VaryingRate
from abate.sim.world import World

Arrived = tuple[NDArray[np.int32], Floats]
"""Clients, and the instants of their calls."""


class ArrivalSource(Protocol):
    """Yields new calls."""

    def take(self, bucket: int) -> Arrived:
        """Return the calls of the next bucket."""
        ...


def arrivals(world: World, seed: int) -> ArrivalSource:
    """Return the arrivals of a world with open clients."""
    clients = _clients(world)
    rng = stream(seed, "arrivals")
    if clients.arrivals == "poisson":
        return PoissonArrivals(world, clients, rng)
    if clients.offset == "consistent" and (clients.arrivals == "periodic" or clients.spread):
        return OffsetArrivals(world, clients)
    return PeriodicArrivals(world, clients, rng)


class ThinkTimes:
    """Serial clients: when they begin, and how long they wait after a result."""

    __slots__ = ("_flow", "_periodic", "_rng")

    def __init__(self, world: World, seed: int) -> None:
        clients = _clients(world)
        self._periodic = clients.arrivals == "periodic"
        self._flow = VectorRate.of(_pace(world, clients.rate))
        self._rng = stream(seed, "arrivals")

    def first(self, clients: Clients) -> Floats:
        """Return the instants of the first calls."""
        if not self._periodic:
            return self.after(np.full(clients.count, float(clients.start)))
        period = 1.0 / clients.rate
        if clients.offset == "consistent":
            return clients.start + _offsets(clients.count, period)
        shares = self._rng.random(clients.count) if clients.offset == "random" else np.zeros(clients.count)
        return clients.start + shares * period

    def after(self, instants: Floats) -> Floats:
        """Return the instants of the next calls, after results at these instants."""
        n = len(instants)
        return self._flow.after(instants, np.ones(n) if self._periodic else self._rng.standard_exponential(n))


class PoissonArrivals:
    """One Poisson stream of all clients; each call gets a random client."""

    __slots__ = ("_count", "_numbers", "_rng")

    def __init__(self, world: World, clients: Clients, rng: np.random.Generator) -> None:
        self._count = clients.count
        self._rng = rng
        edges = np.maximum(np.arange(int(world.horizon / WIDTH) + 2) * WIDTH, clients.start)
        self._numbers = rng.poisson(np.diff(VectorRate.of(_pace(world, clients.offered)).done(edges)))

    def take(self, bucket: int) -> Arrived:
        number = self._numbers[bucket]
        uniforms = self._rng.random(2 * number)
        return (uniforms[:number] * self._count).astype(np.int32), (bucket + uniforms[number:]) * WIDTH


class PeriodicArrivals:
    """Periods in which every client calls once: all at the beginning, or each at a random instant."""

    __slots__ = ("_clients", "_end", "_periods", "_rng", "_start", "_waiting")

    def __init__(self, world: World, clients: Clients, rng: np.random.Generator) -> None:
        self._clients = clients
        self._rng = rng
        self._periods = _period_bounds(world, clients)
        self._start, self._end = next(self._periods)
        self._waiting: NDArray[np.int32] | None = None
        """Clients that have not called in the current period."""

    def take(self, bucket: int) -> Arrived:
        end = (bucket + 1) * WIDTH
        callers, instants = [np.empty(0, np.int32)], [np.empty(0)]
        while self._start < end:
            if self._waiting is None:
                self._waiting = np.arange(self._clients.count, dtype=np.int32)
                if self._clients.offset != "none":
                    self._rng.shuffle(self._waiting)
            if self._clients.offset == "none" or self._end == self._start:
                number, until = len(self._waiting), self._start
            else:
                # uniformly distributed over the rest of the period
                until = min(end, self._end)
                number = int(self._rng.binomial(len(self._waiting), (until - self._start) / (self._end - self._start)))
            callers.append(self._waiting[:number])
            instants.append(self._start + self._rng.random(number) * (until - self._start))
            self._waiting, self._start = self._waiting[number:], until
            if until >= self._end or self._clients.offset == "none":
                self._waiting = None
                self._start, self._end = next(self._periods)
        return np.concatenate(callers), np.concatenate(instants)


class OffsetArrivals:
    """Clients that call at their own offset, once or in every period."""

    __slots__ = ("_done", "_flow", "_once", "_order", "_phases")

    def __init__(self, world: World, clients: Clients) -> None:
        self._once = clients.arrivals == "once"
        self._flow = VectorRate.of(_pace(world, clients.rate))
        first = clients.start + _offsets(clients.count, clients.spread if self._once else 1.0 / clients.rate)
        self._order = first.argsort(kind="stable").astype(np.int32)
        self._phases = self._flow.done(first[self._order])
        """In units of periods: a client calls at its phase plus whole numbers."""
        self._done = float(self._phases[0])

    def take(self, bucket: int) -> Arrived:
        since, until = self._done, float(self._flow.done(np.array([(bucket + 1) * WIDTH]))[0])
        if until <= since:
            return np.empty(0, np.int32), np.empty(0)
        self._done = until
        last = 0 if self._once else int(until - self._phases[0])
        callers, phases = [], []
        for beat in range(max(0, int(since - self._phases[-1])), last + 1):
            low, high = np.searchsorted(self._phases, [since - beat, until - beat])
            callers.append(self._order[low:high])
            phases.append(self._phases[low:high] + beat)
        if not callers:
            return np.empty(0, np.int32), np.empty(0)
        return np.concatenate(callers), self._flow.when(np.concatenate(phases))


def _clients(world: World) -> Clients:
    assert isinstance(world.clients, Clients)
    return world.clients


def _pace(world: World, rate: float) -> VaryingRate:
    spikes = [(trigger.at, trigger.end, trigger.factor or 1.0) for trigger in world.triggers if trigger.kind == "spike"]
    return VaryingRate(rate, spikes)


def _period_bounds(world: World, clients: Clients) -> Iterator[tuple[float, float]]:
    """Yield start and end of each period; after the last, one that never begins."""
    start = float(clients.start)
    if clients.arrivals == "once":
        yield start, start + clients.spread
    else:
        pace = _pace(world, clients.rate)
        while start <= world.horizon:
            end = pace.after(start, 1.0)
            yield start, end
            start = end
    while True:
        yield np.inf, np.inf


def _offsets(count: int, width: float) -> Floats:
    return np.fromiter((consistent_jitter(f"client-{client}", width) for client in range(count)), np.float64, count)
