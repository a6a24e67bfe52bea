"""When the clients of a fleet call: what `abate.sim.arrivals` does, a bucket at a time.

Open clients are a stream (Poisson), rounds (periodic, all at once or each by chance) or beats (each at its own offset).
Serial ones are told when to begin by their last result; here is only how long they pause, and when they begin at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from abate.schedule.beat import consistent_jitter
from abate.sim.arrays import Floats, Flow, stream
from abate.sim.clients import Clients
from abate.sim.fleet.wheel import WIDTH
from abate.sim.pace import Pace
from abate.sim.world import World

Arrived = tuple[NDArray[np.int32], Floats]
"""Clients, and the instants at which they call."""


class Source(Protocol):
    """Where new calls come from."""

    def take(self, bucket: int) -> Arrived:
        """Those of a bucket; buckets are taken one after the other."""
        ...


def arrivals(world: World, seed: int) -> Source:
    """The source of a world whose clients are open."""
    clients = _clients(world)
    rng = stream(seed, "arrivals")
    if clients.arrivals == "poisson":
        return Stream(world, clients, rng)
    if clients.offset == "consistent" and (clients.arrivals == "periodic" or clients.spread):
        return Beats(world, clients)
    return Rounds(world, clients, rng)


class Pauses:
    """Serial clients: when they begin, and how long they wait after a result."""

    __slots__ = ("_flow", "_periodic", "_rng")

    def __init__(self, world: World, seed: int) -> None:
        clients = _clients(world)
        self._periodic = clients.arrivals == "periodic"
        self._flow = Flow.of(_pace(world, clients.rate))
        self._rng = stream(seed, "arrivals")

    def first(self, clients: Clients) -> Floats:
        """The instants at which they call for the first time."""
        if not self._periodic:
            return self.after(np.full(clients.count, float(clients.start)))
        period = 1.0 / clients.rate
        if clients.offset == "consistent":
            return clients.start + _offsets(clients.count, period)
        shares = self._rng.random(clients.count) if clients.offset == "random" else np.zeros(clients.count)
        return clients.start + shares * period

    def after(self, instants: Floats) -> Floats:
        """The instants at which those call again who have had their results at these."""
        n = len(instants)
        return self._flow.after(instants, np.ones(n) if self._periodic else self._rng.standard_exponential(n))


class Stream:
    """A Poisson stream that all clients make together: whose a call is, is chance."""

    __slots__ = ("_count", "_numbers", "_rng")

    def __init__(self, world: World, clients: Clients, rng: np.random.Generator) -> None:
        self._count = clients.count
        self._rng = rng
        edges = np.maximum(np.arange(int(world.horizon / WIDTH) + 2) * WIDTH, clients.start)
        self._numbers = rng.poisson(np.diff(Flow.of(_pace(world, clients.offered)).done(edges)))

    def take(self, bucket: int) -> Arrived:
        number = self._numbers[bucket]
        uniforms = self._rng.random(2 * number)
        return (uniforms[:number] * self._count).astype(np.int32), (bucket + uniforms[number:]) * WIDTH


class Rounds:
    """Periods in each of which every client calls once: all at its beginning, or each at an instant by chance."""

    __slots__ = ("_clients", "_end", "_rng", "_rounds", "_start", "_waiting")

    def __init__(self, world: World, clients: Clients, rng: np.random.Generator) -> None:
        self._clients = clients
        self._rng = rng
        self._rounds = _rounds(world, clients)
        self._start, self._end = next(self._rounds)
        self._waiting: NDArray[np.int32] | None = None
        """Those who have not called in the round that has begun."""

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
                # evenly spread by chance over what is left of the round
                until = min(end, self._end)
                number = int(self._rng.binomial(len(self._waiting), (until - self._start) / (self._end - self._start)))
            callers.append(self._waiting[:number])
            instants.append(self._start + self._rng.random(number) * (until - self._start))
            self._waiting, self._start = self._waiting[number:], until
            if until >= self._end or self._clients.offset == "none":
                self._waiting = None
                self._start, self._end = next(self._rounds)
        return np.concatenate(callers), np.concatenate(instants)


class Beats:
    """Clients that keep to their own offsets, once or in every period."""

    __slots__ = ("_done", "_flow", "_once", "_order", "_phases")

    def __init__(self, world: World, clients: Clients) -> None:
        self._once = clients.arrivals == "once"
        self._flow = Flow.of(_pace(world, clients.rate))
        first = clients.start + _offsets(clients.count, clients.spread if self._once else 1.0 / clients.rate)
        self._order = first.argsort(kind="stable").astype(np.int32)
        self._phases = self._flow.done(first[self._order])
        """In units of periods: a client's beats are whole numbers beyond its phase."""
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


def _pace(world: World, rate: float) -> Pace:
    spikes = [(trigger.at, trigger.end, trigger.factor or 1.0) for trigger in world.triggers if trigger.kind == "spike"]
    return Pace(rate, spikes)


def _rounds(world: World, clients: Clients) -> Iterator[tuple[float, float]]:
    """Where each round begins and ends; when there are no more, one that never begins."""
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
