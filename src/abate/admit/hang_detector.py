"""Recognizes hangs: attempts without an answer for much longer than answers take. No I/O, no lock."""

from __future__ import annotations

from math import inf

from abate.admit.latency_model import LatencyModel

INITIAL_LIMIT = 10
"""Attempts in flight before anything is known; also the number of unanswered attempts that counts as silence."""


class HangDetector:
    """The attempts that nothing has come back for."""

    __slots__ = ("_late_cutoffs", "_late_cutoffs_since", "_latencies", "unanswered", "unanswered_since")

    def __init__(self, latencies: LatencyModel, now: float) -> None:
        self._latencies = latencies
        self.unanswered, self.unanswered_since = 0, now
        """Attempts sent since the last outcome, and when the first of them was."""
        self._late_cutoffs, self._late_cutoffs_since = 0, now
        """Attempts that were cut off late since the last good answer, and when the first of them was sent."""

    def on_sent(self, now: float) -> None:
        """Count an attempt that is sent."""
        self.unanswered += 1
        if self.unanswered == 1:
            self.unanswered_since = now

    def on_abandoned(self, sent: float | None, now: float) -> None:
        """Uncount an attempt that has no outcome; `sent` is when it was sent, None if it was not."""
        if sent is not None and now - sent >= self._latencies.late_after():
            self._late_cutoffs += 1
            if self._late_cutoffs == 1:
                self._late_cutoffs_since = sent
        self.unanswered -= self.unanswered > 0  # the others are still unanswered

    def on_good_answer(self) -> None:
        """Forget the attempts that were cut off late."""
        self._late_cutoffs = 0

    def is_silent(self, now: float) -> bool:
        """Return whether the last `INITIAL_LIMIT` attempts have no answer, for longer than one attempt may take."""
        return (
            self.unanswered >= INITIAL_LIMIT
            and self._latencies.baseline is not None
            and now - self.unanswered_since > self._latencies.hang_timeout()
        )

    def is_hung(self, seconds: float, now: float = -inf) -> bool:
        """Return whether an attempt without an answer for this long hangs.

        A merely late attempt counts as hung too if at least `INITIAL_LIMIT` attempts before it were late, no good
        answer came between them, and they span at least the hang timeout.
        """
        if self._late_cutoffs >= INITIAL_LIMIT and seconds >= self._latencies.late_after():
            seconds = max(seconds, now - self._late_cutoffs_since)
        return seconds >= self._latencies.hang_timeout()
