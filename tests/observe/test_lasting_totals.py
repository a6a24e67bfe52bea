"""Counts of things that come and go: they add up by name, and never go back."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from abate.observe.lasting_totals import LastingTotals


class Thing:
    def __init__(self, name, tally):
        self.name, self.tally = name, tally


def reading(thing):
    tally = thing.tally
    return lambda: (tally[0], tally[1])


class Coming(RuleBasedStateMachine):
    """Things come, count and go, and are looked at in between."""

    things = Bundle("things")

    def __init__(self):
        super().__init__()
        self.carried = LastingTotals(reading)
        self.alive = []
        self.noticed = []
        self.shown = {}

    @rule(target=things, name=st.sampled_from("ab"))
    def start_counting(self, name):
        thing = Thing(name, [0, 0])
        self.alive.append(thing)
        return thing.tally

    @rule(tally=things, good=st.integers(0, 3), bad=st.integers(0, 3))
    def count(self, tally, good, bad):
        tally[0] += good
        tally[1] += bad

    @rule(tally=consumes(things))
    def stop_counting(self, tally):
        self.alive = [thing for thing in self.alive if thing.tally is not tally]

    @invariant()
    def look(self):
        seen = {id(tally) for _, tally in self.noticed}
        self.noticed += [(thing.name, thing.tally) for thing in self.alive if id(thing.tally) not in seen]
        totals = self.carried.totals([(thing, thing.name) for thing in self.alive])
        for name in "ab":
            mine = [tally for owner, tally in self.noticed if owner == name]
            expected = sum(good for good, _ in mine), sum(bad for _, bad in mine)
            assert totals.get(name, (0, 0)) == expected
            assert expected >= self.shown.get(name, (0, 0))
            self.shown[name] = expected
        assert len(self.carried._known) == len(self.alive)


TestComing = Coming.TestCase
