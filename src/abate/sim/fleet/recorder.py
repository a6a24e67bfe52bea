"""The counts of a fleet run: those of `abate.sim.measures.RunRecorder`, in batches and in bounded memory.

Latencies are counted in bins of a tenth of a bucket; their mean is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abate.sim.fleet.call_table import CallTable
from abate.sim.fleet.timer_wheel import WIDTH
from abate.sim.fleet.vector_rules import Floats, Whole
from abate.sim.latency_histogram import LatencyHistogram
from abate.sim.measures import EDGE, MAX_POINTS, PER_SECOND, Load, Run, slot
from abate.sim.world import World

BIN = WIDTH / 10
"""Seconds per bin of the latency histogram."""
LARGEST = 2**16 - 1
"""The largest count of a 16-bit counter."""
AT_ONCE = 1_000_000
"""Clients per batch, when fairness is computed."""


class FleetRecorder:
    """Counts what happens in a run."""

    __slots__ = (
        "_attempts",
        "_bins",
        "_calls",
        "_ended",
        "_good",
        "_made",
        "_points",
        "_successes",
        "_total",
        "_world",
        "completed",
        "reasons",
    )

    def __init__(self, world: World, raster: bool) -> None:
        slots = slot(world.horizon) + 1
        self._world = world
        self._calls, self._attempts, self._successes, self._ended = (np.zeros(slots, np.int64) for _ in range(4))
        self._bins = np.zeros(int(world.horizon / BIN) + 2, np.int64)
        self._total = 0.0
        self.reasons: Counter[str] = Counter()
        self.completed = 0.0
        busiest = 10.0 * (1.0 + world.clients.offered * world.horizon / world.clients.count) * _most_spiked(world)
        counter: Any = np.uint16 if busiest < LARGEST else np.uint32
        self._made, self._good = (np.zeros(world.clients.count, counter) for _ in range(2))
        self._points: list[tuple[float, int]] | None = [] if raster else None

    def called(self, clients: NDArray[np.int32], instants: Floats) -> None:
        """Count the begin of calls."""
        _count(self._calls, instants)
        if self._world.warmup:
            clients = clients[instants >= self._world.warmup]
        np.add.at(self._made, clients, self._made.dtype.type(1))

    def attempted(self, pool: CallTable, calls: Whole, instants: Floats) -> None:
        """Count attempts."""
        _count(self._attempts, instants)
        if self._points is not None and len(self._points) < MAX_POINTS:
            left = MAX_POINTS - len(self._points)
            self._points += zip(instants[:left].tolist(), pool.client[calls[:left]].tolist(), strict=True)

    def succeeded(self, clients: NDArray[np.int32], began: Floats, instants: Floats) -> None:
        """Count successes at these instants, which may lie ahead, but before the horizon."""
        self.completed = max(self.completed, _count(self._successes, instants))
        _count(self._ended, began)
        taken = instants - began
        if self._world.warmup:
            counted = began >= self._world.warmup
            clients, taken = clients[counted], taken[counted]
        np.add.at(self._good, clients, self._good.dtype.type(1))
        np.add.at(self._bins, (taken / BIN).astype(np.intp), 1)
        self._total += float(taken.sum())

    def failed(self, began: Floats, instants: Floats, reason: str) -> None:
        """Count give-ups."""
        _count(self._ended, began)
        self.reasons[reason] += int(np.count_nonzero(began >= self._world.warmup))
        self.completed = max(self.completed, float(np.max(instants, initial=0.0)))

    def run(self, seed: int, loads: Mapping[str, Load], notes: Sequence[str]) -> Run:
        """Return the run, at its end."""
        used = np.flatnonzero(self._bins)
        return Run(
            world=self._world,
            engine="fleet",
            seed=seed,
            series={
                "calls": self._calls.tolist(),
                "attempts": self._attempts.tolist(),
                "successes": self._successes.tolist(),
                "unfinished": (self._calls - self._ended).tolist(),
            },
            reasons={reason: count for reason, count in self.reasons.items() if count},
            latencies=LatencyHistogram(BIN, used.tolist(), self._bins[used].tolist(), self._total),
            loads=dict(loads),
            completed=self.completed,
            fairness=self._fairness(),
            points=self._points or (),
            notes=tuple(notes),
        )

    def _fairness(self) -> float | None:
        """Return Jain's index of the clients' success rates."""
        clients, total, squares = 0, 0.0, 0.0
        for start in range(0, len(self._made), AT_ONCE):
            made = self._made[start : start + AT_ONCE]
            called = made > 0
            rates = self._good[start : start + AT_ONCE][called] / made[called]
            clients += len(rates)
            total += float(rates.sum())
            squares += float(np.square(rates).sum())  # a dot product would start BLAS threads
        if not clients:
            return None
        return total**2 / (clients * squares) if squares else 1.0


def count_in_slots(series: NDArray[np.int64], instants: Floats, per_second: int, edge: float = 0.0) -> float:
    """Add to the counts of the slots that these instants lie in; return the last instant, 0 if there is none."""
    if not len(instants):
        return 0.0
    latest = float(instants.max())
    first = int(float(instants.min()) * per_second + edge)
    if first == int(latest * per_second + edge):  # most batches are shorter than a slot
        series[first] += len(instants)
        return latest
    counts = np.bincount((instants * per_second + edge).astype(np.intp) - first)
    series[first : first + len(counts)] += counts
    return latest


def _count(series: NDArray[np.int64], instants: Floats) -> float:
    return count_in_slots(series, instants, PER_SECOND, EDGE)


def _most_spiked(world: World) -> float:
    most = 1.0
    for trigger in world.triggers:
        if trigger.kind == "spike":
            most *= max(1.0, trigger.factor or 1.0)
    return most
