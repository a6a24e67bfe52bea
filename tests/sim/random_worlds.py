"""Random storms: worlds with outages of every kind, for the rules that a shelter must keep in all of them.

A storm is a function of its number. The same calls arrive for naive retries, for a shelter and for the oracle.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, exp, log
from random import Random
from typing import Any

from abate import Backoff, Budget, Policy, Shelter
from abate.admit.prober import PAUSE_SHARE_OF_PATIENCE
from abate.decide.outcome import BLIP
from abate.decide.rules import Rule
from abate.sim import Clients, Duration, Run, Service, Trigger, World, oracle, simulated
from abate.sim.measures import slot

RESET = 599
"""The status by which connections that are reset are simulated: the client learns that the attempt failed, no more."""
TOTAL = ("error", "hang", "reset")
"""The kinds of outages in which nothing is answered."""
PARTIAL = ("slow", "capacity", "some errors")
QUIET = 1e-9
"""The factor of the spike that ends the arrivals, so that all calls are over at the horizon."""
SMALL_SHARE = 0.05
"""Of an outage's calls: this many may be probes."""
NOTICED = {"error": 5, "reset": 5, "hang": 10}
"""Attempts after which a process can know of an outage: failures in a row, or attempts without an answer."""


class Resets(Rule):
    """The rule for simulated answers, and for resets: nothing says that the server is overloaded, or up."""

    def judge(self, outcome: Any) -> Any:
        if getattr(outcome.error, "status_code", None) == RESET:
            return BLIP
        return simulated.judge(outcome)


class Storm:
    """One random world; its number is its seed."""

    def __init__(self, number: int) -> None:
        self.number = number
        rng = self._rng = Random(f"storm/{number}")
        capacity, work = self._between(10, 150), self._between(0.005, 0.3)
        self.workers = max(1, round(capacity * work))
        self.work = Duration(self.workers / capacity, *rng.choice(SHAPES)(self.workers / capacity))
        self.capacity = capacity
        self.load = rng.uniform(0.3, 0.95)
        self.queue = ceil(capacity * self._between(0.1, 2.0))
        self.processes = round(self._between(1, 50))
        self.attempt_timeout = max(rng.choice((0.5, 1.0, 2.0)), 10.0 * self.work.mean)
        self.timeouts = tuple(sorted(round(self._between(1.5, 20.0), 1) for _ in range(rng.choice((1, 1, 2, 3)))))
        self.triggers, end = [], 5.0
        self.outages: list[tuple[str, float, float]] = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            self._outage(rng.choice((*TOTAL, *TOTAL, *PARTIAL)), end + round(self._between(0.1, 4.0), 1))
            end = self.triggers[-1].end
        if rng.random() < 0.4:
            self.triggers.append(Trigger("slow", end, 2.0, factor=1.5))  # caches are cold
            end += 2.0
        self.until = end + rng.choice((1.0, 5.0))
        self.horizon = ceil(self.until + max(self.timeouts) + 5.0)

    def _between(self, low: float, high: float) -> float:
        return exp(self._rng.uniform(log(low), log(high)))

    def _outage(self, kind: str, start: float) -> None:
        rng, start, length = self._rng, round(start, 1), round(self._between(0.3, 12.0), 1)
        name, settings = {
            "error": ("error", {}),
            "hang": ("stall", {}),
            "reset": ("error", {"status": RESET}),
            "slow": ("slow", {"factor": round(self._between(1.5, 20.0), 1)}),
            "capacity": ("capacity", {"factor": round(rng.uniform(0.1, 0.7), 2)}),
            "some errors": ("error", {"share": round(rng.uniform(0.1, 0.5), 2)}),
        }[kind]
        self.triggers.append(Trigger(name, start, length, **settings))  # type: ignore[arg-type]
        self.outages.append((kind, start, self.triggers[-1].end))

    def __str__(self) -> str:
        outages = ", ".join(f"{kind} {start:g}–{end:g} s" for kind, start, end in self.outages)
        spread = self.work.shape
        return (
            f"storm {self.number}: {self.processes} processes, {self.load * self.capacity:.0f}/s ({self.load:.0%} of"
            f" {self.workers} × {self.work.mean * 1000:.0f} ms {spread}, queue {self.queue}), {outages}"
            f"{', then slow' if len(self.triggers) > len(self.outages) else ''}; timeouts"
            f" {', '.join(f'{each:g}' for each in self.timeouts)} s, of an attempt {self.attempt_timeout:g} s"
        )

    def world(self, policy: Policy) -> World:
        """The world, with this policy for its clients."""
        count = self.processes * len(self.timeouts)
        clients = Clients(count, self.load * self.capacity / count, processes=self.processes, timeouts=self.timeouts)
        service = Service("api", self.workers, self.work, queue_limit=self.queue)
        quiet = Trigger("spike", self.until, self.horizon - self.until, factor=QUIET)
        return World(clients, [service], policy, [*self.triggers, quiet], self.horizon)

    @property
    def naive(self) -> Policy:
        """Exponential backoff without jitter, and without a budget."""
        return Policy(
            on=Resets(),
            max_attempts=6,
            attempt_timeout=self.attempt_timeout,
            backoff=(0.1, 0.2, 0.4, 0.8, 1.6),
            budget=Budget.unlimited(),
        )

    @property
    def sheltered(self) -> Policy:
        """The same attempts with jitter, abate's budget and a shelter."""
        shelter = Shelter(capacity=2000, patience=max(self.timeouts))
        return self.naive.replace(backoff=Backoff(0.1, 2.0), budget=Budget(), shelter=shelter)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The runs of naive retries, the shelter and the oracle, with the same calls."""
        world = self.world(self.sheltered)
        return {
            "naive": self.world(self.naive).run(self.number),
            "shelter": world.run(self.number),
            "oracle": oracle.run(world, self.number),
        }

    def lost(self, name: str) -> float:
        """The share of all calls that is lost."""
        return 1.0 - self.runs[name].measures()["success"]

    def loads(self) -> list[tuple[str, int, float]]:
        """Of each outage in which nothing is answered: its kind, the shelter's attempts, and how many it may make.

        They are a twentieth of its calls; and of each process, one per pause, by the policy's own backoff and patience,
        after those that it takes to notice.
        """
        found, series = [], self.runs["shelter"].series
        for kind, start, end in self.outages:
            if kind in TOTAL:
                calls, attempts = (sum(series[name][slot(start) : slot(end)]) for name in ("calls", "attempts"))
                backoff = self.sheltered.backoff if kind == "reset" else self.sheltered.overload_backoff
                longest = max(backoff.ceiling(1), PAUSE_SHARE_OF_PATIENCE * max(self.timeouts))
                pauses, left = 1, end - start
                while (left := left - 0.5 * min(longest, backoff.ceiling(pauses))) > 0.0:
                    pauses += 1
                found.append((kind, attempts, SMALL_SHARE * calls + (NOTICED[kind] + pauses) * self.processes))
        return found

    def broken(self) -> list[str]:
        """The rules that the shelter breaks here."""
        found = [
            f"{sent} attempts in the outage number {place} ({kind}), and {allowed:.0f} are allowed"
            for place, (kind, sent, allowed) in enumerate(self.loads(), start=1)
            if sent > allowed
        ]
        naive, shelter, oracle = (self.lost(name) for name in ("naive", "shelter", "oracle"))
        if shelter > naive:
            found.append(f"lost {shelter:.1%}, naive retries {naive:.1%}, the oracle {oracle:.1%}")
        return found


def _constant(mean: float) -> tuple[str]:
    return ("constant",)


SHAPES = (
    _constant,
    lambda mean: ("exponential",),
    lambda mean: ("uniform", 0.5 * mean),
    lambda mean: ("lognormal", mean),
)
"""The shapes of service times: with their spread."""
