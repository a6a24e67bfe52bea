"""A fleet's shelter: what it reports of its dependency, and what it admits by the fleet's advice."""

import random
from math import inf

import pytest

import abate
from abate.admit.limiter import Permit
from abate.admit.shelter_queue import Waiter
from abate.clock import ever_used
from abate.stores.fleet import FleetShelter
from abate.stores.fleet.sync_requests import ShelterAdvice

STORM = ShelterAdvice("storm", pause=0.0, probe=False, limit=0.0, members=7)
RECOVERING = ShelterAdvice("recovering", pause=0.0, probe=False, limit=1.0, members=7)
CALM = ShelterAdvice("calm", pause=0.0, probe=False, limit=inf, members=7)
REPLY_VALID = 3.0
"""Seconds for which advice is valid."""


class Busy(Exception):
    """An overload error with a hint."""


def busy(error):
    return isinstance(error, Busy) and abate.Ruling.overload(30.0)


class Failing(Exception):
    """An error response, such as a 500."""


def failing(error):
    return isinstance(error, Failing) and abate.Ruling.blip(answered=True)


class Member:
    """One process's shelter, asked for attempts at instants that a test chooses."""

    def __init__(self, fleet_sync):
        self.shelter = FleetShelter(fleet_sync, "orders", rng=random.Random(1))
        self.dispatcher = self.shelter.dispatcher()
        self.began = self.dispatcher.clock.now()

    def apply(self, advice):
        """Apply the advice of a sync."""
        self.began = self.dispatcher.clock.now()
        self.shelter.apply(advice, self.began + REPLY_VALID)
        return self

    def try_send(self, after=0.1):
        """Ask for an attempt `after` seconds later; return its permit, or None if it has to wait."""
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


# -- advice


def test_in_an_outage_other_members_send_nothing_until_the_advice_expires(member):
    """Without new advice the shelter is local again."""
    member.apply(STORM)
    assert member.shelter.state == "probing"
    assert member.try_send(after=REPLY_VALID - 0.01) is None
    assert member.try_send(after=REPLY_VALID + 0.01) is not None


def test_in_an_outage_the_prober_sends_one_at_a_time(member):
    """It sends at once, and its pauses account for the number of members."""
    member.apply(STORM._replace(probe=True))
    assert member.shelter.state == "probing"
    assert member.dispatcher.limiter.prober.peers == 7
    assert member.try_send() is not None
    assert member.try_send() is None


def test_the_prober_waits_for_the_hint(member):
    """A server that asked for a pause is not probed before it is over."""
    member.apply(STORM._replace(probe=True, pause=20.0))
    assert member.try_send(after=19.0) is None
    assert member.try_send(after=20.1) is not None


def test_a_limit_of_one_admits_one_in_flight(member):
    """The next attempt is admitted as soon as the first is answered."""
    member.apply(RECOVERING)
    assert member.shelter.state == "calm", "others' failures are not its own"
    first = member.try_send()
    assert first is not None
    assert member.try_send() is None
    member.answered(first)
    assert member.try_send() is not None


@pytest.mark.parametrize(("limit", "sent"), [(2.0, 2), (2.9, 2), (3.0, 3)])
def test_the_advised_limit_bounds_the_calls_in_flight(member, limit, sent):
    """Fractions are rounded down."""
    member.apply(RECOVERING._replace(limit=limit))
    assert sum(member.try_send() is not None for _ in range(5)) == sent


@pytest.mark.parametrize("limit", [0.0, 0.5, 0.99])
def test_a_limit_below_one_admits_nothing_until_the_advice_expires(member, limit):
    """Without new advice the remote limit is lifted."""
    member.apply(RECOVERING._replace(limit=limit))
    assert member.try_send(after=REPLY_VALID - 0.01) is None
    assert [member.try_send(after=REPLY_VALID + 0.01) is not None for _ in range(3)] == [True] * 3


def test_recovering_and_calm_members_wait_for_the_hint(member):
    """A hint holds in both states."""
    for advice in (RECOVERING, CALM):
        member.apply(advice._replace(pause=20.0))
        assert member.try_send(after=19.0) is None
        permit = member.try_send(after=20.1)
        assert permit is not None
        member.answered(permit, after=20.2)


@pytest.mark.parametrize("lifted", ["calm advice", "fall_back", "on_close"])
@pytest.mark.parametrize("before", [STORM, RECOVERING, RECOVERING._replace(limit=0.0), CALM._replace(pause=60.0)])
def test_calm_advice_fallback_and_close_lift_remote_limits(member, before, lifted):
    """The local state stays as it was, and attempts are admitted at once."""
    member.apply(before)
    state = member.shelter.state
    if lifted == "calm advice":
        member.apply(CALM)
    else:
        getattr(member.shelter, lifted)()
    assert member.shelter.state == state, "lifting a remote limit is no outage"
    assert (member.dispatcher.core.remote_paused_until, member.dispatcher.core.remote_limit) == (-inf, inf)
    first = member.try_send()
    assert first is not None
    member.answered(first)
    assert [member.try_send() is not None for _ in range(3)] == [True] * 3


def test_new_advice_admits_a_waiting_call(member):
    """The waiter gets its permit with the advice, not at its next poll."""
    member.apply(STORM)
    now = member.began
    waiter = member.dispatcher.try_enter(now, now, None, True)
    assert waiter.answer is None
    member.apply(STORM._replace(probe=True))
    assert isinstance(waiter.answer, Permit)


# -- reports


def test_the_first_report_has_no_answers_and_no_failures(fleet_sync, flaky):
    """A new member reports calm."""
    reports = []
    flaky.store = type(
        "Recording", (), {"sync_members": lambda self, member, requests: reports.extend(requests) or [CALM]}
    )()
    FleetShelter(fleet_sync(), "orders")
    assert [(one.state, one.answered, one.failed, one.hint_left) for one in reports] == [("calm", 0, 0, 0.0)]


def test_a_report_has_the_remaining_seconds_of_a_hint(member):
    """Until the hint is over, with or without calls."""
    policy = abate.Policy(on=busy, max_attempts=1, shelter=member.shelter)
    now = member.dispatcher.clock.now()
    assert member.shelter.request(now).hint_left == 0.0
    with pytest.raises(Busy):
        policy.call(lambda: (_ for _ in ()).throw(Busy()))
    first = member.shelter.request(now)
    assert (first.failed, first.answered, first.state) == (1, 0, "probing")
    assert first.hint_left == pytest.approx(member.shelter.patience / 2, abs=0.1)
    later = member.shelter.request(now + 2.0)
    assert later.hint_left == pytest.approx(first.hint_left - 2.0)
    assert member.shelter.request(now + 100.0).hint_left == 0.0


def test_error_responses_are_not_reported(member):
    """They may concern one caller; a process that gets only errors pauses its own shelter."""
    policy = abate.Policy(on=failing, max_attempts=1, shelter=member.shelter)
    for _ in range(6):
        with pytest.raises((Failing, abate.Refused)), abate.deadline(0.1):
            policy.call(lambda: (_ for _ in ()).throw(Failing()))
    assert member.shelter.state == "probing"
    assert member.shelter.request(member.dispatcher.clock.now()).failed == 0


def test_answers_and_failures_are_reported_once(member):
    """A process without calls since the last report reports calm."""
    down = abate.Policy(on=ConnectionError, max_attempts=1, shelter=member.shelter)
    down.call(lambda: None)
    down.call(lambda: None)
    now = member.began
    report = member.shelter.request(now)
    assert (report.name, report.answered, report.failed) == ("orders", 2, 0)
    member.dispatcher.failed(member.try_send(), now, abate.Backoff(1.0), None, None, False, "orders")
    assert member.shelter.request(now)[2:4] == (0, 1)
    assert member.shelter.request(now)[1:4] == ("calm", 0, 0)


def test_a_member_with_waiting_calls_reports_probing(member):
    """It saw nothing since the last report, but it may become the prober."""
    member.apply(STORM)
    now = member.began
    assert member.shelter.request(now).state == "calm"
    waiter = member.dispatcher.try_enter(now, now, None, True)
    assert member.shelter.request(now).state == "probing"
    member.dispatcher.leave(waiter, now)
    assert member.shelter.request(now).state == "calm"


def test_in_calm_wrappers_need_not_ask(member, monkeypatch):
    """As with a shelter that is not shared: from the first quiet second to the next failure."""
    monkeypatch.setattr(ever_used, "virtual", False)
    began = member.began
    member.dispatcher.answered(member.try_send(), began + 2.0, "orders")
    assert (member.shelter.state, member.shelter.calm) == ("calm", True)
    member.dispatcher.failed(None, began + 2.5, abate.Backoff(1.0), None, None, False, "orders")
    assert not member.shelter.calm
