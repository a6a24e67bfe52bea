"""What a queue promises, in a list that is searched from end to end; and the rules that do the same to both."""

from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.stores import Depth, open_store
from abate.testing import VirtualClock
from abate.work import QueueFull
from abate.work.key_queue import FAIRNESS_TURNS
from abate.work.source import Back, Bury, Done

LEASE = 4.0
KEYS = st.sampled_from("abc")
PRIORITIES = st.sampled_from([0, 0, 0, 1, 7])
SECONDS = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 5.0])


class Item:
    """One key, in one of three states. Its due is when it is ready, when its lease ends, or when it died."""

    def __init__(self, key, body, priority, due):
        self.key, self.body, self.priority, self.due = key, body, priority, due
        self.state, self.receives, self.token, self.again = "waiting", 0, None, None
        self.unanswered = 0

    def merge(self):
        """What was added while it was leased is what there is."""
        if self.again is not None:
            self.body, self.again = self.again.body, None


class Model:
    """A queue."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []

    def find(self, key):
        return next((item for item in self.items if item.key == key), None)

    def alive(self):
        return [item for item in self.items if item.state != "dead"]

    def leased(self, now):
        return [item for item in self.items if item.state == "leased" and item.due > now]

    def ready(self, now):
        return [item for item in self.alive() if item.due <= now]

    def depth(self, now):
        ready, leased = self.ready(now), self.leased(now)
        return Depth(
            ready=len(ready),
            delayed=len(self.alive()) - len(ready) - len(leased),
            leased=len(leased),
            dead=len(self.items) - len(self.alive()),
            age=max((now - item.due for item in ready), default=None),
        )

    def add(self, key, body, priority, after, now):
        item = self.find(key)
        added = Item(key, body, priority, now + after)
        if item is None or item.state == "dead":
            if self.capacity is not None and len(self.alive()) - len(self.leased(now)) >= self.capacity:
                raise QueueFull
            self.items = [other for other in self.items if other is not item] + [added]
            return True
        item.priority, highest = max(item.priority, priority), priority
        if item in self.leased(now):
            new = item.again is None
            if not new:
                added.due, highest = min(added.due, item.again.due), max(highest, item.again.priority)
            added.priority, item.again = highest, added
            return new
        item.unanswered += item.state == "leased"
        item.state, item.token, item.again = "waiting", None, None
        item.body, item.due = body, min(item.due, now + after)
        return False

    def cancel(self, key, now):
        item = self.find(key)
        if item is None or item.due <= now or item.state == "dead":
            return False
        if item.state == "waiting":
            self.items.remove(item)
            return True
        if item.again is None or item.again.due <= now:
            return False
        item.again = None
        return True

    def next_ones(self, now):
        """The oldest that are ready, and the first ones of the highest priority."""
        ready = self.ready(now)
        since = min(item.due for item in ready)
        highest = [item for item in ready if item.priority == max(item.priority for item in ready)]
        first = min(item.due for item in highest)
        return [item for item in ready if item.due == since], [item for item in highest if item.due == first]

    def lease(self, item, token, now):
        item.merge()
        item.unanswered += item.state == "leased"
        item.state, item.due, item.token, item.receives = "leased", now + LEASE, token, item.receives + 1

    def holding(self, message, now):
        """The item that this message is of, if its lease holds."""
        item = self.find(message.key)
        return item if item in self.leased(now) and item.token == message.token else None

    def extend(self, message, now):
        item = self.holding(message, now)
        if item is not None:
            item.due = now + LEASE
        return item is not None

    def settle(self, message, verdict, now):
        item = self.holding(message, now)
        if item is None:
            return False
        again = item.again
        item.merge()
        back = None
        match verdict:
            case Done(None) if again is None:
                self.items.remove(item)
            case Bury() if again is None:
                item.state, item.due = "dead", now
            case Done(None) | Bury():
                item.priority, item.receives, back = again.priority, 0, max(now, again.due)
            case Done(after):
                item.receives, back = 0, now + after
            case Back(after, touched):
                item.receives, back = item.receives - (not touched), now + after
        if back is not None:
            if getattr(verdict, "touched", True):
                item.unanswered = 0
            item.state, item.token = "waiting", None
            item.due = back if again is None else min(back, max(now, again.due))
        return True

    def redrive(self, now):
        dead = [item for item in self.items if item.state == "dead"]
        for item in dead:
            item.state, item.due, item.receives, item.unanswered = "waiting", now, 0, 0
        return len(dead)

    def purge(self):
        before = len(self.items)
        self.items = self.alive()
        return before - len(self.items)


class BesideTheModel(RuleBasedStateMachine):
    """Whatever is done to a queue, it answers as the model does."""

    def __init__(self):
        super().__init__()
        self.clock = VirtualClock(start=1000.0)
        self.store = open_store(self.fresh_url(), clock=self.clock)
        self.handed_out = []
        self.bodies = 0
        self.passed_over = 0
        self.token = 0

    @staticmethod
    def fresh_url():
        raise NotImplementedError

    def teardown(self):
        self.store.close()

    @initialize(capacity=st.sampled_from([None, None, 1, 2]))
    def start(self, capacity):
        self.queue = self.store.queue("orders", lease=LEASE, capacity=capacity)
        self.model = Model(capacity)

    @property
    def now(self):
        return self.clock.wall()

    @rule(key=KEYS, priority=PRIORITIES, after=SECONDS)
    def add(self, key, priority, after):
        self.bodies += 1
        answers = []
        for add in (
            lambda: self.queue.add(key, str(self.bodies), priority=priority, after=after),
            lambda: self.model.add(key, str(self.bodies), priority, after, self.now),
        ):
            try:
                answers.append(add())
            except QueueFull:
                answers.append("full")
        assert answers[0] == answers[1]

    @rule(keys=st.lists(KEYS, max_size=4), priority=PRIORITIES, after=SECONDS)
    def add_many(self, keys, priority, after):
        """As if they were added one after the other, all or none."""
        messages = [(key, f"{self.bodies}.{place}") for place, key in enumerate(keys)]
        self.bodies += 1
        before = deepcopy(self.model.items)
        try:
            expected = [self.model.add(key, body, priority, after, self.now) for key, body in messages]
        except QueueFull:
            expected, self.model.items = "full", before
        try:
            answer = self.queue.add_many(messages, priority=priority, after=after)
        except QueueFull:
            answer = "full"
        assert answer == expected

    @rule(key=KEYS)
    def cancel(self, key):
        assert self.queue.cancel(key) == self.model.cancel(key, self.now)

    @rule(most=st.sampled_from([1, 1, 1, 2, 5]))
    def receive(self, most):
        """As many as are ready, each the highest or the oldest; the oldest is passed over seven times at most."""
        messages = self.queue.receive(most)
        assert len(messages) == min(most, len(self.model.ready(self.now)))
        for message in messages:
            oldest, highest = self.model.next_ones(self.now)
            item = self.model.find(message.key)
            assert item in oldest or item in highest
            self.passed_over = 0 if item in oldest else self.passed_over + 1
            assert self.passed_over < FAIRNESS_TURNS
            assert message.token > self.token
            self.token = message.token
            self.model.lease(item, message.token, self.now)
            assert (message.body, message.receives) == (item.body, item.receives)
            assert message.unanswered == item.unanswered
        self.handed_out = [*self.handed_out, *messages][-8:]

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def extend(self, data):
        message = data.draw(st.sampled_from(self.handed_out))
        assert (self.queue.extend([message]) == []) == self.model.extend(message, self.now)

    @precondition(lambda self: self.handed_out)
    @rule(
        data=st.data(),
        verdict=st.one_of(
            st.just(Done()),
            st.builds(Done, SECONDS),
            st.builds(Back, SECONDS, st.booleans()),
            st.just(Bury("permanent", "why")),
        ),
    )
    def settle(self, data, verdict):
        message = data.draw(st.sampled_from(self.handed_out))
        assert (self.queue.settle([(message, verdict)]) == []) == self.model.settle(message, verdict, self.now)

    @rule()
    def redrive(self):
        assert self.queue.redrive() == self.model.redrive(self.now)

    @rule()
    def purge(self):
        assert self.queue.purge() == self.model.purge()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def wait(self, seconds):
        """A receive that waits returns when the first message is ready, and no later."""
        dues = [item.due for item in self.model.alive() if item.due > self.now]
        due = self.now if self.model.ready(self.now) else min(dues, default=self.now + seconds)
        expected = min(due, self.now + seconds)
        messages = self.queue.receive(1, seconds)
        assert abs(self.now - expected) < 1e-3
        for message in messages:
            item = self.model.find(message.key)
            self.model.lease(item, message.token, self.now)
            self.token = message.token
            self.passed_over = 0
        self.handed_out = [*self.handed_out, *messages][-8:]

    @invariant()
    def holds_the_same(self):
        if hasattr(self, "model"):
            assert self.queue.depth() == self.model.depth(self.now)
            dead = {(item.key, item.body) for item in self.model.items if item.state == "dead"}
            assert {(letter.key, letter.body) for letter in self.queue.dead()} == dead
