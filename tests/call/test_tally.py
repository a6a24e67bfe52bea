"""What policies have counted: nothing is lost when they go, whoever lets them go and whenever."""

import gc
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from abate.call import tally
from abate.call.tally import OTHER, Counted, Roll, Tally

NAMES = st.sampled_from(["orders", "mail"])


def counted(tally, good=0, bad=0, open_=0):
    """Let a tally count."""
    for _ in range(good + bad + open_):
        tally.begun.add()
    for _ in range(good):
        tally.good.add()
    for _ in range(bad):
        tally.bad.add()


class Rolls(RuleBasedStateMachine):
    """Tallies come, count and go; the roll is looked at in between."""

    tallies = Bundle("tallies")

    def __init__(self):
        super().__init__()
        self.roll = Roll()
        self.ended = {}

    @rule(target=tallies, name=NAMES)
    def come(self, name):
        self.ended.setdefault(name, (0, 0))
        held = [Tally(name)]
        self.roll.note(held[0])
        return held

    @rule(held=tallies, good=st.integers(0, 3), bad=st.integers(0, 3))
    def count(self, held, good, bad):
        counted(held[0], good, bad)
        before = self.ended[held[0].name]
        self.ended[held[0].name] = before[0] + good, before[1] + bad

    @rule(held=consumes(tallies), in_a_circle=st.booleans())
    def go(self, held, in_a_circle):
        """The last reference is dropped, or left to the garbage collector."""
        if in_a_circle:
            circle = [held.pop()]
            circle.append(circle)
            del circle
            gc.collect()
        else:
            held.clear()

    @rule()
    def many_go_at_once(self):
        """More than are kept before they are added up, without anybody looking."""
        for _ in range(tally.MOST_GONE + 1):
            brief = Tally("brief")
            self.roll.note(brief)
            counted(brief, good=1)
        good, bad = self.ended.get("brief", (0, 0))
        self.ended["brief"] = good + tally.MOST_GONE + 1, bad
        del brief
        self.roll.note(Tally("brief"))
        assert len(self.roll._gone) <= tally.MOST_GONE

    @invariant()
    def look(self):
        found = self.roll.totals()
        for name, (good, bad) in self.ended.items():
            assert found.get(name, Counted(0, 0, 0)) == Counted(good + bad, good, bad)


TestRolls = Rolls.TestCase
TestRolls.settings = settings(stateful_step_count=12, max_examples=40)


def test_calls_in_flight_have_begun():
    """As long as their policy is there."""
    roll, orders = Roll(), Tally("orders")
    roll.note(orders)
    counted(orders, good=2, open_=1)
    assert roll.totals() == {"orders": Counted(3, 2, 0)}


def test_names_without_end_are_kept_together(monkeypatch):
    """A name for each request: nothing is lost, nothing grows with them, and who is alive is not taken apart."""
    monkeypatch.setattr(tally, "MOST_NAMES", 100)
    roll, first = Roll(), Tally("first")
    roll.note(first)
    counted(first, good=1)
    for number in range(149):
        brief = Tally(f"request-{number}")
        roll.note(brief)
        counted(brief, good=1)
    del brief
    found = roll.totals()
    assert found[OTHER] == Counted(50, 50, 0)
    assert len(found) == 101
    del first
    assert roll.totals() == found
    assert not roll._leaves


def test_threads_that_let_go_while_others_look():
    """Each count is seen once in the end, and never more than there were."""
    roll, each, seen = Roll(), 300, []
    over = threading.Event()

    def work():
        for _ in range(each):
            brief = Tally("brief")
            roll.note(brief)
            counted(brief, good=1)

    def look():
        while not over.is_set():
            seen.append(roll.totals().get("brief", Counted(0, 0, 0)).good)

    workers = [threading.Thread(target=work) for _ in range(3)]
    watcher = threading.Thread(target=look)
    for thread in (watcher, *workers):
        thread.start()
    for thread in workers:
        thread.join(30)
    over.set()
    watcher.join(30)
    assert roll.totals()["brief"].good == 3 * each
    assert max(seen, default=0) <= 3 * each


def test_totals_in_the_middle_of_a_change_are_those_known():
    """Somebody who looks while this very thread adds up what is gone sees the rest."""
    roll, tally, seen = Roll(), Tally("orders"), []
    roll.note(tally)
    tally.begun.add()
    tally.good.add()
    roll._section.ask(lambda: seen.append(roll.totals()), otherwise=lambda: None)
    assert seen == [{"orders": Counted(1, 1, 0)}]
