"""The load experiment: whether answers are slow because of what this process sends. No I/O, no lock.

If answers stay slow for `EXPERIMENT_AFTER` seconds while no attempt fails and calls wait, the limit is raised by a
third for `EXPERIMENT_SECONDS`. If answers become slower in proportion, attempts wait in a queue of our own making: the
limit goes back, and the baseline too, if it was raised before. If not, the server itself has become slower, and the
baseline rises by a small step.
"""

from __future__ import annotations

from math import inf

from abate.admit.latency_model import LatencyModel

EXPERIMENT_AFTER, EXPERIMENT_SECONDS, EXPERIMENT_ANSWERS = 10.0, 5.0, 100
"""Seconds of slow answers before an experiment, seconds of the experiment, and the answers that each of the two
needs."""
SLOWDOWN, LIMIT_GROWTH, BASELINE_DRIFT = 1.1, 1.3, 1.02
"""Latency above the baseline that starts an experiment, growth of the limit in it, and growth of the baseline per
second."""


class LoadExperiment:
    """Averages of latency and limit: first with the limit as it is, then with a raised one."""

    __slots__ = ("_before", "_since", "runs", "sums")

    def __init__(self, now: float) -> None:
        self.restart(now)

    def restart(self, now: float, before: tuple[float, float] | None = None) -> None:
        """Start new averages: with the limit raised if `before`, the averages without, is given."""
        self._since, self._before, self.sums = now, before, (0, 0.0, 0.0)
        self.runs = before is not None
        """Whether the limit is raised for the experiment."""

    def on_answer(self, sent: float, now: float, limit: float, latencies: LatencyModel, interfered: bool) -> float:
        """Count the answer to an attempt; return the limit from now on.

        The experiment is `interfered` with if attempts fail or no call waits: it starts again.
        """
        baseline = latencies.baseline or 0.0
        if interfered or latencies.recent <= SLOWDOWN * baseline:
            self.restart(now)
        if sent < self._since or limit == inf:
            return limit
        answers, latency_sum, limit_sum = self.sums
        answers, latency_sum, limit_sum = self.sums = answers + 1, latency_sum + now - sent, limit_sum + int(limit)
        if answers < EXPERIMENT_ANSWERS or now - self._since < (EXPERIMENT_SECONDS if self.runs else EXPERIMENT_AFTER):
            return limit
        latency, average_limit = latency_sum / answers, limit_sum / answers
        if self._before is None:
            self.restart(now, (latency, average_limit))
            return max(limit + 1.0, limit * LIMIT_GROWTH)
        latency_before, limit_before = self._before
        self.restart(now)
        drift = BASELINE_DRIFT ** (EXPERIMENT_AFTER + EXPERIMENT_SECONDS)
        if latency < latency_before * (1.0 + average_limit / limit_before) / 2:
            latencies.baseline = baseline * drift
            return limit
        latencies.baseline = max(latencies.lowest_baseline, baseline / drift)
        return max(1.0, limit / LIMIT_GROWTH)
