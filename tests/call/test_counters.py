"""Call counters of policies: totals survive the policies, in any thread and at any time."""

import gc
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from abate.call import counters
from abate.call.counters import OTHER, CallCounter, CallCounts, TotalsByName

NAMES = st.sampled_from(["orders", "mail"])


def counted(counter, good=0, bad=0, open_=0):
    """Count some calls."""
    for _ in range(good + bad + open_):
        counter.begun.add()
    for _ in range(good):
        counter.good.add()
    for _ in range(bad):
        counter.bad.add()


class Rolls(RuleBasedStateMachine):
    """Counters are created, count and are dropped; the totals are read in between."""

    tallies = Bundle("tallies")

    def __init__(self):
        super().__init__()
        self.call_totals = TotalsByName()
        self.ended = {}

    @rule(target=tallies, name=NAMES)
    def start_counting(self, name):
        self.ended.setdefault(name, (0, 0))
        held = [CallCounter(name)]
        self.call_totals.track(held[0])
        return held

    @rule(held=tallies, good=st.integers(0, 3), bad=st.integers(0, 3))
    def count(self, held, good, bad):
        counted(held[0], good, bad)
        before = self.ended[held[0].name]
        self.ended[held[0].name] = before[0] + good, before[1] + bad

    @rule(held=consumes(tallies), in_a_circle=st.booleans())
    def stop_counting(self, held, in_a_circle):
        """Drop the last reference, or leave it to the garbage collector."""
        if in_a_circle:
            circle = [held.pop()]
            circle.append(circle)
            del circle
            gc.collect()
        else:
            held.clear()

    @rule()
    def many_go_at_once(self):
        """Drop more counters than are kept before they are summed, without reading the totals."""
        for _ in range(counters.MAX_DEAD + 1):
            brief = CallCounter("brief")
            self.call_totals.track(brief)
            counted(brief, good=1)
        good, bad = self.ended.get("brief", (0, 0))
        self.ended["brief"] = good + counters.MAX_DEAD + 1, bad
        del brief
        self.call_totals.track(CallCounter("brief"))
        assert len(self.call_totals._dead) <= counters.MAX_DEAD

    @invariant()
    def look(self):
        found = self.call_totals.totals()
        for name, (good, bad) in self.ended.items():
            assert found.get(name, CallCounts(0, 0, 0)) == CallCounts(good + bad, good, bad)


TestRolls = Rolls.TestCase
TestRolls.settings = settings(stateful_step_count=12, max_examples=40)


def test_calls_in_flight_have_begun():
    """They count as begun as long as their policy exists."""
    call_totals, orders = TotalsByName(), CallCounter("orders")
    call_totals.track(orders)
    counted(orders, good=2, open_=1)
    assert call_totals.totals() == {"orders": CallCounts(3, 2, 0)}


def test_many_names_are_merged(monkeypatch):
    """With a name per request nothing is lost, memory is bounded, and live policies keep their own entry."""
    monkeypatch.setattr(counters, "MAX_NAMES", 100)
    call_totals, first = TotalsByName(), CallCounter("first")
    call_totals.track(first)
    counted(first, good=1)
    for number in range(149):
        brief = CallCounter(f"request-{number}")
        call_totals.track(brief)
        counted(brief, good=1)
    del brief
    found = call_totals.totals()
    assert found[OTHER] == CallCounts(50, 50, 0)
    assert len(found) == 101
    del first
    assert call_totals.totals() == found
    assert not call_totals._refs


def test_threads_drop_counters_while_others_read_totals():
    """Each count is included once in the end, and the totals never exceed the truth."""
    call_totals, each, seen = TotalsByName(), 300, []
    over = threading.Event()

    def work():
        for _ in range(each):
            brief = CallCounter("brief")
            call_totals.track(brief)
            counted(brief, good=1)

    def look():
        while not over.is_set():
            seen.append(call_totals.totals().get("brief", CallCounts(0, 0, 0)).good)

    workers = [threading.Thread(target=work) for _ in range(3)]
    watcher = threading.Thread(target=look)
    for thread in (watcher, *workers):
        thread.start()
    for thread in workers:
        thread.join(30)
    over.set()
    watcher.join(30)
    assert call_totals.totals()["brief"].good == 3 * each
    assert max(seen, default=0) <= 3 * each


def test_reentrant_totals_are_the_last_known():
    """Reading totals while this thread sums dropped counters returns the rest."""
    call_totals, counter, seen = TotalsByName(), CallCounter("orders"), []
    call_totals.track(counter)
    counter.begun.add()
    counter.good.add()
    call_totals._section.call(lambda: seen.append(call_totals.totals()), otherwise=lambda: None)
    assert seen == [{"orders": CallCounts(1, 1, 0)}]
