"""How long answers take: the baseline in calm, the latency now, and what follows from comparing the two."""

from __future__ import annotations

from math import inf

TOLERATED_SLOWDOWN = 1.5
"""Answers may take this many times the baseline before any attempt counts as queued."""
SUSPECT_SLOWDOWN = 2.5
"""In calm, answers that take this many times the baseline start the counting of outcomes."""
MIN_SLOWDOWN_SECONDS = 0.01
"""An answer is slow only if it takes at least this much longer than the baseline: if answers take microseconds, every
scheduling delay of this process is a multiple of the baseline."""
MIN_SILENCE, SILENCE_FACTOR = 0.2, 8.0
"""An attempt without an answer hangs after `SILENCE_FACTOR` times the baseline, and at least `MIN_SILENCE` seconds."""
DEFAULT_HANG_TIMEOUT = 1.0
"""Seconds after which an attempt hangs while no baseline is known."""
ANSWER_TIME_FACTOR = 1.8
"""An attempt is sent only if this many times the current latency fits before the call's deadline."""
SAMPLES_PER_SECOND = 20.0
"""Latencies measured per second in calm."""
BASELINE_SAMPLES, MIN_BASELINE_SAMPLES = 100, 50
"""The baseline is a moving average over about `BASELINE_SAMPLES` samples, so it follows a change within seconds. Until
there are `MIN_BASELINE_SAMPLES`, every answer is a sample, in calm or not."""


class LatencyModel:
    """The latencies of one dependency.

    >>> latencies = LatencyModel(now=0.0)
    >>> any(latencies.sample(0.1, float(now)) for now in range(100)), latencies.sample(0.9, 100.0)
    (False, True)
    >>> round(latencies.baseline, 3), round(latencies.hang_timeout(), 3)
    (0.108, 0.864)
    """

    __slots__ = ("_samples", "baseline", "latency", "lowest_baseline", "next_sample", "recent")

    def __init__(self, now: float) -> None:
        self.baseline: float | None = None
        """Seconds that answers take in calm."""
        self.latency: float | None = None
        """Seconds that the last answers took."""
        self.next_sample = now
        """The instant from which the next latency is measured in calm."""
        self.recent = self.lowest_baseline = 0.0
        """Outside of calm: a slow average of latencies, and the lowest baseline that was measured."""
        self._samples = 0

    def sample(self, seconds: float, now: float) -> bool:
        """Take one sample in calm; return whether answers have become suspiciously slow."""
        if now < self.next_sample:
            return False  # a burst of answers is one sample
        self.next_sample = now + 1 / SAMPLES_PER_SECOND
        self._samples += 1
        self.baseline = _moving_average(self.baseline, seconds, 1 / min(self._samples, BASELINE_SAMPLES))
        self.latency = _moving_average(self.latency, seconds, 0.5)
        return self.latency > max(SUSPECT_SLOWDOWN * self.baseline, self.baseline + MIN_SLOWDOWN_SECONDS)

    def observe(self, seconds: float) -> None:
        """Count the latency of an answer outside of calm: it lowers the baseline, and never raises a known one."""
        self.latency = _moving_average(self.latency, seconds, 0.3)
        if self._samples < MIN_BASELINE_SAMPLES:
            # an average, not the minimum: by chance the minimum is far below what is usual
            self._samples += 1
            self.baseline = self.recent = self.lowest_baseline = _moving_average(
                self.baseline, seconds, 1 / self._samples
            )
            return
        self.recent = _moving_average(self.recent, seconds, 1 / BASELINE_SAMPLES)
        if self.baseline is not None and self.recent < self.baseline:
            self.baseline, self.lowest_baseline = self.recent, min(self.lowest_baseline, self.recent)

    def leave_calm(self) -> None:
        """Compare later latencies with the baseline as it is now."""
        self.recent = self.lowest_baseline = self.baseline or 0.0

    def enter_calm(self, now: float) -> None:
        """Forget the latencies of the storm."""
        self.latency = self.baseline
        self.next_sample = now + 1 / SAMPLES_PER_SECOND

    def usual(self) -> float:
        """Return the seconds that answers take now; 0 if nothing was measured."""
        return self.latency or self.baseline or 0.0

    def expected_answer_in(self, unknown: float) -> float:
        """Return the seconds within which nearly every attempt is answered; `unknown` if nothing was measured."""
        return unknown if self.latency is self.baseline is None else ANSWER_TIME_FACTOR * self.usual()

    def late_after(self) -> float:
        """Return the seconds after which an answer is late."""
        baseline = self.baseline
        return inf if baseline is None else max(TOLERATED_SLOWDOWN * baseline, baseline + MIN_SLOWDOWN_SECONDS)

    def hang_timeout(self) -> float:
        """Return the seconds without an answer after which an attempt hangs."""
        return DEFAULT_HANG_TIMEOUT if self.baseline is None else max(MIN_SILENCE, SILENCE_FACTOR * self.baseline)

    def queued(self, in_flight: float) -> float:
        """Return how many of `in_flight` attempts wait in a queue of the server, according to latencies (Vegas)."""
        if not self.latency or self.baseline is None:
            return 0.0
        return in_flight * (1.0 - TOLERATED_SLOWDOWN * self.baseline / self.latency)


def _moving_average(value: float | None, seen: float, weight: float) -> float:
    return seen if value is None else value + (seen - value) * weight
