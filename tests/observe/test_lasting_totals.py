"""Totals of objects that come and go: they add up by name, and never decrease."""

from weakref import WeakSet

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from abate.observe.lasting_totals import LastingTotals


class Counter:
    def __init__(self, name, tally):
        self.name, self.tally = name, tally


class Totals(RuleBasedStateMachine):
    """Counters are created, incremented and dropped, and totals are read after each step."""

    counters = Bundle("counters")

    def __init__(self):
        super().__init__()
        self.totals = LastingTotals(self.reading)
        self.readings = WeakSet()
        self.alive = []
        self.noticed = []
        self.shown = {}

    def reading(self, counter):
        tally = counter.tally

        def read():
            return tally[0], tally[1]

        self.readings.add(read)
        return read

    @rule(target=counters, name=st.sampled_from("ab"))
    def create(self, name):
        counter = Counter(name, [0, 0])
        self.alive.append(counter)
        return counter.tally

    @rule(tally=counters, good=st.integers(0, 3), bad=st.integers(0, 3))
    def count(self, tally, good, bad):
        tally[0] += good
        tally[1] += bad

    @rule(tally=consumes(counters))
    def drop(self, tally):
        self.alive = [counter for counter in self.alive if counter.tally is not tally]

    @invariant()
    def totals_are_exact(self):
        seen = {id(tally) for _, tally in self.noticed}
        self.noticed += [(counter.name, counter.tally) for counter in self.alive if id(counter.tally) not in seen]
        totals = self.totals.totals([(counter, counter.name) for counter in self.alive])
        for name in "ab":
            mine = [tally for owner, tally in self.noticed if owner == name]
            expected = sum(good for good, _ in mine), sum(bad for _, bad in mine)
            assert totals.get(name, (0, 0)) == expected
            assert expected >= self.shown.get(name, (0, 0))
            self.shown[name] = expected
        assert len(self.readings) == len(self.alive)


TestTotals = Totals.TestCase
