"""A hierarchical timer wheel with three rings, to which thousands of timers are added at once.

Timers within the next 32 buckets are kept per bucket, those within the next 1,024 per 32 buckets, and later ones per
1,024. The timers of a slot move to the ring below when its time comes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from abate.sim.fleet.vector_rules import Floats, Whole

WIDTH = 0.01
"""Seconds of a bucket."""
PER_SECOND = 100
NEAR, FAR = 5, 10
"""Buckets per slot of the second and the third ring, as powers of 2."""
SORTED = 2**16 - 1

Small = NDArray[np.int32]


class TimerWheel:
    """Numbers of calls, by the bucket in which they are due. Buckets are taken in order.

    >>> wheel = TimerWheel(horizon=60.0)
    >>> wheel.add(np.array([7, 8, 9]), np.array([0.005, 40.0, 0.021]))
    >>> [wheel.take(bucket).tolist() for bucket in range(4)]
    [[7], [], [9], []]
    """

    __slots__ = ("_far", "_horizon", "_mid", "_near", "now")

    def __init__(self, horizon: float) -> None:
        self.now = -1
        self._horizon = horizon
        self._near: list[list[Small]] = [[] for _ in range(1 << NEAR)]
        self._mid: defaultdict[int, list[Small]] = defaultdict(list)
        """By slot, pieces with two rows: the calls, and the bucket in which each is due."""
        self._far: defaultdict[int, list[Small]] = defaultdict(list)
        """The same."""

    def add(self, calls: Whole, instants: Floats) -> None:
        """Add calls to the buckets of their instants, or to the next one if these are over."""
        due = np.minimum(instants, self._horizon + 1.0) * PER_SECOND
        timers = np.empty((2, len(calls)), np.int32)
        timers[0] = calls
        np.maximum(due.astype(np.int32), self.now + 1, out=timers[1])
        self._put(timers, self.now + 1)

    def take(self, bucket: int) -> Whole:
        """Return the calls of the next bucket."""
        for ring, power in ((self._far, FAR), (self._mid, NEAR)):
            if not bucket & ((1 << power) - 1):
                pieces = ring.pop(bucket >> power, None)
                if pieces is not None:
                    self._put(np.concatenate(pieces, axis=1), bucket)
        self.now = bucket
        place = bucket & ((1 << NEAR) - 1)
        found, self._near[place] = self._near[place], []
        return np.concatenate(found).astype(np.intp) if found else np.empty(0, np.intp)

    def _put(self, timers: Small, first: int) -> None:
        """Distribute timers over the rings; `first` is the next bucket to be taken."""
        if not timers.size:
            return
        # 16-bit numbers are radix-sorted; later timers are sorted when they move down
        order = np.minimum(timers[1] - first, SORTED).astype(np.uint16).argsort(kind="stable")
        calls, due = timers = timers.take(order, axis=1)
        ends = [((first >> power) + 1) << power for power in (NEAR, FAR)]
        near, mid = np.searchsorted(due, ends).tolist()
        bucket_mask = (1 << NEAR) - 1
        for start, end in _runs(due[:near]):
            self._near[int(due[start]) & bucket_mask].append(calls[start:end])
        for ring, power, low, high in ((self._mid, NEAR, near, mid), (self._far, FAR, mid, len(due))):
            pieces = due[low:high] >> power
            for start, end in _runs(pieces):
                # a copy: a slice would keep the whole batch alive
                ring[int(pieces[start])].append(timers[:, low + start : low + end].copy())


def _runs(values: Small) -> list[tuple[int, int]]:
    """Return start and end of each run of equal values."""
    if not len(values):
        return []
    return list(pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]))
