"""Queues of keys beside a slow and obvious model: every operation has the same result, and no key starves."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.work import QueueFull, ShutDown, WorkQueue, key_failures, key_queue


class Doubling:
    """A backoff without chance: 1, 2, 4, 8, 8, ..."""

    jittered = False

    def delay(self, retry, rng, previous=None):
        return self.ceiling(retry)

    def ceiling(self, retry):
        return min(8.0, 2.0 ** (retry - 1))


KEYS = st.sampled_from("abcdefgh")
PRIORITIES = st.sampled_from([0, 0, 1, 2, 5, 9])
SECONDS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0, 2.0, 4.0])
FAILURES = 3
MAX_STALE = 2
FAIRNESS_TURNS = 3


class Model:
    """What a queue of keys promises, in lists that are searched from end to end."""

    def __init__(self, capacity, rate, burst):
        self.capacity, self.rate, self.burst = capacity, rate, burst
        self.ready = []  # key, priority, since; in the order in which they came to their priority
        self.line = []  # the same keys in the order in which they became ready
        self.patience = {}  # of each of them, by how many younger ones it may still be overtaken
        self.hand = []
        self.again = []  # key, priority
        self.later = []  # key, instant, priority
        self.failures = []  # key, how many; who failed last is last
        self.tokens, self.filled = burst, 0.0
        self.adds = self.coalesced = self.cancelled = self.taken = 0
        self.closed = False

    def find(self, where, key):
        return next((item for item in where if item[0] == key), None)

    def drop(self, where, key):
        where[:] = [item for item in where if item[0] != key]

    def push(self, key, priority, now):
        self.ready.append((key, priority, now))
        self.line.append(key)
        self.patience[key] = (FAIRNESS_TURNS - 1) * len(self.line)

    def promote_due(self, now):
        for key, at, priority in sorted(self.later, key=lambda item: item[1]):
            if at <= now:
                self.drop(self.later, key)
                if key in self.hand:
                    self.again.append((key, priority))
                else:
                    self.push(key, priority, at)

    def count(self, key):
        """An add that is not refused: was the key waiting?"""
        if self.closed:
            raise ShutDown
        waiting = any(self.find(where, key) for where in (self.ready, self.later, self.again))
        size = len(self.ready) + len(self.later) + len(self.again)
        if not waiting and key not in self.hand and self.capacity is not None and size >= self.capacity:
            raise QueueFull
        self.adds += 1
        self.coalesced += waiting

    def add(self, key, now, priority):
        # an add that changes nothing looks at nothing: due keys are made ready by the next operation that looks
        if not self.closed and (priority or not self.find(self.ready, key)):
            self.promote_due(now)
        self.count(key)
        known = self.find(self.ready, key)
        if known:
            if priority > known[1]:
                self.drop(self.ready, key)
                self.ready.append((key, priority, known[2]))
            return
        others = [item[-1] for item in (self.find(self.later, key), self.find(self.again, key)) if item]
        self.drop(self.later, key)
        self.drop(self.again, key)
        highest = max([priority, *others])
        if key in self.hand:
            self.again.append((key, highest))
        else:
            self.push(key, highest, now)

    def add_after(self, key, seconds, now, priority):
        if seconds <= 0:
            if not self.closed:
                self.promote_due(now)
            self.add(key, now, priority)
            return
        self.count(key)
        planned = self.find(self.later, key)
        if self.find(self.ready, key) or self.find(self.again, key) or (planned and planned[1] <= now + seconds):
            return
        self.drop(self.later, key)
        self.later.append((key, now + seconds, priority))

    def add_rate_limited(self, key, now, priority, least):
        if self.closed:
            raise ShutDown
        known = self.find(self.failures, key)
        failed = (known[1] if known else 0) + 1
        self.drop(self.failures, key)
        self.failures = [*self.failures, (key, failed)][-FAILURES:]
        delay = max(least, Doubling().delay(failed, None))
        if self.rate is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.filled) * self.rate) - 1
            self.filled = now
            delay = max(delay, -self.tokens / self.rate)
        self.add_after(key, delay, now, priority)
        return delay

    def cancel(self, key):
        planned = self.find(self.later, key) is not None
        self.drop(self.later, key)
        self.cancelled += planned
        return planned

    def done(self, key, now):
        self.hand.remove(key)
        back = self.find(self.again, key)
        if back:
            self.promote_due(now)
            self.drop(self.again, key)
            self.push(key, back[1], now)

    def shutdown(self, now):
        self.promote_due(now)
        self.cancelled += len(self.later)
        self.later.clear()
        self.closed = True

    def first_of_the_highest(self):
        highest = max(item[1] for item in self.ready)
        return next(item[0] for item in self.ready if item[1] == highest)

    def take(self, key):
        for overtaken in self.line[: self.line.index(key)]:
            self.patience[overtaken] -= 1
        self.drop(self.ready, key)
        self.line.remove(key)
        self.hand.append(key)
        self.taken += 1


class BesideTheModel(RuleBasedStateMachine):
    """Whatever is done to a queue, it answers as the model does."""

    def __init__(self):
        super().__init__()
        self.before = key_failures.MAX_FAILURES, key_queue.MAX_STALE, key_queue.FAIRNESS_TURNS
        key_failures.MAX_FAILURES, key_queue.MAX_STALE, key_queue.FAIRNESS_TURNS = FAILURES, MAX_STALE, FAIRNESS_TURNS
        self.now = 0.0
        self.passed_over = 0

    def teardown(self):
        key_failures.MAX_FAILURES, key_queue.MAX_STALE, key_queue.FAIRNESS_TURNS = self.before

    @initialize(
        capacity=st.sampled_from([None, None, 3, 1]), rate=st.sampled_from([None, 2.0]), burst=st.integers(1, 3)
    )
    def start(self, capacity, rate, burst):
        self.front = WorkQueue(capacity, Doubling(), rate, burst, clock=lambda: self.now)
        self.queue = self.front._keys
        self.model = Model(capacity, rate, burst)

    def same(self, ours, model):
        """Do the same to the two: the same answer, or the same refusal."""
        answers = []
        for call in (ours, model):
            try:
                answers.append(call())
            except (QueueFull, ShutDown) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key, priority):
        self.same(lambda: self.front.add(key, priority), lambda: self.model.add(key, self.now, priority))

    @rule(key=KEYS, seconds=SECONDS, priority=PRIORITIES)
    def add_after(self, key, seconds, priority):
        self.same(
            lambda: self.front.add_after(key, seconds, priority),
            lambda: self.model.add_after(key, seconds, self.now, priority),
        )

    @rule(key=KEYS, priority=PRIORITIES, least=st.sampled_from([0.0, 0.0, 3.0]))
    def add_rate_limited(self, key, priority, least):
        self.same(
            lambda: self.front.add_rate_limited(key, priority, least=least),
            lambda: self.model.add_rate_limited(key, self.now, priority, least),
        )

    @rule(key=KEYS)
    def cancel(self, key):
        self.same(lambda: self.front.cancel(key), lambda: self.model.cancel(key))

    @rule(key=KEYS)
    def forget(self, key):
        self.front.forget(key)
        self.model.drop(self.model.failures, key)

    @rule(most=st.sampled_from([0, 1, 1, 2, 3, 12]))
    def take(self, most):
        taken = self.front.take(most)
        self.model.promote_due(self.now)
        assert len(taken) == min(most, len(self.model.ready))
        for key in taken:
            assert key not in self.model.hand, "in two hands"
            oldest = self.model.line[0]
            assert key in (oldest, self.model.first_of_the_highest()), "neither first of the highest nor the oldest"
            self.passed_over = 0 if key == oldest else self.passed_over + 1
            assert self.passed_over < FAIRNESS_TURNS
            self.model.take(key)

    @precondition(lambda self: self.model.hand)
    @rule(data=st.data())
    def done(self, data):
        key = data.draw(st.sampled_from(sorted(self.model.hand)))
        self.front.done(key)
        self.model.done(key, self.now)

    @rule(key=KEYS)
    def done_with_what_is_not_in_hand(self, key):
        if key not in self.model.hand:
            with pytest.raises(ValueError, match="is not in hand"):
                self.front.done(key)

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def age(self):
        self.model.promote_due(self.now)
        oldest = min((item[2] for item in self.model.ready), default=self.now)
        assert self.front.age() == self.now - oldest

    @rule(chance=st.integers(0, 9))
    def shutdown(self, chance):
        if chance == 9:
            self.front.shutdown()
            self.model.shutdown(self.now)

    @invariant()
    def the_same_keys_are_there(self):
        if not hasattr(self, "queue"):
            return
        queue, model = self.queue, self.model
        assert sorted(queue.keys()) == sorted(item[0] for item in model.ready)
        assert len(self.front) == len(model.ready)
        assert queue.in_hand == set(model.hand)
        assert self.front.delayed == len(model.later)
        assert self.front.next_due() == min((item[1] for item in model.later), default=None)
        failures = dict(model.failures)
        assert all(self.front.requeues(key) == failures.get(key, 0) for key in "abcdefgh")

    @invariant()
    def every_add_is_accounted_for(self):
        if not hasattr(self, "queue"):
            return
        model = self.model
        assert (self.front.adds, self.front.coalesced) == (model.adds, model.coalesced)
        waiting = len(model.ready) + len(model.later) + len(model.again)
        assert self.front.adds - self.front.coalesced == model.taken + model.cancelled + waiting

    @invariant()
    def nobody_starves(self):
        if hasattr(self, "queue"):
            assert all(self.model.patience[key] >= 0 for key in self.model.line)

    @invariant()
    def little_is_kept_of_what_is_gone(self):
        if hasattr(self, "queue"):
            queue = self.queue
            lanes = sum(map(len, queue._lanes.values()))
            assert len(queue._line) + lanes == len(queue) + len(queue._priority) + queue._stale
            assert queue._stale <= len(queue) + MAX_STALE
            assert sorted(queue._lanes) == queue._priorities
            assert all(queue._lanes.values())
            assert len(queue._due_keys) == len(queue.later)
            assert len(queue._failures) <= FAILURES


TestBesideTheModel = BesideTheModel.TestCase
TestBesideTheModel.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)
