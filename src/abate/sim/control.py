"""Controllers in a simulated world: key queues in front of a service, and the production rules of what comes back when.

A **call** is here a key's need to be reconciled. It is met by the first reconcile that began after it and succeeded, so
several needs of one key may be met at once. What fails comes back through the queue, as `Judge` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from random import Random

from abate.admit.budget import Budget
from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import Rule, rules
from abate.errors import Refused
from abate.schedule.beat import consistent_jitter
from abate.sim.calls import Caller, Journey
from abate.sim.clients import Controllers
from abate.sim.pace import Pace
from abate.sim.stage import Setting
from abate.work.judge import Judge
from abate.work.keys import KeyQueue
from abate.work.source import Back


class ByType(Rule):
    """Judges errors by their type alone."""

    rulings: Mapping[type, Ruling]

    def judge(self, outcome: Outcome) -> Ruling | None:
        return self.rulings.get(type(outcome.error))


def control(stage: Setting) -> list[Loop]:
    """Set up all controllers of a world."""
    controllers = stage.world.clients
    assert isinstance(controllers, Controllers)
    pace, chance = Pace(controllers.rate, stage.world.spikes), stage.chance.stream("changes")
    judges, callers = [], []
    for policy in stage.policies:
        on = rules((ByType(policy.known), Refused))
        judges.append(Judge(policy.backoff, on, policy.budget, controllers.slow, rng=policy.chance))
        # one attempt at a time, which the judge pays for
        single = policy.replace(attempts=1, budget=Budget.empty())
        single.rules.known.update(policy.known)
        callers.append(Caller(single, stage.entry, stage.agenda, stage.recorder.attempt))
    return [
        Loop(stage, place, judges[place % len(judges)], callers[place % len(callers)], pace, chance)
        for place in range(controllers.count)
    ]


class Loop:
    """One controller: its keys, its queue, its workers."""

    __slots__ = (
        "_agenda",
        "_caller",
        "_chance",
        "_failures",
        "_free",
        "_handing",
        "_judge",
        "_keys",
        "_needs",
        "_pace",
        "_place",
        "_queue",
        "_recorder",
        "_resync",
    )

    def __init__(self, stage: Setting, place: int, judge: Judge, caller: Caller, pace: Pace, chance: Random) -> None:
        settings = stage.world.clients
        assert isinstance(settings, Controllers)
        self._agenda = agenda = stage.agenda
        self._recorder = stage.recorder
        self._place = place
        self._judge = judge
        self._caller = caller
        self._pace = pace
        self._chance = chance.random
        self._keys = settings.keys
        self._free = settings.workers
        self._handing = False
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

    # -- what brings keys

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
        self._hand_out()

    # -- what becomes of them

    def _hand_out(self) -> None:
        """Give keys that are ready to workers that are free."""
        if self._handing:  # a reconcile that failed at once: what is ready is taken below, not from within
            return
        self._handing = True
        while self._free and (key := self._queue.take()) is not None:
            self._free -= 1
            self._caller.call(partial(self._over, key), None, self._place)
        self._handing = False

    def _over(self, key: int, journey: Journey, reason: str | None) -> None:
        """A reconcile has ended."""
        now = self._agenda.time
        self._free += 1
        self._queue.done(key, now)
        if reason is None:
            self._judge.returned(None)
            self._failures.pop(key, None)
            for since in self._due(key, journey.began):
                self._recorder.success(self._place, since, now)
        else:
            self._come_back(key, journey, reason, now)
        self._hand_out()

    def _due(self, key: int, began: float) -> list[float]:
        """The needs that a reconcile which began then has settled; those that came later bring the key back."""
        needs = self._needs.pop(key, [])
        later = [since for since in needs if since > began]
        if later:
            self._needs[key] = later
        return [since for since in needs if since <= began]

    def _come_back(self, key: int, journey: Journey, reason: str, now: float) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        assert journey.failure is not None
        verdict = self._judge.raised(journey.failure, failures).verdict
        if isinstance(verdict, Back):
            if verdict.after > 0:
                self._queue.add_after(key, verdict.after, now)
                self._agenda.at(now + verdict.after, self._ripe, None)
            else:  # not from within, or a service that fails at once would never let go
                self._agenda.soon(self._again, key)
            return
        self._failures.pop(key, None)
        for since in self._due(key, journey.began):
            self._recorder.failure(since, now, reason)

    def _again(self, key: int) -> None:
        self._queue.add(key, self._agenda.time)
        self._hand_out()

    def _ripe(self, _: None) -> None:
        self._queue.ripen(self._agenda.time)
        self._hand_out()
