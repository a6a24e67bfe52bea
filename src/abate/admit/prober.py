"""When a paused shelter sends its next probe: backoff, hints of the server, and the rate of calls."""

from __future__ import annotations

from math import inf

from abate.admit.outage_detector import CLEAN_ANSWERS, GAPS, NO_OUTCOME_TIMEOUT
from abate.schedule.backoff import FunctionSchedule, RandomSource, Schedule

PROBE_RATIO = 0.036
"""A busy process sends at most this share of its calls as probes."""
ERROR_PROBE_RATIO = 0.08
"""The same share while the server answers probes with errors."""
ERROR_PROBE_MAX_PAUSE = 0.05
"""While the server answers probes with errors, the length of the outage allows at most this pause in seconds. Probes
stay frequent because the errors may concern some callers only: just a probe of an unaffected caller finds the
recovery."""
OUTAGE_SHARE = 0.08
"""A pause may be this share of the time since the outage began: its end is noticed that much later."""
PAUSE_LEAST, PAUSE_MOST = 0.75, 0.85
"""A later pause is between these shares of the backoff's ceiling."""
RATE_SPAN = 3.0
"""The rate of calls is taken over at least this many seconds, and at most three times as many."""
HINT_SHARE_OF_PATIENCE = 0.5
"""A hint pauses the shelter for at most this share of its patience, so that waiting calls learn in time whether the
hint still holds."""
PAUSE_SHARE_OF_PATIENCE = 0.25
"""Pauses grow up to this share of the patience, so that waiting calls can be answered after the outage, or up to the
first delay of the backoff, if that is longer."""


class Prober:
    """The pauses between probes.

    >>> import random
    >>> from abate.schedule.backoff import Backoff
    >>> prober = Prober(random.Random(1), now=0.0, patience=10.0)
    >>> prober.schedule(prober.backoff_pause(Backoff(1.0, jitter="none"), retry=1), now=0.0, answered=False)
    >>> prober.paused_until()
    1.0
    """

    __slots__ = (
        "_calls",
        "_calls_since",
        "_failures",
        "_gap",
        "_gaps",
        "_patience",
        "_rng",
        "_sampled_from",
        "hint_until",
        "next_probe",
        "outage_start",
        "peers",
    )

    def __init__(self, rng: RandomSource, now: float, patience: float) -> None:
        self._rng = rng
        self._patience = patience
        self.next_probe = self.hint_until = -inf
        """No attempt is sent before these instants: the end of the backoff, and of the server's hint."""
        self.peers = 1
        """The number of processes that this one probes for, itself included: their calls count like its own."""
        self.outage_start = now
        self._failures = 0
        self._gap, self._gaps, self._sampled_from = 0.0, 0, -inf
        self.reset_call_rate(now)

    def on_call(self, now: float, sampled_from: float | None = None) -> None:
        """Count a call: the rate of calls bounds the rate of probes.

        In calm only samples are counted: `sampled_from` is when this one was due, which tells how often calls come.
        """
        if sampled_from is not None and sampled_from > self._sampled_from:  # the first call since it was due
            self._sampled_from = sampled_from
            self._gaps = min(self._gaps + 1, GAPS)
            self._gap += (min(max(0.0, now - sampled_from), NO_OUTCOME_TIMEOUT) - self._gap) / self._gaps
        if now - self._calls_since > 3 * RATE_SPAN:
            self._calls *= 0.5
            self._calls_since += (now - self._calls_since) * 0.5
        self._calls += 1

    def reset_call_rate(self, now: float) -> None:
        """Measure the rate of calls from now on; begin with the usual one, if it is known."""
        known = self._gaps >= CLEAN_ANSWERS and self._gap > 0.0
        self._calls, self._calls_since = RATE_SPAN / self._gap if known else 0.0, now - RATE_SPAN * known

    def paused_until(self) -> float:
        """Return the instant before which no attempt is sent."""
        return max(self.next_probe, self.hint_until)

    def end_pause(self) -> None:
        """End backoff and hint: a probe was answered."""
        self.next_probe = self.hint_until = -inf
        self._failures = 0

    def backoff_pause(self, backoff: Schedule, retry: int) -> float:
        """Return the pause by the failed call's own backoff.

        The first one is random, up to the ceiling of the second: so processes that failed at the same instant are
        spread evenly over their next attempts. Later ones vary little, which keeps them spread.
        """
        pause = self._failures + 1
        if isinstance(backoff, FunctionSchedule):  # it may be defined for the call's own retries only
            pause = min(pause, retry)
        if not backoff.jittered:
            return backoff.delay(pause, self._rng)
        longest = max(backoff.ceiling(1), PAUSE_SHARE_OF_PATIENCE * self._patience)
        if pause == 1:
            return min(longest, backoff.ceiling(2)) * self._rng.random()
        return min(longest, backoff.ceiling(pause)) * (PAUSE_LEAST + (PAUSE_MOST - PAUSE_LEAST) * self._rng.random())

    def schedule(self, own_pause: float, now: float, answered: bool) -> None:
        """Pause until the next probe; `answered` says that the server answered the last one with an error."""
        self._failures += 1
        self.next_probe = now + min(own_pause, self.pause_by_rate(now, answered) * (0.8 + 0.4 * self._rng.random()))

    def pause_by_rate(self, now: float, answered: bool = False) -> float:
        """Return the pause to which a busy process may shorten its backoff: by its rate of calls and the outage's
        length.

        `answered` says that the server answered the last probe with an error.
        """
        rate = self.peers * self._calls / max(RATE_SPAN, now - self._calls_since)
        share, longest = (ERROR_PROBE_RATIO, ERROR_PROBE_MAX_PAUSE) if answered else (PROBE_RATIO, inf)
        return max(1 / (share * rate) if rate else inf, min(longest, (now - self.outage_start) * OUTAGE_SHARE))

    def abandoned(self, now: float) -> None:
        """Pause after a probe that its caller cut off."""
        longest = min(NO_OUTCOME_TIMEOUT, PAUSE_SHARE_OF_PATIENCE * self._patience)
        self.next_probe = max(self.next_probe, now + min(self.pause_by_rate(now), longest))

    def hint(self, until: float, now: float, for_all: bool) -> None:
        """Pause until the instant of a server's hint, for at most `HINT_SHARE_OF_PATIENCE` of the patience.

        A hint that may not be meant `for_all` callers pauses for at most as long as the outage has lasted.
        """
        longest = HINT_SHARE_OF_PATIENCE * self._patience
        if not for_all:
            longest = min(longest, now - self.outage_start)
        self.hint_until = max(self.hint_until, min(until, now + longest))

    def set_peers(self, peers: int, now: float) -> None:
        """Probe for this many processes: the more there are, the shorter the pauses."""
        self.peers = peers
        self.next_probe = min(self.next_probe, now + self.pause_by_rate(now))
