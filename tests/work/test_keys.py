"""The key queue without waiting: beside a slow and obvious model, and the bounds of what it keeps."""

import doctest

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.work import KeyQueue, QueueFull, keys


class Doubling:
    """A backoff without chance: 1, 2, 4, 8, 8, ..."""

    jittered = False

    def delay(self, retry, rng, previous=None):
        return self.ceiling(retry)

    def ceiling(self, retry):
        return min(8.0, 2.0 ** (retry - 1))


KEYS = st.sampled_from("abcdef")
PRIORITIES = st.sampled_from([0, 0, 1, 2, 5, 9])
SECONDS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0, 2.0, 4.0])
FAILURES = 3
SLACK = 2


class Model:
    """What a key queue promises, in lists that are searched from end to end."""

    def __init__(self, capacity, rate, burst):
        self.capacity, self.rate, self.burst = capacity, rate, burst
        self.ready = []  # key, priority, since; in the order in which they came to their priority
        self.hand = []
        self.again = []  # key, priority
        self.later = []  # key, instant, priority
        self.failures = []  # key, how many; who failed last is last
        self.tokens, self.filled = burst, 0.0

    def find(self, where, key):
        return next((item for item in where if item[0] == key), None)

    def drop(self, where, key):
        where[:] = [item for item in where if item[0] != key]

    def full(self):
        return self.capacity is not None and len(self.ready) + len(self.later) + len(self.again) >= self.capacity

    def ripen(self, now):
        ripe = [item for item in sorted(self.later, key=lambda item: item[1]) if item[1] <= now]
        for key, at, priority in ripe:
            self.drop(self.later, key)
            if key in self.hand:
                self.again.append((key, priority))
            else:
                self.ready.append((key, priority, at))
        return sum(key not in self.hand for key, _, _ in ripe)

    def add(self, key, now, priority):
        self.ripen(now)
        known = self.find(self.ready, key)
        if known:
            if priority > known[1]:
                self.drop(self.ready, key)
                self.ready.append((key, priority, known[2]))
            return False
        others = [item[-1] for item in (self.find(self.later, key), self.find(self.again, key)) if item]
        if key not in self.hand and not others and self.full():
            raise QueueFull
        self.drop(self.later, key)
        self.drop(self.again, key)
        highest = max([priority, *others])
        if key in self.hand:
            self.again.append((key, highest))
        else:
            self.ready.append((key, highest, now))
        return True

    def add_after(self, key, seconds, now, priority):
        if seconds <= 0:
            return self.add(key, now, priority)
        planned = self.find(self.later, key)
        if self.find(self.ready, key) or self.find(self.again, key) or (planned and planned[1] <= now + seconds):
            return False
        if not planned and key not in self.hand and self.full():
            raise QueueFull
        self.drop(self.later, key)
        self.later.append((key, now + seconds, priority))
        return True

    def done(self, key, now):
        self.hand.remove(key)
        back = self.find(self.again, key)
        if back is None:
            return False
        self.ripen(now)
        self.drop(self.again, key)
        self.ready.append((key, back[1], now))
        return True

    def next_delay(self, key, now):
        known = self.find(self.failures, key)
        failed = (known[1] if known else 0) + 1
        self.drop(self.failures, key)
        self.failures = [*self.failures, (key, failed)][-FAILURES:]
        own = Doubling().delay(failed, None)
        if self.rate is None:
            return own
        self.tokens = min(self.burst, self.tokens + (now - self.filled) * self.rate) - 1
        self.filled = now
        return max(own, -self.tokens / self.rate)

    def heads(self):
        """Of each priority the key that came to it first, the highest priority first."""
        lanes = sorted({item[1] for item in self.ready}, reverse=True)
        return [next(item for item in self.ready if item[1] == lane) for lane in lanes]


class BesideTheModel(RuleBasedStateMachine):
    """Whatever is done to a queue, it answers as the model does."""

    def __init__(self):
        super().__init__()
        self.before = keys.MOST_FAILURES, keys.SLACK
        keys.MOST_FAILURES, keys.SLACK = FAILURES, SLACK
        self.now = 0.0
        self.passed_over = 0

    def teardown(self):
        keys.MOST_FAILURES, keys.SLACK = self.before

    @initialize(
        capacity=st.sampled_from([None, None, 3, 1]), rate=st.sampled_from([None, 2.0]), burst=st.integers(1, 3)
    )
    def start(self, capacity, rate, burst):
        self.queue = KeyQueue(capacity, Doubling(), rate, burst)
        self.model = Model(capacity, rate, burst)

    def both(self, method, *args):
        """Do the same to the two: the same answer, or the same refusal."""
        answers = []
        for one in (self.queue, self.model):
            try:
                answers.append(getattr(one, method)(*args))
            except QueueFull:
                answers.append(QueueFull)
        assert answers[0] == answers[1], (method, args)

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key, priority):
        self.both("add", key, self.now, priority)

    @rule(key=KEYS, seconds=SECONDS, priority=PRIORITIES)
    def add_after(self, key, seconds, priority):
        self.both("add_after", key, seconds, self.now, priority)

    @rule(key=KEYS)
    def cancel(self, key):
        planned = self.model.find(self.model.later, key)
        self.model.drop(self.model.later, key)
        assert self.queue.cancel(key) is (planned is not None)

    @rule(key=KEYS)
    def fail(self, key):
        assert self.queue.next_delay(key, self.now, None) == self.model.next_delay(key, self.now)

    @rule(key=KEYS)
    def forget(self, key):
        self.queue.forget(key)
        self.model.drop(self.model.failures, key)

    @rule()
    def take(self):
        heads = self.model.heads()
        key = self.queue.take()
        if not heads:
            assert key is None
            return
        oldest = min(head[2] for head in heads)
        taken = self.model.find(heads, key)
        assert taken is not None, "not the first of its priority"
        assert taken == heads[0] or taken[2] == oldest, "neither of the highest priority nor the oldest"
        self.passed_over = 0 if taken[2] == oldest else self.passed_over + 1
        assert self.passed_over < keys.TURNS
        assert key not in self.model.hand, "in two hands"
        self.model.drop(self.model.ready, key)
        self.model.hand.append(key)

    @rule(times=st.integers(1, 12))
    def take_many(self, times):
        for _ in range(times):
            self.take()

    @precondition(lambda self: self.model.hand)
    @rule(data=st.data())
    def done(self, data):
        key = data.draw(st.sampled_from(sorted(self.model.hand)))
        self.both("done", key, self.now)

    @rule(key=KEYS)
    def done_with_what_is_not_in_hand(self, key):
        if key not in self.model.hand:
            with pytest.raises(ValueError, match="is not in hand"):
                self.queue.done(key, self.now)

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def ripen(self):
        self.both("ripen", self.now)

    @rule()
    def cancel_all(self):
        self.queue.cancel_all()
        self.model.later.clear()

    @invariant()
    def the_same_keys_are_there(self):
        if not hasattr(self, "queue"):
            return
        queue, model = self.queue, self.model
        assert sorted(queue.keys()) == sorted(item[0] for item in model.ready)
        assert len(queue) == len(model.ready)
        assert queue.in_hand == set(model.hand)
        assert sorted((key, due[0]) for key, due in queue.later.items()) == sorted(item[:2] for item in model.later)
        assert queue.next_due() == min((item[1] for item in model.later), default=None)
        assert queue.oldest() == min((item[2] for item in model.ready), default=None)
        failures = dict(model.failures)
        assert all(queue.requeues(key) == failures.get(key, 0) for key in "abcdef")

    @invariant()
    def little_is_kept_of_what_is_gone(self):
        if hasattr(self, "queue"):
            places = sum(map(len, self.queue._lanes.values()))
            assert places == len(self.queue) + self.queue._dead <= 2 * len(self.queue) + SLACK
            assert len(self.queue._due) <= 2 * len(self.queue.later) + SLACK
            assert len(self.queue._failures) <= FAILURES


TestBesideTheModel = BesideTheModel.TestCase
TestBesideTheModel.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)


def take_all(queue):
    return [queue.take() for _ in range(len(queue))]


def test_a_key_waits_once_however_often_it_is_added():
    """And in its first place."""
    queue = KeyQueue()
    assert [queue.add(key, 0.0) for key in "abaab"] == [True, True, False, False, False]
    assert take_all(queue) == ["a", "b"]


def test_a_key_that_is_added_while_in_hand_comes_back_once():
    """After done, at the end of the line, however often it was added."""
    queue = KeyQueue()
    for key in "ab":
        queue.add(key, 0.0)
    assert queue.take() == "a"
    for _ in range(3):
        queue.add("a", 1.0)
    assert (queue.take(), queue.take()) == ("b", None)
    assert queue.done("a", 2.0)
    assert (queue.take(), queue.oldest()) == ("a", None)
    assert not queue.done("a", 3.0)
    assert queue.take() is None


def test_a_low_priority_gets_one_turn_of_eight():
    """Though there is always another of a higher one."""
    queue = KeyQueue()
    for n in range(3):
        queue.add(f"low{n}", 0.0)
    taken = []
    for n in range(24):
        queue.add(f"high{n}", 1.0 + n, priority=5)
        queue.add(f"top{n}", 1.0 + n, priority=9)
        taken.append(queue.take())
    assert [taken.index(f"low{n}") for n in range(3)] == [7, 15, 23]


def test_a_raised_key_keeps_its_age():
    """It moves to the end of its new priority, and is as old as it was."""
    queue = KeyQueue()
    queue.add("a", 1.0)
    queue.add("b", 2.0, priority=1)
    queue.add("a", 3.0, priority=1)
    assert queue.oldest() == 1.0
    queue.add("a", 4.0)  # a lower one changes nothing
    assert take_all(queue) == ["b", "a"]


def test_the_priority_of_a_delayed_key_is_kept_when_it_is_added():
    """Of two priorities the higher counts; also for one that is in hand."""
    queue = KeyQueue()
    queue.add("held", 0.0)
    queue.take()
    for key in ("held", "free"):
        queue.add_after(key, 10.0, 0.0, priority=3)
    queue.add("other", 1.0, priority=2)
    queue.add("free", 1.0)
    queue.add("held", 1.0)
    assert (queue.take(), queue.done("held", 1.0), queue.take(), queue.take()) == ("free", True, "held", "other")


def test_a_key_in_hand_is_not_counted_twice():
    """One that was to come later and is added meanwhile takes one place."""
    queue = KeyQueue(capacity=2)
    queue.add("a", 0.0)
    queue.take()
    queue.add_after("a", 5.0, 0.0)
    queue.add("a", 0.0)
    assert not queue.add_after("a", 1.0, 0.0)
    queue.add("b", 0.0)
    with pytest.raises(QueueFull, match="the queue holds 2 keys, and no more"):
        queue.add_after("c", 1.0, 0.0)


def test_a_key_that_is_in_hand_is_never_refused():
    """Its worker could do nothing about it: what was added would be lost."""
    queue = KeyQueue(capacity=1)
    queue.add("a", 0.0)
    queue.take()
    queue.add("b", 0.0)
    assert queue.add("a", 0.0)
    assert queue.done("a", 0.0)
    assert len(queue) == 2


def test_what_came_due_before_goes_before():
    """Though nobody had looked when another was added."""
    queue = KeyQueue()
    queue.add_after("due", 1.0, 0.0)
    queue.add("added", 5.0)
    assert queue.oldest() == 1.0
    assert take_all(queue) == ["due", "added"]


def test_who_failed_longest_ago_is_forgotten_first(monkeypatch):
    """The failures of a bounded number of keys are counted."""
    monkeypatch.setattr(keys, "MOST_FAILURES", 2)
    queue = KeyQueue(backoff=Doubling())
    assert [queue.next_delay(key, 0.0, None) for key in "abac"] == [1.0, 1.0, 2.0, 1.0]
    assert [queue.requeues(key) for key in "abc"] == [2, 0, 1]


def test_without_backoff_only_the_rate_delays():
    """The burst goes at once, then one per token; after a pause the burst is there again, and no more."""
    queue = KeyQueue(rate=2.0, burst=2)
    assert [queue.next_delay(n, 10.0, None) for n in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert [queue.next_delay(n, 100.0, None) for n in range(3)] == [0.0, 0.0, 0.5]
    assert KeyQueue().next_delay("a", 0.0, None) == 0.0


def test_nothing_is_left_of_many_raises():
    """A key that is raised a thousand times, or a thousand that are raised once and taken."""
    queue = KeyQueue()
    for priority in range(1000):
        queue.add("a", 0.0, priority)
        assert sum(map(len, queue._lanes.values())) <= 2 + keys.SLACK
        assert len(queue._lanes) <= 4 + keys.SLACK
    for n in range(1000):
        queue.add(n, 0.0)
        queue.add(n, 0.0, priority=1)
    while queue.take() is not None:
        assert sum(map(len, queue._lanes.values())) <= 2 * len(queue) + keys.SLACK


def test_nothing_is_left_of_raises_when_the_last_key_is_taken():
    """An idle queue keeps little, too."""
    queue = KeyQueue()
    for priority in range(keys.SLACK + 2):
        queue.add("a", 0.0, priority)
    assert sum(map(len, queue._lanes.values())) == keys.SLACK + 2
    assert queue.take() == "a"
    assert sum(map(len, queue._lanes.values())) == 0


def test_lanes_of_unused_priorities_go():
    """Whether they rise or fall, whoever empties them."""
    for priorities in (range(1, 1000), range(1000, 0, -1)):
        queue = KeyQueue()
        for priority in priorities:
            queue.add("a", 0.0, priority)
            queue.add("b", 0.0, priority)
            for _ in range(2):
                queue.done(queue.take(), 0.0)
            assert len(queue._lanes) == len(queue._priorities) <= 4


def test_nothing_is_left_of_many_cancelled_delays():
    """Also at one instant, and of a thousand that are cancelled at the end."""
    queue = KeyQueue()
    for _ in range(1000):
        queue.add_after("a", 1.0, 0.0)
        queue.cancel("a")
        assert len(queue._due) <= 2 + keys.SLACK
    for n in range(1000):
        queue.add_after(n, 1.0, 0.0)
    for n in range(1000):
        assert queue.cancel(n) if n % 2 else queue.add(n, 0.0)
        assert len(queue._due) <= 2 * len(queue.later) + keys.SLACK


def test_a_cancelled_delay_leaves_no_priority():
    """A later one for the same instant has its own."""
    queue = KeyQueue()
    queue.add_after("a", 1.0, 0.0, priority=9)
    queue.cancel("a")
    queue.add_after("a", 1.0, 0.0)
    queue.add_after("b", 1.0, 0.0, priority=1)
    queue.ripen(1.0)
    assert take_all(queue) == ["b", "a"]


def test_an_entry_of_no_lane_is_noticed():
    """Rather than a worker that is handed nothing."""
    queue = KeyQueue()
    queue.add("a", 0.0, priority=1)
    queue._lanes[1].clear()
    with pytest.raises(AssertionError, match="in no lane"):
        queue.take()


def test_the_examples_are_true():
    """Those in the documentation."""
    assert doctest.testmod(keys).failed == 0
