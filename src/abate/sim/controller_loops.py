"""Simulated controllers: key queues in front of a service, with the production rules for requeueing.

A **call** is a change of a key. The first successful reconcile that begins after the change ends it, so that one
reconcile may end several calls of a key. A reconcile that fails is requeued by `VerdictRules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from random import Random

from abate.admit.budget import Budget
from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import Rule, build_rules
from abate.errors import Refused
from abate.schedule.periodic import consistent_jitter
from abate.sim.calls import CallDriver, SimulatedCall
from abate.sim.model import Controllers
from abate.sim.simulation import Simulation
from abate.sim.varying_rate import VaryingRate
from abate.work.key_queue import KeyQueue
from abate.work.source import Back
from abate.work.verdict_rules import VerdictRules


class RulingByType(Rule):
    """Judges errors by their type."""

    rulings: Mapping[type, Ruling]

    def judge(self, outcome: Outcome) -> Ruling | None:
        return self.rulings.get(type(outcome.error))


def start_controllers(simulation: Simulation) -> list[ControllerLoop]:
    """Set up all controllers of a world."""
    controllers = simulation.world.clients
    assert isinstance(controllers, Controllers)
    pace, chance = VaryingRate(controllers.rate, simulation.world.spikes), simulation.streams.stream("changes")
    judges, callers = [], []
    for policy in simulation.policies:
        on = build_rules((RulingByType(policy.rulings_by_type), Refused))
        judges.append(VerdictRules(policy.backoff, on, policy.budget, controllers.slow, rng=policy.random_source))
        # one attempt per reconcile: `VerdictRules` withdraws from the budget for its requeue
        single = policy.replace(max_attempts=1, budget=Budget.empty())
        single.rules.rulings_by_type.update(policy.rulings_by_type)
        callers.append(CallDriver(single, simulation.entry, simulation.agenda, simulation.recorder.attempt))
    return [
        ControllerLoop(simulation, place, judges[place % len(judges)], callers[place % len(callers)], pace, chance)
        for place in range(controllers.count)
    ]


class ControllerLoop:
    """One controller: its keys, its queue, its workers."""

    __slots__ = (
        "_agenda",
        "_caller",
        "_chance",
        "_dispatching",
        "_failures",
        "_free",
        "_judge",
        "_keys",
        "_needs",
        "_pace",
        "_place",
        "_queue",
        "_recorder",
        "_resync",
    )

    def __init__(
        self,
        simulation: Simulation,
        place: int,
        judge: VerdictRules,
        caller: CallDriver,
        pace: VaryingRate,
        chance: Random,
    ) -> None:
        settings = simulation.world.clients
        assert isinstance(settings, Controllers)
        self._agenda = agenda = simulation.agenda
        self._recorder = simulation.recorder
        self._place = place
        self._judge = judge
        self._caller = caller
        self._pace = pace
        self._chance = chance.random
        self._keys = settings.keys
        self._free = settings.workers
        self._dispatching = False
        self._resync = settings.resync or 0.0
        self._queue: KeyQueue[int] = KeyQueue()
        self._needs: dict[int, list[float]] = {}
        self._failures: dict[int, int] = {}
        if settings.rate:
            agenda.at(self._next_change(0.0), self._change, None)
        if settings.relist is not None:
            agenda.at(settings.relist, self._add_all, None)
        if settings.resync is not None:
            agenda.at(consistent_jitter(f"controller-{place}", settings.resync), self._round, None)

    # -- adding keys

    def _next_change(self, now: float) -> float:
        return self._pace.after(now, -math.log(1.0 - self._chance()))

    def _change(self, _: None) -> None:
        self._agenda.at(self._next_change(self._agenda.time), self._change, None)
        self._add(int(self._chance() * self._keys))

    def _round(self, _: None) -> None:
        self._agenda.at(self._agenda.time + self._resync, self._round, None)
        self._add_all(None)

    def _add_all(self, _: None) -> None:
        for key in range(self._keys):
            self._add(key)

    def _add(self, key: int) -> None:
        now = self._agenda.time
        if self._queue.add(key, now):
            self._recorder.call(self._place, now)
            self._needs.setdefault(key, []).append(now)
        self._dispatch()

    # -- reconciling keys

    def _dispatch(self) -> None:
        """Give ready keys to free workers."""
        if self._dispatching:  # called from a reconcile that failed at once: the loop below goes on
            return
        self._dispatching = True
        while self._free and (key := self._queue.take()) is not None:
            self._free -= 1
            self._caller.call(partial(self._over, key), None, self._place)
        self._dispatching = False

    def _over(self, key: int, call: SimulatedCall, reason: str | None) -> None:
        """Handle the end of a reconcile."""
        now = self._agenda.time
        self._free += 1
        self._queue.done(key, now)
        if reason is None:
            self._judge.returned(None)
            self._failures.pop(key, None)
            for since in self._due(key, call.began):
                self._recorder.success(self._place, since, now)
        else:
            self._requeue(key, call, reason, now)
        self._dispatch()

    def _due(self, key: int, began: float) -> list[float]:
        """Return the changes that a reconcile begun at `began` covers; later ones stay for the next."""
        needs = self._needs.pop(key, [])
        later = [since for since in needs if since > began]
        if later:
            self._needs[key] = later
        return [since for since in needs if since <= began]

    def _requeue(self, key: int, call: SimulatedCall, reason: str, now: float) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        assert call.failure is not None
        verdict = self._judge.raised(call.failure, failures).verdict
        if isinstance(verdict, Back):
            if verdict.after > 0:
                self._queue.add_after(key, verdict.after, now)
                self._agenda.at(now + verdict.after, self._wake_due, None)
            else:  # in a new event: a service that fails at once would recurse forever
                self._agenda.soon(self._again, key)
            return
        self._failures.pop(key, None)
        for since in self._due(key, call.began):
            self._recorder.failure(since, now, reason)

    def _again(self, key: int) -> None:
        self._queue.add(key, self._agenda.time)
        self._dispatch()

    def _wake_due(self, _: None) -> None:
        self._queue.promote_due(self._agenda.time)
        self._dispatch()
