"""A fleet's shelter at its door: what it tells of its dependency, and what it lets through by the forecast."""

import random
from math import inf

import pytest

import abate
from abate.admit.limiter import Permit
from abate.admit.shelter_queue import Waiter
from abate.stores.fleet import FleetShelter
from abate.stores.fleet.messages import ShelterAdvice

STORM = ShelterAdvice("storm", closed=0.0, probe=False, limit=0.0, members=7)
RECOVERING = ShelterAdvice("recovering", closed=0.0, probe=False, limit=1.0, members=7)
CALM = ShelterAdvice("calm", closed=0.0, probe=False, limit=inf, members=7)
REPLY_VALID = 3.0
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

    def __init__(self, fleet_sync):
        self.shelter = FleetShelter(fleet_sync, "orders", rng=random.Random(1))
        self.dispatcher = self.shelter.dispatcher()
        self.began = self.dispatcher.clock.now()

    def told(self, advice):
        """A journey brings a forecast."""
        self.began = self.dispatcher.clock.now()
        self.shelter.apply(advice, self.began + REPLY_VALID)
        return self

    def sent(self, after=0.1):
        """Ask for an attempt so many seconds later: its ticket, or None where it has to wait."""
        now = self.began + after
        answer = self.dispatcher.try_enter(now, now, None, True)
        if isinstance(answer, Waiter):
            self.dispatcher.leave(answer, now)
            return None
        assert isinstance(answer, Permit)
        return answer

    def answered(self, permit, after=0.1):
        self.dispatcher.answered(permit, self.began + after, "orders")


@pytest.fixture
def member(fleet_sync):
    return Member(fleet_sync())


# -- the forecast


def test_in_a_storm_one_who_does_not_probe_sends_nothing_until_the_next_news(member):
    """When those don't come, it shelters alone."""
    member.told(STORM)
    assert member.shelter.state == "probing"
    assert member.sent(after=REPLY_VALID - 0.01) is None
    assert member.sent(after=REPLY_VALID + 0.01) is not None


def test_in_a_storm_the_prober_sends_one_at_a_time(member):
    """At once, and for as many processes as there are."""
    member.told(STORM._replace(probe=True))
    assert member.shelter.state == "probing"
    assert member.dispatcher.limiter.prober.peers == 7
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
    assert member.sent(after=REPLY_VALID - 0.01) is None
    assert [member.sent(after=REPLY_VALID + 0.01) is not None for _ in range(3)] == [True] * 3


def test_who_may_send_again_minds_the_hint(member):
    """While it recovers, and in calm."""
    for advice in (RECOVERING, CALM):
        member.told(advice._replace(closed=20.0))
        assert member.sent(after=19.0) is None
        permit = member.sent(after=20.1)
        assert permit is not None
        member.answered(permit, after=20.2)


@pytest.mark.parametrize("lifted", ["told of calm", "fall_back", "on_close"])
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
    assert (member.dispatcher._remote_closed_until, member.dispatcher._remote_limit) == (-inf, inf)
    first = member.sent()
    assert first is not None
    member.answered(first)
    assert [member.sent() is not None for _ in range(3)] == [True] * 3


def test_who_waits_is_let_in_by_the_forecast(member):
    """A call that was held back goes with the news, not when it looks again."""
    member.told(STORM)
    now = member.began
    waiter = member.dispatcher.try_enter(now, now, None, True)
    assert waiter.answer is None
    member.told(STORM._replace(probe=True))
    assert isinstance(waiter.answer, Permit)


# -- the sight


def test_a_newcomer_has_seen_nothing(fleet_sync, flaky):
    """Its first journey says neither good nor bad."""
    told = []
    flaky.store = type(
        "Listening", (), {"sync_members": lambda self, member, requests: told.extend(requests) or [CALM]}
    )()
    FleetShelter(fleet_sync(), "orders")
    assert [(sight.state, sight.answered, sight.failed, sight.closed) for sight in told] == [("calm", 0, 0, 0.0)]


def test_a_hint_is_told_with_what_is_left_of_it(member):
    """Once it was heard, until it is over, whether or not there are calls."""
    policy = abate.Policy(on=busy, max_attempts=1, shelter=member.shelter)
    now = member.dispatcher.clock.now()
    assert member.shelter.request(now).closed == 0.0
    with pytest.raises(Busy):
        policy.call(lambda: (_ for _ in ()).throw(Busy()))
    first = member.shelter.request(now)
    assert (first.failed, first.answered, first.state) == (1, 0, "probing")
    assert first.closed == pytest.approx(member.shelter.patience / 2, abs=0.1)
    later = member.shelter.request(now + 2.0)
    assert later.closed == pytest.approx(first.closed - 2.0)
    assert member.shelter.request(now + 100.0).closed == 0.0


def test_errors_that_the_server_answers_with_are_not_told(member):
    """They may be those of one caller; a process that gets nothing else shelters alone."""
    policy = abate.Policy(on=failing, max_attempts=1, shelter=member.shelter)
    for _ in range(6):
        with pytest.raises((Failing, abate.Refused)), abate.deadline(0.1):
            policy.call(lambda: (_ for _ in ()).throw(Failing()))
    assert member.shelter.state == "probing"
    assert member.shelter.request(member.dispatcher.clock.now()).failed == 0


def test_what_was_seen_is_told_once(member):
    """Answers and failures since the last journey; a process without calls tells of calm."""
    down = abate.Policy(on=ConnectionError, max_attempts=1, shelter=member.shelter)
    down.call(lambda: None)
    down.call(lambda: None)
    now = member.began
    sight = member.shelter.request(now)
    assert (sight.name, sight.answered, sight.failed) == ("orders", 2, 0)
    member.dispatcher.failed(member.sent(), now, abate.Backoff(1.0), None, None, False, "orders")
    assert member.shelter.request(now)[2:4] == (0, 1)
    assert member.shelter.request(now)[1:4] == ("calm", 0, 0)


def test_who_waits_is_concerned(member):
    """Nothing was seen since the last time, but calls are held back: it may be the one who probes."""
    member.told(STORM)
    now = member.began
    assert member.shelter.request(now).state == "calm"
    waiter = member.dispatcher.try_enter(now, now, None, True)
    assert member.shelter.request(now).state == "probing"
    member.dispatcher.leave(waiter, now)
    assert member.shelter.request(now).state == "calm"
