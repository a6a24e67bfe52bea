"""Distinguishes an outage from errors of one caller, by whether good answers still come as regularly as before.

An error that the server answered with (a 500), or a hint, may concern one tenant only. It counts as an outage only if
no call was answered well for much longer than usual: by chance alone that happens less than once in twenty thousand.
"""

from __future__ import annotations

from math import inf

from abate.admit.latency_model import MIN_SILENCE

NO_OUTCOME_TIMEOUT = 10.0
"""Seconds without any outcome after which another attempt may go, even if the limit is reached."""
SERVING_GAPS = 10.0
"""Good answers have stopped after this many times their usual distance, at least `MIN_SILENCE` seconds. By chance that
happens less than once in twenty thousand, however rare calls are."""
MAX_GAP_GROWTH = 2.0
"""After errors, a distance between two good answers counts as at most this many times the usual one: good answers that
are rare during an outage do not become usual."""
GAPS, CLEAN_ANSWERS = 30, 10
"""The usual distance is a moving average over about `GAPS` distances, or `CLEAN_ANSWERS` while they grow: a server is
found to be down too late rather than too soon."""


class OutageDetector:
    """When the server last answered well, how regularly it did, and what has failed since.

    >>> detector = OutageDetector()
    >>> for now in range(20):
    ...     detector.on_answer(float(now))
    >>> detector.outage(now=25.0), detector.outage(now=29.5)
    (False, True)
    """

    __slots__ = ("_answers", "_clean_answers", "_failed", "_gap", "_last_answer", "errors")

    def __init__(self) -> None:
        self.errors = 0
        """Errors that the server answered with since the last good answer."""
        self._failed = False
        """Whether anything has failed since the last good answer."""
        self._answers = 0
        self._clean_answers = 0
        self._last_answer = -inf
        self._gap = 0.0

    def on_answer(self, now: float, sampled_from: float | None = None) -> None:
        """Count a good answer. In calm only samples are counted: `sampled_from` is when this one was due."""
        self._answers += 1
        if self._answers > 1:
            gap = now - self._last_answer
            if sampled_from is not None:
                # subtract the time until the sample was due, but at most half: periodic calls may always come just
                # after it
                gap = max(gap / 2, now - sampled_from)
            gap = min(gap, NO_OUTCOME_TIMEOUT)
            if self.errors:
                gap = min(gap, MAX_GAP_GROWTH * max(self._gap, MIN_SILENCE / SERVING_GAPS))
            self._gap += (gap - self._gap) / min(self._answers - 1, CLEAN_ANSWERS if gap > self._gap else GAPS)
        self._clean_answers = 0 if self._failed else self._clean_answers + 1
        self._last_answer, self.errors, self._failed = now, 0, False

    def on_failure(self, answered: bool) -> None:
        """Count a failure; `answered` says that the server answered with it."""
        self.errors += answered
        self._failed = True

    @property
    def was_clean(self) -> bool:
        """Return whether no failure came between the last good answers."""
        return self._clean_answers >= CLEAN_ANSWERS

    def outage(self, now: float) -> bool:
        """Return whether good answers have been missing for so long that all calls must be failing."""
        return now - self._last_answer > max(MIN_SILENCE, SERVING_GAPS * self._gap)
