"""A fleet's shelter at its door: what it tells of its dependency, and what it lets through by the forecast."""

import random
from math import inf

import pytest

import abate
from abate.admit.room import Waiter
from abate.admit.weather import Ticket
from abate.stores.fleet import FleetShelter
from abate.stores.fleet.offers import Forecast

STORM = Forecast("storm", closed=0.0, probe=False, limit=0.0, members=7)
RECOVERING = Forecast("recovering", closed=0.0, probe=False, limit=1.0, members=7)
CALM = Forecast("calm", closed=0.0, probe=False, limit=inf, members=7)
GOOD = 3.0
"""Seconds for which a forecast is good."""


class Busy(Exception):
    """What a dependency raises that says when to come back."""


def busy(error):
    return isinstance(error, Busy) and abate.Ruling.overload(30.0)


class Failing(Exception):
    """An error that a dependency answers with, as a 500 is."""


def failing(error):
    return isinstance(error, Failing) and abate.Ruling.blip(answered=True)


class Member:
    """One process's shelter, whose door is asked at instants that a test chooses."""

    def __init__(self, courier):
        self.shelter = FleetShelter(courier, "orders", rng=random.Random(1))
        self.door = self.shelter.door()
        self.began = self.door.clock.now()

    def told(self, forecast):
        """A journey brings a forecast."""
        self.began = self.door.clock.now()
        self.shelter.take(forecast, self.began + GOOD)
        return self

    def sent(self, after=0.1):
        """Ask for an attempt so many seconds later: its ticket, or None where it has to wait."""
        now = self.began + after
        answer = self.door.knock(now, now, None, True)
        if isinstance(answer, Waiter):
            self.door.leave(answer, now)
            return None
        assert isinstance(answer, Ticket)
        return answer

    def answered(self, ticket, after=0.1):
        self.door.answered(ticket, self.began + after, "orders")


@pytest.fixture
def member(courier):
    return Member(courier())


# -- the forecast


def test_in_a_storm_one_who_does_not_probe_sends_nothing_until_the_next_news(member):
    """When those don't come, it shelters alone."""
    member.told(STORM)
    assert member.shelter.state == "probing"
    assert member.sent(after=GOOD - 0.01) is None
    assert member.sent(after=GOOD + 0.01) is not None


def test_in_a_storm_the_prober_sends_one_at_a_time(member):
    """At once, and for as many processes as there are."""
    member.told(STORM._replace(probe=True))
    assert member.shelter.state == "probing"
    assert member.door.weather.peers == 7
    assert member.sent() is not None
    assert member.sent() is None


def test_a_prober_minds_the_hint(member):
    """A server that has asked everybody to stay away is not probed before that."""
    member.told(STORM._replace(probe=True, closed=20.0))
    assert member.sent(after=19.0) is None
    assert member.sent(after=20.1) is not None


def test_a_part_of_exactly_one_is_one(member):
    """One in flight at a time, and the next as soon as it is answered."""
    member.told(RECOVERING)
    assert member.shelter.state == "calm", "others' failures are not its own"
    first = member.sent()
    assert first is not None
    assert member.sent() is None
    member.answered(first)
    assert member.sent() is not None


@pytest.mark.parametrize(("limit", "sent"), [(2.0, 2), (2.9, 2), (3.0, 3)])
def test_a_part_is_the_most_in_flight(member, limit, sent):
    """Whatever else this process knows."""
    member.told(RECOVERING._replace(limit=limit))
    assert sum(member.sent() is not None for _ in range(5)) == sent


@pytest.mark.parametrize("limit", [0.0, 0.5, 0.99])
def test_less_than_one_is_nothing_until_the_next_news(member, limit):
    """Its turn has not come; without news it goes on by itself, without a limit of others."""
    member.told(RECOVERING._replace(limit=limit))
    assert member.sent(after=GOOD - 0.01) is None
    assert [member.sent(after=GOOD + 0.01) is not None for _ in range(3)] == [True] * 3


def test_who_may_send_again_minds_the_hint(member):
    """While it recovers, and in calm."""
    for forecast in (RECOVERING, CALM):
        member.told(forecast._replace(closed=20.0))
        assert member.sent(after=19.0) is None
        ticket = member.sent(after=20.1)
        assert ticket is not None
        member.answered(ticket, after=20.2)


@pytest.mark.parametrize("lifted", ["told of calm", "unheard", "closed"])
@pytest.mark.parametrize("before", [STORM, RECOVERING, RECOVERING._replace(limit=0.0), CALM._replace(closed=60.0)])
def test_calm_and_silence_lift_what_was_said(member, before, lifted):
    """Nothing that others said before holds anybody back."""
    member.told(before)
    state = member.shelter.state
    if lifted == "told of calm":
        member.told(CALM)
    else:
        getattr(member.shelter, lifted)()
    assert member.shelter.state == state, "that it is quiet elsewhere is no storm"
    assert (member.door._barred, member.door._ceiling) == (-inf, inf)
    first = member.sent()
    assert first is not None
    member.answered(first)
    assert [member.sent() is not None for _ in range(3)] == [True] * 3


def test_who_waits_is_let_in_by_the_forecast(member):
    """A call that was held back goes with the news, not when it looks again."""
    member.told(STORM)
    now = member.began
    waiter = member.door.knock(now, now, None, True)
    assert waiter.answer is None
    member.told(STORM._replace(probe=True))
    assert isinstance(waiter.answer, Ticket)


# -- the sight


def test_a_newcomer_has_seen_nothing(courier, flaky):
    """Its first journey says neither good nor bad."""
    told = []
    flaky.store = type("Listening", (), {"trade": lambda self, member, offers: told.extend(offers) or [CALM]})()
    FleetShelter(courier(), "orders")
    assert [(sight.state, sight.answered, sight.failed, sight.closed) for sight in told] == [("calm", 0, 0, 0.0)]


def test_a_hint_is_told_with_what_is_left_of_it(member):
    """Once it was heard, until it is over, whether or not there are calls."""
    policy = abate.Policy(on=busy, attempts=1, shelter=member.shelter)
    now = member.door.clock.now()
    assert member.shelter.offer(now).closed == 0.0
    with pytest.raises(Busy):
        policy.call(lambda: (_ for _ in ()).throw(Busy()))
    first = member.shelter.offer(now)
    assert (first.failed, first.answered, first.state) == (1, 0, "probing")
    assert first.closed == pytest.approx(member.shelter.patience / 2, abs=0.1)
    later = member.shelter.offer(now + 2.0)
    assert later.closed == pytest.approx(first.closed - 2.0)
    assert member.shelter.offer(now + 100.0).closed == 0.0


def test_errors_that_the_server_answers_with_are_not_told(member):
    """They may be those of one caller; a process that gets nothing else shelters alone."""
    policy = abate.Policy(on=failing, attempts=1, shelter=member.shelter)
    for _ in range(6):
        with pytest.raises((Failing, abate.Refused)), abate.deadline(0.1):
            policy.call(lambda: (_ for _ in ()).throw(Failing()))
    assert member.shelter.state == "probing"
    assert member.shelter.offer(member.door.clock.now()).failed == 0


def test_what_was_seen_is_told_once(member):
    """Answers and failures since the last journey; a process without calls tells of calm."""
    down = abate.Policy(on=ConnectionError, attempts=1, shelter=member.shelter)
    down.call(lambda: None)
    down.call(lambda: None)
    now = member.began
    sight = member.shelter.offer(now)
    assert (sight.name, sight.answered, sight.failed) == ("orders", 2, 0)
    member.door.failed(member.sent(), now, abate.Backoff(1.0), None, None, False, "orders")
    assert member.shelter.offer(now)[2:4] == (0, 1)
    assert member.shelter.offer(now)[1:4] == ("calm", 0, 0)


def test_who_waits_is_concerned(member):
    """Nothing was seen since the last time, but calls are held back: it may be the one who probes."""
    member.told(STORM)
    now = member.began
    assert member.shelter.offer(now).state == "calm"
    waiter = member.door.knock(now, now, None, True)
    assert member.shelter.offer(now).state == "probing"
    member.door.leave(waiter, now)
    assert member.shelter.offer(now).state == "calm"
