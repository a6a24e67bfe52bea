"""The workers of the simulated service, one bucket at a time.

* `DiscreteWorkers`, if serving takes longer than a bucket: each busy worker keeps the exact instant at which it will be
  free, as rounding errors would lower the capacity.
* `FluidWorkers`, if serving takes less: all workers together are one worker with their total speed.
"""

from __future__ import annotations

import numpy as np

from abate.sim.fleet.request_queue import RequestQueue
from abate.sim.fleet.timer_wheel import WIDTH, TimerWheel
from abate.sim.fleet.vector_rules import Floats, Mask, VectorRate, Whole, duration_sampler
from abate.sim.model import Duration, Service
from abate.sim.server import reduced_capacity_spans, service_rate, workers_at
from abate.sim.world import Trigger

SPARE = 1.2
"""Requests that are tried, per request that a bucket can serve on average."""
FIRST = 1024
"""Initial size, in busy workers."""


class Started:
    """Requests that workers have started, and when they will finish."""

    __slots__ = ("begin", "calls", "due", "finish")

    def __init__(self, calls: Whole, due: Floats, begin: Floats, finish: Floats) -> None:
        self.calls = calls
        self.due = due
        self.begin = begin
        self.finish = finish


class Busy:
    """Busy workers, by the instants at which they will be free. Buckets are taken in order.

    >>> busy = Busy(horizon=60.0)
    >>> busy.add(np.array([0.018, 40.0, 0.012]))
    >>> [busy.take(bucket).tolist() for bucket in range(3)], len(busy)
    ([[], [0.012, 0.018], []], 1)
    """

    __slots__ = ("_left", "_places", "_until", "_wheel")

    def __init__(self, horizon: float) -> None:
        self._wheel = TimerWheel(horizon)
        self._until = np.empty(FIRST)
        self._places = np.arange(FIRST)
        """Indexes of `_until`; the unused ones come first."""
        self._left = FIRST

    def __len__(self) -> int:
        return len(self._until) - self._left

    def add(self, until: Floats) -> None:
        """Add workers that are busy until these instants."""
        if len(until) > self._left:
            self._make_room(len(until))
        self._left -= len(until)
        places = self._places[self._left : self._left + len(until)]
        self._until[places] = until
        self._wheel.add(places, until)

    def take(self, bucket: int) -> Floats:
        """Return the instants at which workers become free in the next bucket, in order."""
        places = self._wheel.take(bucket)
        self._places[self._left : self._left + len(places)] = places
        self._left += len(places)
        return np.sort(self._until[places])

    def _make_room(self, coming: int) -> None:
        # by need, not by the number of workers, which may be huge to mean no limit
        size, more = len(self._until), max(len(self._until), coming)
        self._until = np.concatenate([self._until, np.empty(more)])
        self._places = np.concatenate([np.arange(size, size + more), self._places])
        self._left += more


class DiscreteWorkers:
    """Workers whose work takes several buckets."""

    __slots__ = ("_busy", "_draw", "_drops", "_flow", "_freed", "_idle", "_room", "_sizes", "expired")

    def __init__(self, service: Service, triggers: list[Trigger], rng: np.random.Generator, buckets: int) -> None:
        spans = reduced_capacity_spans(service, triggers)
        self._draw = duration_sampler(Duration.of(service.service_time), rng)
        self._drops = service.drop_expired
        self._flow = VectorRate.of(service_rate(triggers))
        self._sizes = [workers_at(service, spans, bucket * WIDTH) for bucket in range(buckets)]
        self._room = service.queue_limit
        self._busy = Busy(buckets * WIDTH)
        self._idle = 0
        self._freed = np.empty(0)
        self.expired = 0

    def begin_bucket(self, bucket: int, waiting: int, at: Floats) -> Mask | None:
        """Begin a bucket, and return which arrivals find the queue full; None if none does."""
        spare = self._sizes[bucket] - len(self._busy)
        self._idle = max(0, spare)
        # if capacity was reduced, the first workers to finish stop
        self._freed = self._busy.take(bucket)[max(0, -spare) :]
        if self._room is None or waiting - self._idle + len(at) <= self._room:
            return None
        # the queue length after each arrival without refusals; each new maximum above the limit is one refusal
        crowd = np.arange(1, len(at) + 1) + (waiting - self._idle) - np.searchsorted(self._freed, at, side="right")
        beyond = np.maximum.accumulate(np.maximum(crowd - self._room, 0))
        return np.diff(beyond, prepend=0) > 0

    def serve(self, bucket: int, line: RequestQueue) -> list[Started]:
        """Start requests of the queue, as far as workers are free."""
        found = []
        end = (bucket + 1) * WIDTH
        openings = np.concatenate([np.full(min(self._idle, len(line)), bucket * WIDTH), self._freed])
        while len(openings) and len(line):
            calls, at, due = line.take(len(openings))
            begin = np.maximum(at, openings[: len(calls)])
            openings = openings[len(calls) :]
            if self._drops and (dead := due <= begin).any():
                self.expired += int(np.count_nonzero(dead))
                openings = np.concatenate([begin[dead], openings])
                calls, due, begin = calls[~dead], due[~dead], begin[~dead]
            finish = self._flow.after(begin, self._draw(len(calls)))
            again = finish < end
            self._busy.add(finish[~again])
            if again.any():
                openings = np.sort(np.concatenate([openings, finish[again]]))
            found.append(Started(calls, due, begin, finish))
        return found


class FluidWorkers:
    """Workers whose work takes less than a bucket."""

    __slots__ = ("_capacity", "_draw", "_drops", "_flow", "_free", "_mean", "expired")

    def __init__(self, service: Service, triggers: list[Trigger], rng: np.random.Generator, buckets: int) -> None:
        spans, speed = reduced_capacity_spans(service, triggers), service_rate(triggers)
        edges = sorted({*speed.starts[1:-1], *(edge for start, end, _ in spans for edge in (start, end))})
        rates = [workers_at(service, spans, edge) * speed.at(edge) for edge in edges]
        self._capacity = VectorRate([-np.inf, *edges], [float(service.workers), *rates])
        """Seconds of work of all workers together."""
        duration = Duration.of(service.service_time)
        self._mean = duration.mean
        self._draw = duration_sampler(duration, rng)
        self._drops = service.drop_expired
        self._flow = VectorRate.of(speed)
        self._free = -np.inf
        """The amount of work at which all started requests will be done."""
        self.expired = 0

    def begin_bucket(self, bucket: int, waiting: int, at: Floats) -> Mask | None:
        """Return None: full queues are known at the end of the bucket."""
        return None

    def serve(self, bucket: int, line: RequestQueue) -> list[Started]:
        """Start requests of the queue, as far as workers are free."""
        found = []
        done, most = self._capacity.done(np.array([bucket * WIDTH, (bucket + 1) * WIDTH])).tolist()
        while len(line) and self._free < most and done < most:
            left = most - max(done, self._free)
            number = int(SPARE * left / self._mean) + 1 if self._mean else len(line)
            calls, at, due = line.front(number)
            work = self._draw(len(calls))
            ahead = np.cumsum(work) - work
            # Lindley's recursion: each starts when it has arrived and those ahead of it are done
            turn = ahead + np.maximum.accumulate(np.maximum(self._capacity.done(at), self._free) - ahead)
            number = int(np.searchsorted(turn, most))
            if not number:
                break
            line.take(number)
            self._free = float(turn[number - 1] + work[number - 1])
            calls, at, due, work = calls[:number], at[:number], due[:number], work[:number]
            begin = np.maximum(self._capacity.when(turn[:number]), at)
            if self._drops and (dead := due <= begin).any():
                self.expired += int(np.count_nonzero(dead))
                calls, due, begin, work = calls[~dead], due[~dead], begin[~dead], work[~dead]
            found.append(Started(calls, due, begin, self._flow.after(begin, work)))
        return found
