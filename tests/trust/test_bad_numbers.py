"""Bad numbers from stores and budgets: the page and the metrics show the rest, and name what is wrong."""

import contextlib
import json
import math
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

import abate
from abate import events, observe
from abate.observe.number_checks import check_depth
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.state import PageState
from abate.stores import Depth


def shown(board):
    """What a frame says."""
    board.refresh()
    return json.loads(board.frame().removeprefix(b"data: "))


def row(frame, kind, name):
    """One row of a frame."""
    return next(each for each in frame[kind] if each["name"] == name)


def test_one_bad_row_of_a_store_does_not_blind_the_page(tmp_path):
    """Another program has written -Infinity into a real file: what is right is shown, what is wrong is named."""
    store = abate.open_store(f"sqlite:///{tmp_path}/work.db")
    queue = store.queue("trust-bad")
    queue.add("a")
    with contextlib.closing(sqlite3.connect(tmp_path / "work.db")) as file, file:
        file.execute("UPDATE item SET due = -9e999")
    consumer = abate.consumer(source=queue, name="trust-bad")(print)
    other = abate.Policy(name="trust-other", on=OSError)
    board = PageState(RecentActivity(), abate.clock.current())
    while (bad := row(frame := shown(board), "queues", consumer.name))["ready"] is None:
        pass
    assert (bad["ready"], bad["age"], bad["failing"]) == (1, None, "wrong numbers: age is inf")
    assert "wrong numbers: age is inf" in bad["why"]
    assert row(frame, "policies", other.name)["level"] == 0
    view = next(each for each in observe.snapshot().queues if each.name == "trust-bad")
    assert (view.ready, view.age, view.failing) == (1, None, "wrong numbers: age is inf")
    store.close()


numbers = st.none() | st.integers() | st.floats() | st.booleans() | st.text(max_size=100) | st.just(10**5000)


@given(st.lists(numbers, min_size=5, max_size=5))
def test_no_number_of_a_source_breaks_what_is_shown(told):
    """Whatever a source tells: a count that is shown is one, the others are named, and JSON and metrics hold."""
    seen = check_depth(Depth(*told))
    ready, delayed, _, dead, age = told
    for value, kept in zip((ready, delayed, dead, age), (seen.ready, seen.delayed, seen.dead, seen.age), strict=True):
        assert kept is None or (kept is value and 0 <= kept <= 2**53)
        if kept is None and value is not None:
            assert seen.wrong
    json.dumps([seen.ready, seen.delayed, seen.dead, seen.age, seen.wrong], allow_nan=False)


class Odd(abate.Budget):
    """A budget that tells what it is given."""

    told = (1.0, 1.0)

    def balance(self):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told[0]

    def share(self):
        return self.told[1]


@pytest.mark.parametrize("told", [(math.nan, 1.0), ("many", 1.0), (1.0, math.inf), (-math.inf, None), (10**5000, 1.0)])
def test_a_budget_that_tells_nonsense_is_marked(told):
    """The policy is shown without these numbers, and metrics are written."""
    odd = Odd()
    odd.told = told
    policy = abate.Policy(name="trust-odd", on=OSError, budget=odd)
    frame = shown(PageState(RecentActivity(), abate.clock.current()))
    shown_row = row(frame, "policies", policy.name)
    assert (shown_row["balance"], shown_row["share"], shown_row["level"]) == (None, None, 1)
    assert shown_row["why"][0].startswith("wrong numbers: ")
    registry = CollectorRegistry()
    sink = observe.install(observe.PrometheusSink(registry=registry))
    try:
        assert b"trust-odd" in generate_latest(registry)
    finally:
        observe.remove(sink)


def test_a_row_that_cannot_be_read_hides_no_other():
    """It is named among what happened, with the reason."""
    odd = Odd()
    odd.told = RuntimeError("broken")
    policies = [abate.Policy(name="trust-broken", on=OSError, budget=odd), abate.Policy(name="trust-fine", on=OSError)]
    frame = shown(PageState(RecentActivity(), abate.clock.current()))
    assert "trust-broken" not in [each["name"] for each in frame["policies"]]
    assert row(frame, "policies", "trust-fine")
    happened = frame["notices"][0]
    assert (happened["name"], happened["text"]) == ("trust-broken", "can't be shown: RuntimeError: broken")
    odd.told = (1.0, 1.0)
    assert len(policies) == 2


@pytest.mark.parametrize("receives", ["many", math.nan, -1, 10**400, None])
def test_a_bad_count_of_receives_does_not_blind_the_page(receives):
    """A message's count comes from the store: a wrong one is shown as 0, beside others that are right."""
    with abate.testing.VirtualClock():
        recent = RecentActivity()

        @abate.controller(name="trust-receives")
        def reconcile(key): ...

        for key, times in (("bad", receives), ("good", 3)):
            recent(events.Worked("trust-receives", key, "retry", 0.1, times, OSError("down")))
        frame = shown(PageState(recent, abate.clock.current()))
        keys = row(frame, "queues", "trust-receives")["failing_keys"]
        assert [(key, times) for key, times, _ in keys] == [("good", 3), ("bad", 0)]
