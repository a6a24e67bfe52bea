"""Distinguishes an outage from errors of one caller, by whether good answers still come as regularly as before.

An error that the server answered with (a 500), or a hint, may concern one tenant only. It counts as an outage only if
no call was answered well for much longer than usual: by chance alone that happens less than once in twenty thousand.

Silence is the time without a good answer during which failures came. Time without any outcome, as when this process
stalls, is not added, nor is time in calm, where only a sample of good answers is counted.
"""

from __future__ import annotations

from math import inf

from abate.admit.latency_model import MIN_SILENCE

NO_OUTCOME_TIMEOUT = 10.0
"""Seconds without any outcome after which another attempt may go, even if the limit is reached."""
SERVING_GAPS = 10.0
"""Good answers have stopped after this many usual gaps, at least `MIN_SILENCE` seconds. By chance that happens less
than once in twenty thousand, at any rate of calls."""
MAX_STEP_GAPS = 2.0
"""A gap between two failures adds at most this many usual gaps to the silence. In an outage failures come about as
often as good answers did; a longer gap is a stall of this process, or a time without calls."""
MAX_GAP_GROWTH = 2.0
"""After errors, a gap between two good answers counts as at most this many usual gaps, so that the rare good answers of
an outage do not become usual."""
GAPS, CLEAN_ANSWERS = 30, 10
"""The usual gap is a moving average over about `GAPS` gaps, or `CLEAN_ANSWERS` while they grow: it is better to
recognize an outage late than to see one where there is none."""


class OutageDetector:
    """When the server last answered well, how regularly it did, and what has failed since.

    >>> detector = OutageDetector()
    >>> for now in range(20):
    ...     detector.on_answer(float(now))
    >>> for now in range(20, 29):
    ...     detector.on_failure(True, float(now))
    >>> detector.outage
    False
    >>> detector.on_failure(True, 29.5)
    >>> detector.outage
    True
    """

    __slots__ = ("_answers", "_clean_answers", "_failed", "_gap", "_last_answer", "_last_seen", "_silence", "errors")

    def __init__(self) -> None:
        self.errors = 0
        """Errors that the server answered with since the last good answer."""
        self._failed = False
        """Whether anything has failed since the last good answer."""
        self._answers = 0
        self._clean_answers = 0
        self._last_answer = self._last_seen = -inf
        self._gap = 0.0
        self._silence = inf

    def on_answer(self, now: float, sampled_from: float | None = None) -> None:
        """Count a good answer. In calm only samples are counted: `sampled_from` is when this one was due."""
        self._answers += 1
        if self._answers > 1:
            gap = max(0.0, now - self._last_answer)
            if sampled_from is not None:
                # subtract the time until the sample was due, but at most half: periodic calls may always come just
                # after it
                gap = max(gap / 2, now - sampled_from)
            gap = min(gap, NO_OUTCOME_TIMEOUT)
            if self.errors:
                gap = min(gap, MAX_GAP_GROWTH * max(self._gap, MIN_SILENCE / SERVING_GAPS))
            self._gap += (gap - self._gap) / min(self._answers - 1, CLEAN_ANSWERS if gap > self._gap else GAPS)
        self._clean_answers = 0 if self._failed else self._clean_answers + 1
        self._last_answer = self._last_seen = now
        self._silence, self.errors, self._failed = 0.0, 0, False

    def start_counting(self, now: float, unseen: float) -> None:
        """Count good answers from now on, except those of attempts sent in the last `unseen` seconds."""
        self._last_answer = self._last_seen = now + unseen

    def on_failure(self, answered: bool, now: float) -> None:
        """Count a failure; `answered` says that the server answered with it."""
        self.errors += answered
        self._failed = True
        longest_step = MAX_STEP_GAPS * max(self._gap, MIN_SILENCE / SERVING_GAPS)
        self._silence += max(0.0, min(now - self._last_seen, longest_step))
        self._last_seen = max(self._last_seen, now)

    @property
    def was_clean(self) -> bool:
        """Return whether no failure came between the last good answers."""
        return self._clean_answers >= CLEAN_ANSWERS

    @property
    def outage(self) -> bool:
        """Return whether good answers have been missing for so long that all calls must be failing."""
        return self._silence > max(MIN_SILENCE, SERVING_GAPS * self._gap)
