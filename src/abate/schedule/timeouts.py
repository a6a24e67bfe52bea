"""Timeouts learned from a dependency's own latency.

A fixed timeout is a guess: too short, and it turns slow answers into failures and retries; too long, and callers
hang. Here the timeout is a quantile of what was observed: with a `false_rate` of 0.001, the time within which 99.9 %
of the answers came.

* Latencies are counted in `BUCKETS` buckets whose borders grow by 4 %, so a quantile is off by at most 2 %,
  in constant memory: 4.2 KB for requests and connects together.
* Two halves are counted, each for one `half_life`; the older one is dropped after another half-life. So an
  observation counts for one to two half-lives, and a change is forgotten at a known time.
* A request that was cut off counts as taking twice its timeout. So a timeout that has become too short doubles until
  answers arrive again. If cut-off requests were ignored, it would shrink further.
* While too few requests are counted for the quantile, the timeout is the ceiling.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import inf, log
from typing import Any

from abate import clock as clocks
from abate import forks
from abate.clock import MACHINE, Clock, ever_used
from abate.errors import number, suggests_settings
from abate.frozen import Shared, refuse_own_clock
from abate.reentrant_locks import Section, may_wait, takes_lock

GROWTH = 1.04
"""Growth from one bucket to the next: the middle of a bucket is within 2 % of everything in it."""
BUCKETS = 256
"""Enough for latencies from the ceiling down to 1/22,000 of it; shorter ones count in the lowest bucket."""
CUT_OFF_FACTOR = 2.0
"""A request that was cut off counts as this many times slower."""
REQUESTS, CONNECTS = "I", "H"
"""Types of arrays. Counts of one bucket in one half stop at their maximum: 2**32 requests, 2**16 connects."""

MIN_HALF_LIFE = 0.001
"""The shortest half-life, in seconds."""

ROUNDING = 1e-9
"""Rounding error of shares: (1 - 0.9) * 10 is a little less than 1."""

_PER_STEP = 1 / log(GROWTH)
_LAST = BUCKETS - 1


class Histogram:
    """A histogram of latencies in two halves of one array, which rotate."""

    __slots__ = ("_counts", "_newer", "_top", "total")

    def __init__(self, code: str) -> None:
        self._counts = array(code, [0]) * (2 * BUCKETS)
        self._newer = 0  # where the newer half begins
        self._top = 0  # no bucket above this one holds anything
        self.total = 0

    def add(self, bucket: int) -> None:
        """Count one more."""
        try:
            self._counts[self._newer + bucket] += 1
        except OverflowError:
            return
        self.total += 1
        if bucket > self._top:
            self._top = bucket

    def rotate(self) -> None:
        """Forget the older half, and start a new one in its place."""
        kept, newer = self._newer, BUCKETS - self._newer
        nothing, total = array(self._counts.typecode, [0]) * BUCKETS, sum(self._counts[kept : kept + BUCKETS])
        self._newer, self.total = newer, total
        self._counts[newer : newer + BUCKETS] = nothing
        while self._top and not self._counts[kept + self._top]:
            self._top -= 1

    def bucket(self, share: float) -> int | None:
        """Return the bucket above which at most `share` of the counts lie; None if there are too few."""
        max_above = int(self.total * share + ROUNDING)
        if max_above < 1:
            return None
        counts, place = self._counts, self._top
        above = counts[place] + counts[place + BUCKETS]
        while above <= max_above:
            place -= 1
            above += counts[place] + counts[place + BUCKETS]
        return place


class LatencyCounts(Section):
    """The latencies of one dependency on one clock; it is its own critical section, to save memory."""

    __slots__ = ("_half_life", "connects", "end", "now", "requests")

    def __init__(self, half_life: float, clock: Clock) -> None:
        super().__init__()
        self.now = clock.now
        self._half_life = half_life
        self.end = self.now() + half_life
        self.requests = Histogram(REQUESTS)
        self.connects = Histogram(CONNECTS)
        forks.register(self)

    def add(self, histogram: Histogram, bucket: int) -> None:
        """Count one more; called under the lock."""
        self._drop_old()
        histogram.add(bucket)

    def bucket(self, histogram: Histogram, share: float) -> int | None:
        """Return the bucket above which at most `share` of the counts lie; None if there are too few."""
        return self.call(self._bucket, histogram, share, otherwise=_unknown)

    def _bucket(self, histogram: Histogram, share: float) -> int | None:
        self._drop_old()
        return histogram.bucket(share)

    def _drop_old(self) -> None:
        now = self.now()
        if now >= self.end:
            self.rotate(now)

    def rotate(self, now: float) -> None:
        """Drop what is too old; called under the lock."""
        for histogram in (self.requests, self.connects):
            histogram.rotate()
            if now >= self.end + self._half_life:
                histogram.rotate()  # the newer half is too old as well
        self.end = max(self.end, now - self._half_life) + self._half_life


def _unknown(histogram: Histogram, share: float) -> None:
    """Answer a re-entrant call: unknown, so that the ceiling is used."""


class Timeouts(Shared):
    """Learns how long a dependency takes, and computes timeouts from it.

    * `false_rate`: the share of good answers that may be cut off: 0.001 waits as long as 99.9 % of them take.
    * `floor`, `ceiling`: no timeout is outside of these, in seconds. Until there are ``1 / false_rate`` observations,
      it is the ceiling.
    * `name`: the dependency's name.
    * `half_life`: seconds; an observation counts for one to two of these.
    * `clock`: its own clock. Without one it uses the context's, and learns separately on each virtual clock.

    Measure seconds with a monotonic clock: negative, infinite and NaN values raise ValueError. Threads and tasks may
    share one object; no observation is lost.

    >>> orders = Timeouts(false_rate=0.01, floor=0.05, ceiling=10.0, name="orders")
    >>> orders.request()
    10.0
    >>> for milliseconds in range(1, 1001):
    ...     orders.observe(milliseconds / 1000)
    >>> round(orders.request(), 1), round(orders.quantile(0.5), 1), orders.connect()
    (1.0, 0.5, 10.0)
    """

    __slots__ = (
        "__weakref__",
        "_lowest",
        "_main",
        "_offset",
        "_own",
        "ceiling",
        "false_rate",
        "floor",
        "half_life",
        "name",
    )

    @suggests_settings
    def __init__(
        self,
        false_rate: float = 0.001,
        floor: float = 0.05,
        ceiling: float = 30.0,
        *,
        name: str = "",
        half_life: float = 300.0,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.false_rate = _share("false_rate", false_rate)
        self.ceiling = number("ceiling", ceiling, above=0)
        self.floor = number("floor", floor, least=0, most=self.ceiling)
        self.half_life = number("half_life", half_life, least=MIN_HALF_LIFE)
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        self.name = name
        # the ceiling is the middle of the last bucket, which counts everything slower too
        self._offset = BUCKETS - 0.5 - log(self.ceiling) * _PER_STEP
        self._lowest = self._seconds(0)
        own = clocks.as_clock(clock)
        self._own = own is not None
        self._main = LatencyCounts(self.half_life, own or MACHINE)

    # -- observations

    @takes_lock
    def observe(self, seconds: float) -> None:
        """Count a request that was answered after `seconds`.

        >>> Timeouts().observe(-1.0)
        Traceback (most recent call last):
        ValueError: seconds must be a number at least 0, not -1.0
        """
        # `Section.call` (see there) and `_bucket`, written out: this is on the path of every request
        if not 0.0 <= seconds < inf:
            number("seconds", seconds, least=0)
        bucket = int(log(seconds) * _PER_STEP + self._offset) if seconds > self._lowest else 0
        if bucket > _LAST:
            bucket = _LAST
        here = self._here() if ever_used.virtual else self._main
        now = here.now()
        for taken in here.entering_with_timeout() if here.busy else here.entering:  # pragma: no branch
            if not taken and may_wait():
                continue
            try:
                if not taken or here.busy:
                    here.deferred.append((here.add, (here.requests, bucket)))
                else:
                    try:
                        here.busy = True
                        if now >= here.end:
                            here.rotate(now)
                        here.requests.add(bucket)
                    finally:
                        here.busy = False
            finally:
                if taken:
                    for _ in here.leaving:  # pragma: no branch
                        break
            break
        if here.deferred:
            here.run_deferred()

    def observe_connect(self, seconds: float) -> None:
        """Count a connection that was open after `seconds`.

        >>> orders = Timeouts(false_rate=0.5)
        >>> orders.observe_connect(0.2); orders.observe_connect(0.2)
        >>> round(orders.connect(), 2)
        0.2
        """
        here, bucket = self._here(), self._bucket(number("seconds", seconds, least=0))
        here.run_or_defer(here.add, here.connects, bucket)

    def timed_out(self, seconds: float) -> None:
        """Count a request that was cut off after `seconds`, as one that took twice as long.

        >>> orders = Timeouts(false_rate=0.5)
        >>> orders.timed_out(1.0); orders.timed_out(1.0)
        >>> round(orders.request())
        2
        """
        self.observe(min(number("seconds", seconds, least=0), self.ceiling) * CUT_OFF_FACTOR)

    def connect_timed_out(self, seconds: float) -> None:
        """Count a connect that was cut off after `seconds`, as one that took twice as long.

        >>> orders = Timeouts(false_rate=0.5)
        >>> orders.connect_timed_out(1.0); orders.connect_timed_out(1.0)
        >>> round(orders.connect())
        2
        """
        self.observe_connect(min(number("seconds", seconds, least=0), self.ceiling) * CUT_OFF_FACTOR)

    # -- timeouts

    def request(self) -> float:
        """Return the timeout of a request, in seconds.

        >>> Timeouts(ceiling=5.0).request()
        5.0
        """
        here = self._here()
        return max(self.floor, self._seconds(here.bucket(here.requests, self.false_rate)))

    def connect(self) -> float:
        """Return the timeout of a connect, in seconds.

        >>> Timeouts(ceiling=5.0).connect()
        5.0
        """
        here = self._here()
        return max(self.floor, self._seconds(here.bucket(here.connects, self.false_rate)))

    def quantile(self, q: float) -> float:
        """Return the seconds within which a share `q` of the requests was answered, without the floor.

        Return the ceiling if there are fewer than ``1 / (1 - q)`` observations, or if the quantile is above it.

        >>> Timeouts(ceiling=5.0).quantile(0.95)
        5.0
        """
        share, here = 1.0 - _share("q", q), self._here()
        return self._seconds(here.bucket(here.requests, share))

    # -- buckets and clocks

    def _bucket(self, seconds: float) -> int:
        if seconds <= self._lowest:
            return 0
        return min(_LAST, int(log(seconds) * _PER_STEP + self._offset))

    def _seconds(self, bucket: int | None) -> float:
        """Return the middle of a bucket, or a default if none is known."""
        if bucket is None:
            return self.ceiling
        return self.ceiling * GROWTH ** (bucket - _LAST)

    def _here(self) -> LatencyCounts:
        clock = None if self._own else clocks.entered_clock()
        if clock is None:
            return self._main
        state: LatencyCounts | None = clock.states.get(self)
        if state is not None:
            return state
        # two threads that create the state at the same time get the same one
        made: LatencyCounts = clock.states.setdefault(self, LatencyCounts(self.half_life, clock))
        return made

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, self._own)
        names = ("false_rate", "floor", "ceiling", "name", "half_life")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        named = f", name={self.name!r}" if self.name else ""
        return (
            f"Timeouts(false_rate={self.false_rate:g}, floor={self.floor:g}, ceiling={self.ceiling:g}{named},"
            f" half_life={self.half_life:g})"
        )


def _share(name: str, value: object) -> float:
    share = number(name, value, above=0)
    if share >= 1.0:
        raise ValueError(f"{name} must be a number above 0 and below 1, not {value!r}")
    return share
