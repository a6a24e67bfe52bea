"""Who serves a fleet, a bucket at a time.

* `Crew`, where serving takes longer than a bucket: a worker that is busy is counted in the bucket in which it will be
  free. Those that will be free in one bucket are taken to be so one after the other, evenly spread over it.
* `Current`, where it takes less: all workers together are one that is as fast as they are, and its work flows.
"""

from __future__ import annotations

import numpy as np

from abate.sim.arrays import Floats, Flow, Truths, Whole, drawing
from abate.sim.durations import Duration
from abate.sim.fleet.line import Line
from abate.sim.fleet.wheel import PER_SECOND, WIDTH
from abate.sim.server import pace, shrunk, staff
from abate.sim.services import Service
from abate.sim.world import Trigger

SPARE = 1.2
"""Requests that are looked at, per request that the work of a bucket is enough for on average."""


class Started:
    """Requests that workers have begun with, and when they will have finished."""

    __slots__ = ("begin", "calls", "due", "finish")

    def __init__(self, calls: Whole, due: Floats, begin: Floats, finish: Floats) -> None:
        self.calls = calls
        self.due = due
        self.begin = begin
        self.finish = finish


class Crew:
    """Workers that are busy for buckets on end."""

    __slots__ = ("_busy", "_draw", "_drops", "_ends", "_flow", "_freed", "_idle", "_room", "_sizes", "expired")

    def __init__(self, service: Service, triggers: list[Trigger], rng: np.random.Generator, buckets: int) -> None:
        spans = shrunk(service, triggers)
        self._draw = drawing(Duration.of(service.service_time), rng)
        self._drops = service.drop_expired
        self._flow = Flow.of(pace(triggers))
        self._sizes = [staff(service, spans, bucket * WIDTH) for bucket in range(buckets)]
        self._room = service.queue_limit
        self._busy = 0
        self._ends = np.zeros(buckets + 1, np.int64)
        """How many will have finished, by the bucket; in the last place those who never will."""
        self._idle = 0
        self._freed = np.empty(0)
        self.expired = 0

    def come(self, bucket: int, waiting: int, at: Floats) -> Truths | None:
        """A bucket begins: which of those who come find the queue full? None: that is not known yet."""
        size, ended = self._sizes[bucket], int(self._ends[bucket])
        self._idle = max(0, size - self._busy)
        # of more than there should be, the first to finish do not go on
        freed = max(0, ended - max(0, self._busy - size))
        self._freed = (bucket + (np.arange(freed) + 0.5) / max(1, freed)) * WIDTH
        self._busy -= ended
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
            later = np.minimum(finish[~again] * PER_SECOND, len(self._ends) - 1).astype(np.intp)
            np.add.at(self._ends, np.maximum(later, bucket + 1), 1)
            self._busy += len(later)
            if len(later) < len(calls):
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
