"""Small simulations in virtual time: a process with its limiter and wait queue, and a server with workers.

The tests assert what a user would notice: how many calls were answered, how many attempts were sent to a server that
could not answer them, whether the limit converges, and whether it is calm in the end. The numbers allow for chance,
but not for another kind of behaviour; every simulation has its seed.
"""

import heapq
import random
from collections import deque
from itertools import count
from statistics import mean, pstdev

import pytest

from abate.admit.limiter import INITIAL_LIMIT, Limiter
from abate.admit.shelter_queue import ShelterQueue, Waiter
from abate.schedule.backoff import Backoff

PATIENCE = 10.0
TIMEOUT = 2.0
"""Seconds after which an attempt is broken off, and counts as failed; the server works on, as servers do."""
ATTEMPTS = 4
REFUSAL = 0.002
"""Seconds that a server which is down takes to say so."""


class Held(Waiter):
    """A waiter with the attempts that its call has left."""

    __slots__ = ("left",)

    def __init__(self, began, deadline, left):
        super().__init__(began, deadline)
        self.left = left


class Server:
    """Workers that each serve one attempt at a time, and a queue in front of them."""

    def __init__(self, world, workers, service, exponential=False):
        self.world, self.workers, self.service, self.exponential = world, workers, service, exponential
        self.up, self.hangs, self.errors = True, False, 0.0
        self.busy, self.line = 0, deque()

    def take(self, done):
        """Accept an attempt; `done` gets whether it was answered."""
        if self.hangs:
            return
        if not self.up:
            self.world.after(REFUSAL, lambda: done(False))
        elif self.busy < self.workers:
            self._work(done)
        else:
            self.line.append(done)

    def _work(self, done):
        self.busy += 1
        chance = self.world.rng.expovariate(1.0) if self.exponential else self.world.rng.uniform(0.8, 1.2)
        self.world.after(self.service * chance, lambda: self._finish(done))

    def _finish(self, done):
        self.busy -= 1
        while self.line and self.busy < self.workers:
            self._work(self.line.popleft())
        done(not self.hangs and self.up and self.world.rng.random() >= self.errors)


class World:
    """A process that makes `rate` calls per second, as a dispatcher does but without locks and wake-ups."""

    def __init__(self, seed, rate, workers, service, exponential=False):
        self.rng = random.Random(seed)
        self.now, self.events, self.order = 0.0, [], count()
        self.rate, self.plan = rate, Backoff(0.2, 30.0)
        self.server = Server(self, workers, service, exponential)
        self.limiter, self.shelter_queue = Limiter(random.Random(seed + 1), 0.0), ShelterQueue(1000)
        self.alarm = None
        self.offered, self.sent, self.answered, self.failed = [], [], [], []
        self.refused = 0
        self.log = []
        self.after(0.0, self._arrive)
        self.after(0.0, self._look)

    # -- time

    def after(self, seconds, what):
        heapq.heappush(self.events, (self.now + seconds, next(self.order), what))

    def at(self, when, **changes):
        """Change the server at an instant."""
        heapq.heappush(self.events, (when, next(self.order), lambda: vars(self.server).update(changes)))
        return self

    def run(self, until):
        while self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            what()
        return self

    def _look(self):
        limiter = self.limiter
        self.log.append((self.now, limiter.state, limiter.limit))
        self.after(0.1, self._look)

    # -- results

    def per_second(self, events, start, end):
        return sum(start <= at < end for at in events) / (end - start)

    def limits(self, start, end):
        return [limit for at, _, limit in self.log if start <= at < end]

    def share(self, state, start, end):
        states = [known for at, known, _ in self.log if start <= at < end]
        return states.count(state) / len(states)

    # -- calls

    def _arrive(self):
        self.after(self.rng.expovariate(self.rate), self._arrive)
        self.offered.append(self.now)
        self._enter(self.now, ATTEMPTS)

    def _enter(self, began, left):
        limiter, shelter_queue, now = self.limiter, self.shelter_queue, self.now
        if limiter.calm and now < limiter.latencies.next_sample:
            self._send(None, began, left, uncounted=True)
            return
        if left == ATTEMPTS:
            limiter.on_call(now)
        if not shelter_queue.size and now >= limiter.due():
            self._send(limiter.send(now), began, left)
            return
        if shelter_queue.full or limiter.paused_until() >= now + PATIENCE:
            self.refused += 1
            return
        limiter.on_held_back(now)
        waiter = Held(began, now + PATIENCE, left)
        shelter_queue.add(waiter)
        self.after(PATIENCE, lambda: self._late_after(waiter))
        self._admit()

    def _late_after(self, waiter):
        if waiter.answer is None:
            waiter.answer = "late"
            self.shelter_queue.remove(waiter, "late")
            self.refused += 1

    def _admit(self):
        limiter, shelter_queue, now = self.limiter, self.shelter_queue, self.now
        if shelter_queue.size:
            limiter.on_held_back(now)
        while shelter_queue.size and now >= limiter.due():
            chance = limiter.probe_chance()
            if chance is None:
                waiter = shelter_queue.next(
                    now, limiter.latencies.usual(), limiter.interval(), limiter.catching_up(now)
                )
            else:
                waiter = shelter_queue.probe(now, chance)
            shelter_queue.remove(waiter, "late")
            if now + limiter.latencies.expected_answer_in(0.0) < waiter.deadline:
                waiter.answer = limiter.send(now)
                self._send(waiter.answer, waiter.began, waiter.left)
            else:
                waiter.answer = "late"
                self.refused += 1
        if shelter_queue.size and (self.alarm is None or limiter.due() < self.alarm):
            self.alarm = alarm = limiter.due()
            self.after(alarm - now, lambda: self._ring(alarm))

    def _ring(self, alarm):
        if self.alarm == alarm:
            self.alarm = None
            self._admit()

    def _send(self, permit, began, left, uncounted=False):
        self.sent.append(self.now)
        over = []

        def done(fine):
            if over:
                return  # it was cancelled before
            over.append(True)
            if fine:
                self.answered.append(self.now)
                if permit is not None or not self.limiter.calm:
                    self.limiter.on_answer(permit, self.now, self.shelter_queue.size)
            else:
                self.failed.append(self.now)
                self._bad(permit, began, left, uncounted)
            self._admit()

        self.server.take(done)
        self.after(TIMEOUT, lambda: done(False))

    def _bad(self, permit, began, left, uncounted):
        limiter, now = self.limiter, self.now
        limiter.on_failure(permit, now, self.plan, None, uncounted)
        paused_until = limiter.paused_until()
        for waiter in self.shelter_queue.expiring_by(paused_until) if paused_until > now else []:
            waiter.answer = "paused"
            self.shelter_queue.remove(waiter, "late")
            self.refused += 1
        if left > 1:
            delay = 0.0 if paused_until > now else self.plan.delay(ATTEMPTS - left + 1, self.rng)
            self.after(delay, lambda: self._enter(began, left - 1))


class Hub:
    """Several processes on one server, in one time."""

    def __init__(self, seed, clients, rate, workers, service, exponential=False):
        self.rng = random.Random(seed)
        self.now, self.events, self.order = 0.0, [], count()
        self.server = Server(self, workers, service, exponential)
        self.worlds = [Process(self, 100 * seed + n, rate) for n in range(clients)]

    after, at, run = World.after, World.at, World.run


class Process(World):
    """One of these processes."""

    def __init__(self, hub, seed, rate):
        self.hub = hub
        super().__init__(seed, rate, 1, 1.0)
        self.server = hub.server

    def after(self, seconds, what):
        self.hub.after(seconds, lambda: self._then(what))

    def _then(self, what):
        self.now = self.hub.now
        what()


LATENCIES = pytest.mark.parametrize("exponential", [False, True], ids=["even", "uneven"])
"""Service times that are nearly the same, and such that differ by chance as much as they do in practice."""


@LATENCIES
@pytest.mark.parametrize("seed", [0, 2])
def test_calls_to_a_healthy_server_are_not_held_back(exponential, seed):
    """All calls are answered at once, and the limiter is calm after some seconds."""
    world = World(seed, rate=100, workers=40, service=0.05, exponential=exponential).run(30.0)
    assert world.refused == 0
    assert len(world.answered) >= len(world.offered) - 20
    assert world.share("calm", 3.0, 30.0) >= 0.8


@LATENCIES
def test_calls_survive_an_outage(exponential):
    """Few attempts are sent during it, all calls that can still wait are answered soon after, then it is calm."""
    world = World(1, rate=100, workers=20, service=0.05, exponential=exponential)
    world.at(20.0, up=False).at(50.0, up=True).run(75.0)
    # a twentieth of the calls would be 150; it is fewer, as probes become slower with the outage
    assert world.per_second(world.sent, 20.0, 50.0) <= 0.05 * world.rate
    # the end is noticed within a tenth of its length, and waiting calls are answered then
    assert world.per_second(world.answered, 53.0, 60.0) >= world.rate
    assert world.per_second(world.answered, 65.0, 75.0) == pytest.approx(world.rate, rel=0.1)
    assert world.limiter.state == "calm"
    assert world.limits(70.0, 75.0)[-1] > 100


@LATENCIES
def test_a_server_that_flaps_is_used_while_it_is_up(exponential):
    """No call fails for good, few attempts are sent while it is down, and it is calm in the end."""
    world = World(2, rate=100, workers=20, service=0.05, exponential=exponential)
    for n in range(4):
        world.at(10.0 + 4 * n, up=False).at(12.0 + 4 * n, up=True)
    world.run(40.0)
    for n in range(4):
        assert world.per_second(world.sent, 10.0 + 4 * n, 12.0 + 4 * n) <= 0.3 * world.rate
        assert world.per_second(world.answered, 12.0 + 4 * n, 14.0 + 4 * n) >= world.rate
    assert len(world.answered) >= 0.98 * len(world.offered)
    assert world.limiter.state == "calm"


@LATENCIES
def test_a_third_of_errors_starves_no_call(exponential):
    """Errors unrelated to load: the throughput equals the demand, and the limiter does not close."""
    world = World(3, rate=100, workers=20, service=0.05, exponential=exponential)
    world.at(10.0, errors=0.3).run(60.0)
    assert world.per_second(world.answered, 10.0, 60.0) >= 0.9 * world.rate
    assert world.share("probing", 10.0, 60.0) <= 0.02
    assert world.refused <= 0.01 * len(world.offered)


@LATENCIES
@pytest.mark.parametrize(("rate", "workers", "service"), [(160, 20, 0.1), (60, 4, 0.05)])
def test_a_server_that_loses_half_of_its_workers_is_fully_used(exponential, rate, workers, service):
    """Hardly an attempt fails, the server's queue is short, and the limit converges."""
    world = World(4, rate, workers, service, exponential)
    world.at(20.0, workers=workers // 2).run(140.0)
    capacity = workers / 2 / service
    assert world.per_second(world.answered, 30.0, 140.0) >= 0.95 * capacity
    assert len(world.failed) <= 0.01 * len(world.sent)
    before, after = world.limits(60.0, 100.0), world.limits(100.0, 140.0)
    assert mean(after) == pytest.approx(mean(before), rel=0.2), "it does not creep"
    assert pstdev(after) <= 0.25 * mean(after), "it rests, but for the trials"
    assert max(after) <= workers / 2 * 1.6 * 1.3 + 12


@LATENCIES
def test_a_server_that_becomes_ten_times_slower_is_not_starved_for_ever(exponential):
    """It has enough workers, so only a limit made for the old latency holds calls back: it adapts within minutes."""
    world = World(5, rate=100, workers=1000, service=0.02, exponential=exponential)
    world.at(20.0, service=0.2).run(260.0)
    assert world.per_second(world.answered, 25.0, 60.0) >= 0.25 * world.rate
    assert world.per_second(world.answered, 210.0, 260.0) >= 0.9 * world.rate


@LATENCIES
def test_a_hanging_server_gets_few_attempts_before_the_first_timeout(exponential):
    """Some tens of attempts are in flight, not all calls until the timeout; afterwards it recovers."""
    world = World(6, rate=100, workers=20, service=0.05, exponential=exponential)
    world.at(20.0, hangs=True).at(40.0, hangs=False).run(70.0)
    # until it is noticed all that come are sent, for half a second; then nothing before the timeout
    assert world.per_second(world.sent, 20.0, 20.0 + TIMEOUT) * TIMEOUT <= 0.5 * world.rate + INITIAL_LIMIT
    assert world.per_second(world.sent, 20.0 + TIMEOUT, 40.0) <= 0.05 * world.rate
    assert world.per_second(world.answered, 60.0, 70.0) == pytest.approx(world.rate, rel=0.1)
    assert world.limiter.state == "calm"


@LATENCIES
def test_processes_that_share_a_server_keep_its_queue_short(exponential):
    """Ten independent ones, on half of the workers: none takes the others' queue for the baseline."""
    hub = Hub(1, clients=10, rate=16, workers=20, service=0.1, exponential=exponential)
    hub.at(20.0, workers=10).run(80.0)
    answered = [world.per_second(world.answered, 30.0, 80.0) for world in hub.worlds]
    assert sum(answered) >= 95
    assert min(answered) >= 4, "a share for each caller"
    assert sum(len(world.failed) for world in hub.worlds) == 0
    assert len(hub.server.line) <= 8 * len(hub.worlds)
