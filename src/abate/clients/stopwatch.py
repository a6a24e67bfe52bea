"""Time the attempts of HTTP clients for timeouts that learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from abate import clock
from abate.call.cut_short import DEADLINE_TOLERANCE
from abate.decide.outcome import Ruling
from abate.schedule.deadlines import remaining

ErrorRule = Callable[[Exception], Ruling | None]


class TimeoutSource(Protocol):
    """Timeouts that follow what is observed, as `abate.Timeouts` does.

    Three further methods are optional: ``observe_connect(seconds)`` receives how long each new connection took to
    open, ``timed_out(seconds)`` and ``connect_timed_out(seconds)`` receive how long an attempt or a connect had run
    when it was cut off. `Stopwatch` says what is measured.
    """

    def request(self) -> float:
        """Return the seconds to wait for a response."""
        ...

    def connect(self) -> float:
        """Return the seconds to wait for a connection."""
        ...

    def observe(self, seconds: float) -> object:
        """Record how long a good response took."""
        ...


class Stopwatch:
    """Time one attempt and its connect, and report both to the timeouts when the attempt ends.

    * A connect ends when a request can be sent: it includes the TLS handshake, because every library's connect timeout
      does. An attempt on an open connection has none.
    * The request is the rest of the attempt, including the wait for a free connection. It excludes the connect, which
      has its own timeout: otherwise reused connections would teach a timeout that is too short for new ones.
    * Attempts that a timeout cut off are reported too, or the timeouts would learn from quick responses only. Attempts
      that a nearer deadline cut off are not: how much time a caller has says nothing about the server.
    """

    __slots__ = ("_connect_seconds", "_judge", "_started", "_step_started", "_timeouts")

    def __init__(self, timeouts: TimeoutSource, judge_error: ErrorRule) -> None:
        self._timeouts = timeouts
        self._judge = judge_error
        self._connect_seconds: float | None = None  # of the finished steps
        self._step_started: float | None = None  # of the step under way
        self._started = clock.current().now()

    def connect_started(self) -> None:
        """Note that a connect begins, or a further step of it (TLS)."""
        self._step_started = clock.current().now()

    def connect_done(self) -> None:
        """Note that this step is done."""
        assert self._step_started is not None
        self._connect_seconds = (self._connect_seconds or 0.0) + clock.current().now() - self._step_started
        self._step_started = None

    def response_received(self, status: int) -> None:
        """Report how long a good response took; how quickly bad ones come says nothing about good ones."""
        if status < 400:
            self._timeouts.observe(self._request_seconds())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ruling = self._judge(error) if isinstance(error, Exception) else None
        cut_off = ruling is not None and ruling.overloaded
        if self._step_started is not None:
            seconds = (self._connect_seconds or 0.0) + clock.current().now() - self._step_started
            if cut_off and self._reached_timeout(seconds, self._timeouts.connect):
                self._report("connect_timed_out", seconds)
            return
        if self._connect_seconds is not None:
            self._report("observe_connect", self._connect_seconds)
        if cut_off and self._reached_timeout(self._request_seconds(), self._timeouts.request):
            self._report("timed_out", self._request_seconds())

    def _reached_timeout(self, seconds: float, timeout: Callable[[], float]) -> bool:
        """Return whether the timeout, and not a nearer deadline, cut this off."""
        left = remaining()
        return left is None or left > DEADLINE_TOLERANCE or seconds >= timeout()

    def _request_seconds(self) -> float:
        elapsed = clock.current().now() - self._started
        return max(0.0, elapsed - (self._connect_seconds or 0.0))  # rounding may make it negative

    def _report(self, method: str, seconds: float) -> None:
        report = getattr(self._timeouts, method, None)
        if report is not None:
            report(seconds)
