"""What happens next: in the order of instants, and of what was said first; and where chance comes from."""

from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.errors import AbateError
from abate.sim import agenda as module
from abate.sim.agenda import Agenda, RandomStreams


@given(instants=st.lists(st.integers(0, 8).map(lambda number: number / 4), max_size=30), until=st.integers(0, 8))
def test_things_happen_by_their_instant_and_then_as_they_were_said(instants, until):
    """Up to the end, and not beyond it."""
    agenda, happened = Agenda(), []
    for place, instant in enumerate(instants):
        agenda.at(instant, happened.append, (instant, place))
    agenda.run(until / 4)
    assert happened == sorted((instant, place) for place, instant in enumerate(instants) if instant <= until / 4)
    assert agenda.now() == agenda.wall() == until / 4


PLANS = st.recursive(
    st.just(()),
    lambda plans: st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 0.0, 0.1, 0.125, 0.3, 1.0, 7.7, inf]), plans), max_size=4
    ),
    max_leaves=25,
)
"""What each event schedules: the delay in seconds, and the events."""


@given(plans=PLANS, stops=st.lists(st.floats(0.0, 20.0), max_size=3).map(sorted))
def test_what_happens_may_bring_about_more(plans, stops):
    """In the order that one sorted list of all of it would give, however often the run stops in between."""
    agenda, happened, expected = Agenda(), [], []
    numbers, listed = count(), []

    def plan(at, now, several):
        for seconds, more in several:
            at(now + seconds, (next(numbers), more))

    def act(what):
        happened.append((agenda.now(), what[0]))
        plan(lambda when, what: agenda.at(when, act, what), agenda.now(), what[1])

    plan(lambda when, what: agenda.at(when, act, what), 0.0, plans)
    for until in [*stops, 30.0]:
        agenda.run(until)
    # the same by a list
    numbers, now = count(), 0.0
    plan(lambda when, what: listed.append((when, *what)), 0.0, plans)
    while listed and (first := min(listed, key=lambda due: due[:2]))[0] <= 30.0:
        listed.remove(first)
        now = max(now, first[0])
        expected.append((now, first[1]))
        plan(lambda when, what: listed.append((when, *what)), now, first[2])
    assert happened == expected
    assert agenda.now() == 30.0


def test_the_clock_stands_at_the_instant_of_what_happens():
    """To the last bit of the float."""
    agenda, seen = Agenda(), []
    for instant in (0.1, 0.1 + 0.2, 0.7):
        agenda.at(instant, lambda instant: seen.append((instant, agenda.now())), instant)
    agenda.run(until=1.0)
    assert seen == [(0.1, 0.1), (0.1 + 0.2, 0.1 + 0.2), (0.7, 0.7)]


def test_what_is_due_soon_comes_before_the_next_instant():
    """After what was said before it, and whatever else is due at this very instant comes later."""
    agenda, happened = Agenda(), []

    def first(_):
        agenda.soon(happened.append, "soon")
        agenda.soon(lambda _: agenda.soon(happened.append, "sooner or later"), None)
        agenda.at(1.0, happened.append, "last at this instant")
        happened.append("first")

    agenda.at(1.0, first, None)
    agenda.at(1.0, happened.append, "second")
    agenda.run(until=1.0)
    assert happened == ["first", "soon", "sooner or later", "second", "last at this instant"]


def test_what_comes_too_late_happens_at_once():
    """And time does not go back."""
    agenda, seen = Agenda(), []
    agenda.at(2.0, lambda _: agenda.at(1.0, lambda _: seen.append(agenda.now()), None), None)
    agenda.run(until=3.0)
    assert seen == [2.0]


def test_a_run_may_go_on():
    """From where it ended."""
    agenda, happened = Agenda(), []
    for instant in (1.0, 2.0, 3.0):
        agenda.at(instant, happened.append, instant)
    agenda.run(until=2.0)
    assert (happened, agenda.now()) == ([1.0, 2.0], 2.0)
    agenda.run(until=2.5)
    assert agenda.now() == 2.5
    agenda.run(until=9.0)
    assert (happened, agenda.now()) == ([1.0, 2.0, 3.0], 9.0)


@pytest.mark.parametrize(
    "again", [lambda agenda, act: agenda.soon(act, None), lambda agenda, act: agenda.at(1.0, act, None)]
)
def test_a_world_that_never_goes_on_is_an_error(monkeypatch, again):
    """Whether things are due soon or at the same instant: nothing hangs."""
    monkeypatch.setattr(module, "MAX_EVENTS_PER_INSTANT", 1000)
    agenda, happened = Agenda(), []

    def act(_):
        happened.append(agenda.now())
        again(agenda, act)

    agenda.at(1.0, act, None)
    with pytest.raises(AbateError, match="more than 1,000 events happen at 1 s: time does not advance"):
        agenda.run(until=2.0)
    assert len(happened) == 1000


def test_as_long_as_time_goes_on_any_number_of_things_may_happen(monkeypatch):
    """Only what happens at one instant is counted."""
    monkeypatch.setattr(module, "MAX_EVENTS_PER_INSTANT", 10)
    agenda, happened = Agenda(), []
    for place in range(100):
        agenda.at(place / 8, happened.append, place)
    agenda.run(until=100.0)
    assert len(happened) == 100


def test_waiting_in_a_thread_is_refused():
    """It would stop the world."""
    with pytest.raises(AbateError, match="can't wait in a thread"):
        Agenda().sleep(1.0)


@given(seed=st.integers(0, 10**6), name=st.sampled_from(["arrivals", "service/api", "policy/0"]))
def test_a_stream_of_chance_is_its_seed_and_its_name(seed, name):
    """The same again for the same, another for another seed or another name."""
    drawn = [RandomStreams(seed).stream(name).random() for _ in range(2)]
    assert drawn[0] == drawn[1]
    others = [RandomStreams(seed + 1).stream(name).random(), RandomStreams(seed).stream(f"{name}2").random()]
    assert drawn[0] not in others
