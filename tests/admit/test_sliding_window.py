"""A count over a sliding window, against a model that keeps every event."""

from math import floor, inf, nextafter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit.sliding_window import MAX_PER_SLOT, NO_COUNTS, SLOTS, SlidingWindow

SECONDS = st.sampled_from([0.001, 0.3, 1.0, 7.0, 10.0, 33.3, 120.0])
STARTS = st.sampled_from([0.0, 0.1, 1e5, 86400.0 * 365, -3.0])


class AgainstEvents(RuleBasedStateMachine):
    """The model keeps every count with its slot, in a dict; counts older than the window are dropped."""

    @initialize(seconds=SECONDS, start=STARTS)
    def begin(self, seconds, start):
        self.seconds, self.now = seconds, start
        self.window = SlidingWindow(seconds, start)
        self.counts = {}

    @property
    def slot(self):
        return floor(self.now / (self.seconds / SLOTS))

    @rule(count=st.integers(0, 5))
    def add(self, count):
        self.window.add(count)
        self.counts[self.slot] = self.counts.get(self.slot, 0) + count

    @rule()
    def clear(self):
        self.window.clear()
        self.counts = {}

    @rule()
    def take_back(self):
        self.window.take_back()
        counted = [slot for slot, count in self.counts.items() if count]
        if counted:
            self.counts[max(counted)] -= 1

    @rule(slots=st.one_of(st.integers(1, 3), st.floats(0, 3), st.integers(0, SLOTS), st.floats(0, 2.5 * SLOTS)))
    def roll(self, slots):
        before = self.slot
        self.now += slots * self.seconds / SLOTS
        assert self.window.roll(self.now) == self.slot - before
        self.counts = {slot: count for slot, count in self.counts.items() if slot > self.slot - SLOTS}

    @rule(seconds=st.floats(0, 100))
    def roll_back(self, seconds):
        """A clock that goes back opens no slot and drops nothing."""
        assert self.window.roll(self.now - seconds) == 0

    @precondition(lambda self: self.counts)
    @rule(wrong=st.integers(-9, 9))
    def recount(self, wrong):
        """A total that was left inconsistent is repaired."""
        self.window.total += wrong
        self.window.recount()

    @invariant()
    def the_same_is_counted(self):
        assert self.window.total == sum(self.counts.values())
        assert self.window.latest == self.counts.get(self.slot, 0)
        assert self.now < self.window.end


TestAgainstEvents = AgainstEvents.TestCase
TestAgainstEvents.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


@settings(deadline=None, max_examples=300)
@given(seconds=SECONDS, slot=st.integers(-1000, 10**9))
def test_the_end_is_the_first_instant_of_the_next_slot(seconds, slot):
    """The end and the division agree to the last digit, so nothing is counted in a slot that has ended."""
    width = seconds / SLOTS
    window = SlidingWindow(seconds, (slot + 0.5) * width)
    opened = floor((slot + 0.5) * width / width)
    assert floor(window.end / width) > opened
    assert floor(nextafter(window.end, -inf) / width) == opened


@settings(deadline=None, max_examples=200)
@given(start=st.floats(0, 1e4), age=st.floats(0, 20))
def test_an_event_expires_at_most_one_slot_early_and_never_late(start, age):
    """It counts until one slot before the end of the window, and no longer than the window."""
    window = SlidingWindow(10.0, start)
    window.add(1)
    window.roll(start + age)
    # sums of floats have rounding errors
    if age < 10.0 - 10.0 / 50 - 1e-6:
        assert window.total == 1
    elif age > 10.0 + 1e-6:
        assert window.total == 0


@settings(deadline=None, max_examples=200)
@given(
    steps=st.lists(st.tuples(st.integers(1, SLOTS // 3), st.integers(1, 3)), min_size=1, max_size=12),
    taken=st.integers(0, 12),
)
def test_removals_take_the_newest_counts_and_the_rest_expires_by_slot(steps, taken):
    """The remaining counts of each slot expire with their own slot."""
    window, slot, events = SlidingWindow(SLOTS, 0.5), 0, []
    for ahead, count in steps:
        slot += ahead
        assert window.roll(slot + 0.5) == ahead
        window.add(count)
        events = [event for event in events if event > slot - SLOTS] + [slot] * count
    for _ in range(taken):
        window.take_back()
        events = events[:-1]
    for later in range(slot, slot + SLOTS + 1):
        window.roll(later + 0.5)
        assert window.total == sum(event > later - SLOTS for event in events)
    assert window.total == 0


def test_a_slot_is_a_fiftieth_of_the_window():
    """The first slot of a window of fifty seconds ends after a second."""
    assert SlidingWindow(50.0, 0.0).end == 1.0


def test_an_empty_window_allocates_no_ring():
    """Neither before the first count, nor after a count of zero, nor when a whole window has passed."""
    window = SlidingWindow(50.0, 0.0)
    window.add(0)
    assert window._ring is NO_COUNTS
    window.add(1)
    assert window._ring is not NO_COUNTS
    window.roll(50.0)
    assert window._ring is NO_COUNTS


def test_a_slot_stops_counting_at_its_maximum():
    """An overflow is dropped instead of raised in the middle of a call."""
    window = SlidingWindow(10.0, 0.0)
    window.add(2**32 - 2)
    window.add(5)
    assert window.total == window.latest == MAX_PER_SLOT == 2**32 - 1
    window.roll(10.0 / SLOTS)
    window.add(5)
    assert window.total == MAX_PER_SLOT + 5
