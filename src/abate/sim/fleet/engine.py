"""Simulates a fleet one 10 ms step (bucket) at a time: sends, serves, times out, decides about failures."""

from __future__ import annotations

from collections import deque
from math import ceil
from random import Random

import numpy as np
from numpy.typing import NDArray

from abate.call.policy import Policy
from abate.decide.outcome import FATAL, Outcome, Ruling
from abate.errors import AttemptTimeout
from abate.sim import exact_engine
from abate.sim.agenda import Agenda
from abate.sim.fleet.arrivals import ArrivalSource, ThinkTimes, arrivals
from abate.sim.fleet.call_table import CallTable
from abate.sim.fleet.recorder import FleetRecorder, count_in_slots
from abate.sim.fleet.server import LATE, Server
from abate.sim.fleet.server_workers import Started
from abate.sim.fleet.timer_wheel import PER_SECOND, WIDTH, TimerWheel
from abate.sim.fleet.unsupported import unsupported_features
from abate.sim.fleet.vector_rules import Floats, Mask, VectorBackoff, VectorBudget, Whole, stream
from abate.sim.measures import EDGE, Load, Run
from abate.sim.model import Clients, Duration, Service
from abate.sim.server import answer
from abate.sim.simulation import bind_policy, possible_failures, single_attempt_policy, unmatched_policy_note
from abate.sim.world import World

KEYS = 2**15 - 1
"""Distinct instants within a bucket, when attempts are sorted."""

Batch = tuple[Whole, Floats, Floats]
"""Calls whose attempts are sent, the instants, and the deadlines of the answers."""
EMPTY = (np.empty(0, np.intp), np.empty(0), np.empty(0))
Failed = tuple[int, Whole, Floats]
"""A kind of failure, the calls that fail, and the instants."""
Retries = tuple[Whole, Floats, Floats]
"""Calls, the instants of their failures, and the delays before their next attempts."""


def run(world: World, seed: int, raster: bool = False) -> Run:
    """Run a world, bucket by bucket.

    >>> import abate.sim as sim
    >>> world = sim.World(sim.Clients(count=100_000, rate=0.01), [sim.Service("api", workers=200, service_time=0.1)])
    >>> 55_000 < run(world, seed=1).successes < 65_000
    True
    >>> run(world.__class__(sim.Clients(count=1), [sim.Row("row")]), seed=1).notes
    ('run by the exact engine: there is no array form of a row',)
    """
    lacking = unsupported_features(world)
    if lacking:
        note = f"run by the exact engine: there is no array form of {', '.join(lacking)}"
        return exact_engine.run(world, seed, raster).noted(note)
    return Fleet(world, seed, raster).run()


class Fleet:
    """The clients of a world, and the service that they call."""

    __slots__ = (
        "_answers",
        "_budget",
        "_calls",
        "_decorrelated",
        "_earned",
        "_endless",
        "_last",
        "_leg",
        "_notes",
        "_on_the_way",
        "_policy",
        "_recorder",
        "_rng",
        "_rulings",
        "_schedules",
        "_seed",
        "_sends",
        "_server",
        "_source",
        "_think_times",
        "_timers",
        "_world",
    )

    def __init__(self, world: World, seed: int, raster: bool) -> None:
        clients, service = world.clients, world.service(world.entry)
        assert isinstance(clients, Clients)
        assert isinstance(service, Service)
        serial = clients.kind == "serial" and clients.arrivals != "once"
        self._world = world
        self._seed = seed
        self._last = int(world.horizon * PER_SECOND)
        self._rng = stream(seed, "policy")
        self._policy, self._notes = _bind_policy(world, service)
        self._rulings = _rulings(service, world, self._policy)
        self._schedules = {
            reason: VectorBackoff(plan, int(self._policy.attempt_limit) - 1)  # type: ignore[arg-type]
            for reason, plan in (("blip", self._policy.backoff), ("overload", self._policy.overload_backoff))
        }
        self._decorrelated = getattr(self._policy.backoff, "jitter", None) == "decorrelated"
        self._budget = VectorBudget(self._policy.budget)
        self._earned = np.zeros(self._last + 1, np.int64)
        """Successes that fund the budget, by bucket."""
        self._endless = np.empty(0)
        self._leg = Duration.of(service.network).mean
        self._on_the_way: deque[Batch] = deque([EMPTY] * round(self._leg * PER_SECOND))
        self._server = Server(service, world, seed, self._last + 1)
        self._recorder = FleetRecorder(world, raster)
        self._sends, self._timers, self._answers = (TimerWheel(world.horizon) for _ in range(3))
        needed = {"due": self._policy.bounded, "previous": self._decorrelated, "kind": self._leg > 0}
        self._calls = CallTable(clients.count if serial else 0, tuple(name for name, true in needed.items() if true))
        self._source: ArrivalSource | None = None
        self._think_times: ThinkTimes | None = None
        if serial:
            self._think_times = ThinkTimes(world, seed)
            self._calls.at[:] = self._think_times.first(clients)
            self._sends.add(np.arange(clients.count), self._calls.at)
        else:
            self._source = arrivals(world, seed)

    def run(self) -> Run:
        """Simulate all buckets, and return the run."""
        begins, before = ceil(self._world.warmup * PER_SECOND - EDGE), Load(requests=0)
        for bucket in range(self._last + 1):
            if bucket == begins:
                before = self._server.load()
            self._step(bucket)
        loads = {service.name: Load(requests=0) for service in self._world.services}
        loads[self._world.entry] = self._server.load().since(before)
        return self._recorder.run(self._seed, loads, self._notes)

    def _step(self, bucket: int) -> None:
        sent = self._send(bucket)
        self._on_the_way.append(sent)
        calls, at, due = self._on_the_way.popleft()
        refused, started = self._server.arrive(bucket, calls, at + self._leg if self._leg else at, due)
        for part in started:
            self._served(part)
        if self._leg:
            for kind, calls, at, due in refused:
                self._answer(kind, calls, at + self._leg, due)
            failed = self._answered(bucket)
        else:
            failed = [(kind, calls, at) for kind, calls, at, _ in refused]
        if self._policy.bounded:
            for _, calls, _ in failed:
                self._calls.due[calls] = np.inf
            failed.append(self._expired(bucket, sent[0]))
        self._budget.deposit(int(self._earned[bucket]), bucket * WIDTH)
        self._schedule_retries(
            bucket, [self._decide(kind, *self._by_now(bucket, calls, at)) for kind, calls, at in failed]
        )

    # -- sending

    def _send(self, bucket: int) -> Batch:
        """Return the attempts of a bucket, first attempts and retries, in the order of their instants."""
        pool = self._calls
        calls = self._sends.take(bucket)
        at = pool.at[calls]
        if self._source is not None:
            clients, began = self._source.take(bucket)
            if bucket == self._last:
                clients, began = clients[began <= self._world.horizon], began[began <= self._world.horizon]
            calls, at = np.concatenate([calls, pool.take(clients, began)]), np.concatenate([at, began])
            self._begun(bucket, clients, began)
        if bucket == self._last:
            calls, at = calls[at <= self._world.horizon], at[at <= self._world.horizon]
        if self._source is None:
            new = calls[pool.attempts[calls] == 0]
            pool.began[new] = pool.at[new]
            self._begun(bucket, pool.client[new], pool.began[new])
        # attempts left over from the last bucket come first
        key = at * PER_SECOND
        key -= bucket - 1
        key *= KEYS
        np.maximum(key, 0.0, out=key)
        order = key.astype(np.uint16).argsort(kind="stable")
        calls, at = calls[order], at[order]
        self._recorder.attempted(pool, calls, at)
        return calls, at, self._bounds(calls, at)

    def _begun(self, bucket: int, clients: NDArray[np.int32], began: Floats) -> None:
        self._recorder.called(clients, began)
        if self._budget.by_request:
            self._budget.deposit(len(clients), bucket * WIDTH)

    def _bounds(self, calls: Whole, at: Floats) -> Floats:
        """Return the deadlines of attempts that are sent now."""
        if len(calls) > len(self._endless):
            self._endless = np.full(2 * len(calls), np.inf)
        due = self._endless[: len(calls)]  # never written to
        if self._policy.bounded:
            if self._policy.attempt_timeout is not None:
                due = at + self._policy.attempt_timeout
            if self._policy.timeout is not None:
                due = np.minimum(due, self._calls.began[calls] + self._policy.timeout)
            self._calls.due[calls] = due
        return due

    # -- answers and timeouts

    def _served(self, part: Started) -> None:
        """Record successes, of the requests that finish before their deadline."""
        calls, answered = part.calls, part.finish + self._leg if self._leg else part.finish
        if self._policy.bounded:
            good = answered < part.due
            calls, answered = calls[good], answered[good]
            self._calls.due[calls] = np.inf
        counted, instants = calls, answered
        if len(answered) and answered.max() > self._world.horizon:
            within = answered <= self._world.horizon
            counted, instants = calls[within], answered[within]
        self._recorder.succeeded(self._calls.client[counted], self._calls.began[counted], instants)
        if self._budget.by_success:
            count_in_slots(self._earned, instants, PER_SECOND)
        self._over(calls, answered)

    def _answer(self, kind: int, calls: Whole, at: Floats, due: Floats) -> None:
        """Send refusals back, to the calls whose deadline is later."""
        waiting = at < due
        calls, at = calls[waiting], at[waiting]
        if self._policy.bounded:
            self._calls.due[calls] = np.inf
        self._calls.kind[calls] = kind
        self._calls.at[calls] = at
        self._answers.add(calls, at)

    def _answered(self, bucket: int) -> list[Failed]:
        """Return the refusals that arrive in a bucket."""
        calls = self._answers.take(bucket)
        kinds = self._calls.kind[calls]
        return [
            (kind, calls[kinds == kind], self._calls.at[calls[kinds == kind]]) for kind in np.unique(kinds).tolist()
        ]

    def _expired(self, bucket: int, sent: Whole) -> Failed:
        """Return the calls that time out in a bucket; `sent` are the attempts that start to wait."""
        due = self._calls.due
        waiting = sent[np.isfinite(due[sent])]
        self._timers.add(waiting, due[waiting])
        calls = self._timers.take(bucket)
        # timers are not cancelled: ignore one whose attempt has ended, so that its row has another deadline, or none
        calls = np.unique(calls[due[calls] < (bucket + 1) * WIDTH])
        at = due[calls]
        due[calls] = np.inf
        return LATE, calls, at

    def _by_now(self, bucket: int, calls: Whole, at: Floats) -> tuple[Whole, Floats]:
        """Return the calls whose instants lie before the horizon."""
        if bucket < self._last:
            return calls, at
        return calls[at <= self._world.horizon], at[at <= self._world.horizon]

    # -- decide, schedule, admit

    def _decide(self, kind: int, calls: Whole, at: Floats) -> Retries:
        """Decide as `Call.failed` does, up to the budget: give up, or return the delays."""
        policy, ruling, pool = self._policy, self._rulings[kind], self._calls
        retries = pool.attempts[calls] + 1
        pool.attempts[calls] = retries
        if not ruling.retry:
            self._give_up(calls, at, "layer" if ruling.reason == "layer" else "fatal")
            return EMPTY
        calls, at = self._stop(retries >= policy.attempt_limit, "attempts", calls, at)
        hint = ruling.hint
        if policy.timeout is not None:
            calls, at = self._stop(at >= pool.began[calls] + policy.timeout, "deadline", calls, at)
        if hint is not None:
            beyond = np.full(len(calls), hint > policy.max_hint)
            if policy.timeout is not None:
                beyond |= at + hint >= pool.began[calls] + policy.timeout
            calls, at = self._stop(beyond, "hint", calls, at)
        safe = ruling.safe is not False if policy.idempotent is None else policy.idempotent
        if ruling.reached and not safe:
            self._give_up(calls, at, "unsafe")
            return EMPTY
        delay = self._delay(ruling, calls, at)
        if policy.timeout is not None:
            late = at + delay >= pool.began[calls] + policy.timeout
            delay = delay[~late]
            calls, at = self._stop(late, "deadline", calls, at)
        return calls, at, delay

    def _delay(self, ruling: Ruling, calls: Whole, at: Floats) -> Floats:
        plan, pool = self._schedules["overload" if ruling.overloaded else "blip"], self._calls
        retries, uniforms = pool.attempts[calls], self._rng.random(len(calls))
        if self._decorrelated:
            delay = pool.previous[calls] = plan.delay(retries, uniforms, pool.previous[calls])
        else:
            delay = plan.delay(retries, uniforms)
        if ruling.hint is None:
            return delay
        timeout = self._policy.timeout
        left = np.inf if timeout is None else pool.began[calls] + timeout - at
        return plan.delay_after_hint(ruling.hint, retries, delay, left)

    def _schedule_retries(self, bucket: int, groups: list[Retries]) -> None:
        """Schedule the retries that the budget admits, in the order of the failures."""
        if not groups:
            return
        calls, at, delay = groups[0]
        if len(groups) > 1:
            calls, at, delay = (np.concatenate(column) for column in zip(*groups, strict=True))
        paid = self._budget.withdraw(len(calls), bucket * WIDTH)
        if paid < len(calls):
            order = at.argsort(kind="stable")
            self._give_up(calls[order[paid:]], at[order[paid:]], "budget")
            calls, at, delay = calls[order[:paid]], at[order[:paid]], delay[order[:paid]]
        due = self._calls.at[calls] = at + delay
        self._sends.add(calls, due)

    def _stop(self, where: Mask, reason: str, calls: Whole, at: Floats) -> tuple[Whole, Floats]:
        """Give up on some calls, and return the others."""
        if not where.any():
            return calls, at
        self._give_up(calls[where], at[where], reason)
        return calls[~where], at[~where]

    def _give_up(self, calls: Whole, at: Floats, reason: str) -> None:
        self._recorder.failed(self._calls.began[calls], at, reason)
        self._over(calls, at)

    def _over(self, calls: Whole, at: Floats) -> None:
        """End calls; serial clients call again after a pause."""
        pool = self._calls
        if self._think_times is None:
            pool.release(calls)
            return
        pool.attempts[calls] = 0
        if self._decorrelated:
            pool.previous[calls] = np.nan
        due = pool.at[calls] = self._think_times.after(at)
        self._sends.add(calls, due)


def _bind_policy(world: World, service: Service) -> tuple[Policy, list[str]]:
    """Return the clients' policy, with its rulings on the errors of this world, and its notes."""
    policy, failures = world.policy or single_attempt_policy(), possible_failures(world, service)
    # its clock and random numbers are not used
    note = unmatched_policy_note(policy, failures)
    return bind_policy(policy, Agenda(), Random(0), failures), [] if note is None else [note]


def _rulings(service: Service, world: World, policy: Policy) -> list[Ruling]:
    """Return the ruling on each kind of failure, by its number."""
    answers = [answer(503), answer(service.status)]
    for trigger in world.triggers_of(service.name):
        if trigger.kind == "error":
            answers.append(answer(trigger.status, trigger.retry_after))
    return [
        policy.rules.decide(Outcome(AttemptTimeout(0.0))),
        *(policy.rulings_by_type.get(kind, FATAL) for kind in answers),
    ]
