"""Who serves a fleet, a bucket at a time.

* `Crew`, where serving takes longer than a bucket: a busy worker keeps the instant at which it will be free, and begins
  anew at that instant. What is rounded here adds up where workers are few, and is missing in what they serve.
* `Current`, where it takes less: all workers together are one that is as fast as they are, and its work flows.
"""

from __future__ import annotations

import numpy as np

from abate.sim.arrays import Floats, Flow, Truths, Whole, drawing
from abate.sim.durations import Duration
from abate.sim.fleet.line import Line
from abate.sim.fleet.wheel import WIDTH, Wheel
from abate.sim.server import pace, shrunk, staff
from abate.sim.services import Service
from abate.sim.world import Trigger

SPARE = 1.2
"""Requests that are looked at, per request that the work of a bucket is enough for on average."""
FIRST = 1024
"""Busy workers that there is room for at first."""


class Started:
    """Requests that workers have begun with, and when they will have finished."""

    __slots__ = ("begin", "calls", "due", "finish")

    def __init__(self, calls: Whole, due: Floats, begin: Floats, finish: Floats) -> None:
        self.calls = calls
        self.due = due
        self.begin = begin
        self.finish = finish


class Busy:
    """Workers that are busy, by the instants at which they will be free. Buckets are taken one after the other.

    >>> busy = Busy(horizon=60.0)
    >>> busy.add(np.array([0.018, 40.0, 0.012]))
    >>> [busy.take(bucket).tolist() for bucket in range(3)], len(busy)
    ([[], [0.012, 0.018], []], 1)
    """

    __slots__ = ("_left", "_places", "_until", "_wheel")

    def __init__(self, horizon: float) -> None:
        self._wheel = Wheel(horizon)
        self._until = np.empty(FIRST)
        self._places = np.arange(FIRST)
        """Those of `_until` that are not in use come first."""
        self._left = FIRST

    def __len__(self) -> int:
        return len(self._until) - self._left

    def add(self, until: Floats) -> None:
        """So many more are busy, until these instants."""
        if len(until) > self._left:
            self._make_room(len(until))
        self._left -= len(until)
        places = self._places[self._left : self._left + len(until)]
        self._until[places] = until
        self._wheel.add(places, until)

    def take(self, bucket: int) -> Floats:
        """The instants at which workers come free in a bucket, the next one, in order."""
        places = self._wheel.take(bucket)
        self._places[self._left : self._left + len(places)] = places
        self._left += len(places)
        return np.sort(self._until[places])

    def _make_room(self, coming: int) -> None:
        # by need, not by the number of workers: that may be any number, to say that there is no bound
        size, more = len(self._until), max(len(self._until), coming)
        self._until = np.concatenate([self._until, np.empty(more)])
        self._places = np.concatenate([np.arange(size, size + more), self._places])
        self._left += more


class Crew:
    """Workers that are busy for buckets on end."""

    __slots__ = ("_busy", "_draw", "_drops", "_flow", "_freed", "_idle", "_room", "_sizes", "expired")

    def __init__(self, service: Service, triggers: list[Trigger], rng: np.random.Generator, buckets: int) -> None:
        spans = shrunk(service, triggers)
        self._draw = drawing(Duration.of(service.service_time), rng)
        self._drops = service.drop_expired
        self._flow = Flow.of(pace(triggers))
        self._sizes = [staff(service, spans, bucket * WIDTH) for bucket in range(buckets)]
        self._room = service.queue_limit
        self._busy = Busy(buckets * WIDTH)
        self._idle = 0
        self._freed = np.empty(0)
        self.expired = 0

    def come(self, bucket: int, waiting: int, at: Floats) -> Truths | None:
        """A bucket begins: which of those who come find the queue full? None: that is not known yet."""
        spare = self._sizes[bucket] - len(self._busy)
        self._idle = max(0, spare)
        # of more than there should be, the first to finish do not go on
        self._freed = self._busy.take(bucket)[max(0, -spare) :]
        if self._room is None or waiting - self._idle + len(at) <= self._room:
            return None
        # those who would wait if nobody were refused, one by one; each time they pass the room, one is refused
        crowd = np.arange(1, len(at) + 1) + (waiting - self._idle) - np.searchsorted(self._freed, at, side="right")
        beyond = np.maximum.accumulate(np.maximum(crowd - self._room, 0))
        return np.diff(beyond, prepend=0) > 0

    def serve(self, bucket: int, line: Line) -> list[Started]:
        """Take from the line those who can be begun with."""
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


class Current:
    """Workers whose work takes less than a bucket."""

    __slots__ = ("_capacity", "_draw", "_drops", "_flow", "_free", "_mean", "expired")

    def __init__(self, service: Service, triggers: list[Trigger], rng: np.random.Generator, buckets: int) -> None:
        spans, speed = shrunk(service, triggers), pace(triggers)
        edges = sorted({*speed.starts[1:-1], *(edge for start, end, _ in spans for edge in (start, end))})
        rates = [staff(service, spans, edge) * speed.at(edge) for edge in edges]
        self._capacity = Flow([-np.inf, *edges], [float(service.workers), *rates])
        """Seconds of work that all of them do."""
        duration = Duration.of(service.service_time)
        self._mean = duration.mean
        self._draw = drawing(duration, rng)
        self._drops = service.drop_expired
        self._flow = Flow.of(speed)
        self._free = -np.inf
        """How much will be done when all that has been begun with is."""
        self.expired = 0

    def come(self, bucket: int, waiting: int, at: Floats) -> Truths | None:
        """A bucket begins: who finds the queue full is known when it is over."""
        return None

    def serve(self, bucket: int, line: Line) -> list[Started]:
        """Take from the line those who can be begun with."""
        found = []
        done, most = self._capacity.done(np.array([bucket * WIDTH, (bucket + 1) * WIDTH])).tolist()
        while len(line) and self._free < most and done < most:
            left = most - max(done, self._free)
            number = int(SPARE * left / self._mean) + 1 if self._mean else len(line)
            calls, at, due = line.front(number)
            work = self._draw(len(calls))
            ahead = np.cumsum(work) - work
            # each begins when it has come and those ahead of it are done: Lindley's recursion, all at once
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
