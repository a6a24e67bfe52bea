"""When a closed shelter sends its next probe: pauses, hints of the server, and the rate of calls that bounds probes."""

from __future__ import annotations

from math import inf

from abate.schedule.backoff import FunctionSchedule, RandomSource, Schedule

PROBE_RATIO = 0.05
"""A busy process sends at most this share of its calls as probes."""
ERROR_PROBE_RATIO, ERROR_PROBE_MAX_DELAY = 0.08, 0.05
"""The same share while the server answers probes with errors, and the maximum seconds that the length of the outage
adds to a pause then. Another caller may be answered well, and is found only by chance: if one of four calls would be
answered and waits for three seconds, a smaller share would find it too late."""
OUTAGE_SHARE = 0.08
"""The share of an outage's length that may pass before its end is noticed."""
PAUSE_RANGE = (0.5, 0.6)
"""The minimum of a later pause and its random part, as shares of the backoff's ceiling."""
RATE_SPAN = 3.0
"""The rate of calls is taken over at least this many seconds, and at most three times as many."""
HINT_SHARE_OF_PATIENCE = 0.5
"""A hint closes the shelter for at most this share of its patience, so that waiting calls learn in time whether the
hint still holds."""


class Prober:
    """The pauses between probes.

    >>> import random
    >>> from abate.schedule.backoff import Backoff
    >>> prober = Prober(random.Random(1), now=0.0, patience=10.0)
    >>> prober.schedule(prober.backoff_pause(Backoff(1.0, jitter="none"), retry=1), now=0.0, answered=False)
    >>> prober.closed_until()
    1.0
    """

    __slots__ = (
        "_calls",
        "_calls_since",
        "_failures",
        "_max_hint_pause",
        "_rng",
        "hint_until",
        "outage_start",
        "pause_until",
        "peers",
    )

    def __init__(self, rng: RandomSource, now: float, patience: float) -> None:
        self._rng = rng
        self._max_hint_pause = HINT_SHARE_OF_PATIENCE * patience
        self.pause_until = self.hint_until = -inf
        """No attempt is sent before these instants: the end of a pause, and the hint of the server."""
        self.peers = 1
        """Processes that this one probes for: their calls count like its own."""
        self.outage_start = now
        self._failures = 0
        self.reset_call_rate(now)

    def on_call(self, now: float) -> None:
        """Count a call: the rate of calls bounds that of probes."""
        if now - self._calls_since > 3 * RATE_SPAN:
            self._calls *= 0.5
            self._calls_since += (now - self._calls_since) * 0.5
        self._calls += 1

    def reset_call_rate(self, now: float) -> None:
        """Measure the rate of calls from now on."""
        self._calls, self._calls_since = 0.0, now

    def closed_until(self) -> float:
        """Return the instant before which no attempt is sent."""
        return max(self.pause_until, self.hint_until)

    def reopen(self) -> None:
        """End pause and hint: a probe was answered."""
        self.pause_until = self.hint_until = -inf
        self._failures = 0

    def backoff_pause(self, plan: Schedule, retry: int) -> float:
        """Return the pause by the failed call's own backoff: random the first time, close to its ceiling later."""
        pause = self._failures + 1
        if isinstance(plan, FunctionSchedule):  # it may be defined for the call's own retries only
            pause = min(pause, retry)
        if not plan.jittered:
            return plan.delay(pause, self._rng)
        ceiling = plan.ceiling(pause)
        return ceiling * (self._rng.random() if pause == 1 else PAUSE_RANGE[0] + PAUSE_RANGE[1] * self._rng.random())

    def schedule(self, own_pause: float, now: float, answered: bool) -> None:
        """Pause until the next probe; `answered` says that the server answered the last one, with an error."""
        self._failures += 1
        self.pause_until = now + min(own_pause, self.pause_by_rate(now, answered) * (0.8 + 0.4 * self._rng.random()))

    def pause_by_rate(self, now: float, answered: bool = False) -> float:
        """Return the seconds between two probes that the rate of calls and the length of the outage allow."""
        rate = self.peers * self._calls / max(RATE_SPAN, now - self._calls_since)
        share, longest = (ERROR_PROBE_RATIO, ERROR_PROBE_MAX_DELAY) if answered else (PROBE_RATIO, inf)
        return max(1 / (share * rate) if rate else inf, min(longest, (now - self.outage_start) * OUTAGE_SHARE))

    def abandoned(self, now: float, longest: float) -> None:
        """Pause after a probe that its caller cut off, as after any other."""
        self.pause_until = max(self.pause_until, now + min(self.pause_by_rate(now), longest))

    def hint(self, until: float, now: float, for_all: bool) -> None:
        """Send nothing until the instant that the server asked for, within limits.

        A hint that may not be meant `for_all` callers closes the shelter for at most as long as the outage has lasted.
        """
        longest = self._max_hint_pause if for_all else min(self._max_hint_pause, now - self.outage_start)
        self.hint_until = max(self.hint_until, min(until, now + longest))

    def set_peers(self, peers: int, now: float) -> None:
        """Probe for this many processes: the more there are, the shorter the pauses."""
        self.peers = peers
        self.pause_until = min(self.pause_until, now + self.pause_by_rate(now))
