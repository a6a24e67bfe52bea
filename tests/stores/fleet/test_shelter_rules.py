"""What a fleet knows of a dependency: which member probes, and how limits grow during recovery."""

import random
from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import abate
from abate.stores import open_store
from abate.stores.fleet import FleetShelter
from abate.stores.fleet.shelter_rules import (
    CALM_LIMIT,
    FIRST_LIMIT,
    FIRST_LIMIT_SHARE,
    LIMIT_GROWTH,
    OUTAGE_TIMEOUT,
    PROBE_TURN,
    MemberCounts,
    OutageState,
    classify,
    update,
)
from abate.stores.fleet.sync_requests import ShelterReport
from abate.testing import VirtualClock

UP = ShelterReport("orders", "calm", 5, 0, 0.0)
DOWN = ShelterReport("orders", "probing", 0, 5, 0.0)
NOTHING = ShelterReport("orders", "calm", 0, 0, 0.0)
BACK = ShelterReport("orders", "recovering", 3, 0, 0.0)


class Fleet:
    """Members that sync with a store in virtual time."""

    def __init__(self, store, clock, count):
        self.store, self.clock = store, clock
        self.names = [f"member-{number:03}" for number in range(count)]

    def sync(self, report, names=None):
        """Send the same report from each member; return the advice each one gets."""
        return [self.store.sync_members(name, [report])[0] for name in names or self.names]


@pytest.fixture
def clock():
    return VirtualClock(start=1000.0)


@pytest.fixture
def fleet(clock):
    with open_store("memory:", clock=clock) as store:
        yield lambda count: Fleet(store, clock, count)


def test_calm_advice_restricts_no_member(fleet):
    """Members that report answers, or nothing, are advised of calm."""
    advice = fleet(5).sync(UP)
    assert {(one.state, one.pause, one.probe, one.limit) for one in advice} == {("calm", 0.0, False, inf)}
    assert advice[-1].members == 5


def test_in_an_outage_one_member_probes_for_all(fleet):
    """Exactly one of 50 failing members probes, however often they sync."""
    members = fleet(50)
    for _ in range(5):
        advice = members.sync(DOWN)
        assert [one.state for one in advice] == ["storm"] * 50
        assert sum(one.probe for one in advice) == 1
        members.clock.advance(1.0)


def test_one_failing_member_does_not_declare_an_outage(fleet):
    """An outage needs more members that see failures than members that see answers."""
    members = fleet(10)
    members.sync(UP)
    assert members.sync(DOWN, members.names[:1])[0].state == "calm"
    assert {one.state for one in members.sync(UP, members.names[1:])} == {"calm"}
    advice = members.sync(DOWN, members.names[1:6])
    assert [one.state for one in advice] == ["calm"] * 4 + ["storm"]


def test_idle_members_have_no_vote(fleet):
    """They neither cause an outage nor prevent one."""
    members = fleet(10)
    members.sync(NOTHING)
    assert members.sync(DOWN, members.names[:1])[0].state == "storm"
    assert {one.state for one in members.sync(NOTHING, members.names[1:])} == {"storm"}


def test_a_member_probes_for_one_turn(fleet):
    """After its turn the next member with waiting calls probes, so an idle prober does not block the rest."""
    members = fleet(3)
    members.sync(DOWN)
    probers = []
    for _ in range(4):
        members.clock.advance(PROBE_TURN)
        probers += [name for name in reversed(members.names) if members.sync(DOWN, [name])[0].probe]
        members.clock.advance(PROBE_TURN)
        members.sync(NOTHING, members.names[2:])
        probers += [name for name in members.names if members.sync(DOWN, [name])[0].probe]
    assert set(probers) == {members.names[0], members.names[2]}


def test_an_outage_without_calls_expires(fleet):
    """A fleet that was replaced or went idle leaves no outage behind."""
    members = fleet(2)
    members.sync(DOWN)
    members.clock.advance(PROBE_TURN + OUTAGE_TIMEOUT)
    assert [one.state for one in members.sync(NOTHING)] == ["calm", "calm"]


def test_every_member_gets_a_turn_during_recovery(fleet):
    """The first members in order may be idle: the turn moves on."""
    members = fleet(50)
    members.sync(DOWN)
    members.sync(BACK, members.names[:1])
    opened = set()
    for _ in range(60):
        members.clock.advance(1.0)
        opened |= {name for name, one in zip(members.names, members.sync(NOTHING), strict=True) if one.limit >= 1}
    assert opened == set(members.names)


def test_setting_the_clock_back_prolongs_no_outage():
    """Instants too far in the future are bounded."""
    known = OutageState("storm", until=10_000.0, prober="a", turn=10_003.0)
    known, advice = update(known, DOWN, "b", MemberCounts(2, 0, 1, 1), now=1_000.0)
    assert advice.pause <= 3600.0
    assert update(known, DOWN, "b", MemberCounts(2, 0, 1, 1), now=1_000.0 + PROBE_TURN)[1].probe


def test_a_prober_that_stops_syncing_is_replaced(fleet):
    """After its turn the next member that sees failures probes."""
    members = fleet(3)
    assert [one.probe for one in members.sync(DOWN)] == [True, False, False]
    members.clock.advance(PROBE_TURN)
    assert members.sync(NOTHING, members.names[2:])[0].probe is False
    assert [one.probe for one in members.sync(DOWN, members.names[1:])] == [True, False]


def test_recovery_raises_the_limit_step_by_step(fleet):
    """The fleet starts with a small limit, which grows with every answer until the outage is over."""
    members = fleet(100)
    members.sync(DOWN)
    assert members.sync(BACK, members.names[:1])[0].state == "recovering"
    opened = []
    for _ in range(60):
        advice = members.sync(BACK)
        opened.append(sum(one.limit for one in advice))
        if advice[-1].state == "calm":
            break
        members.clock.advance(1.0)
    assert opened[0] <= 100 * FIRST_LIMIT_SHARE * LIMIT_GROWTH
    assert opened[-1] == inf
    for before, after in pairwise(opened[:-1]):
        assert after <= before * LIMIT_GROWTH + 1e-9
    assert len(opened) >= 3


def test_failures_during_recovery_resume_the_outage(fleet):
    """The first member that reports them probes."""
    members = fleet(10)
    members.sync(DOWN)
    members.sync(BACK, members.names[:1])
    advice = members.sync(DOWN, members.names[1:2])[0]
    assert (advice.state, advice.probe) == ("storm", True)


def test_a_relapse_needs_a_majority_of_failing_members(fleet):
    """In a tie recovery goes on; the member that tips the balance probes for one turn."""
    members = fleet(4)
    members.sync(DOWN, members.names[:1])
    assert members.sync(BACK, members.names[:2])[1].state == "recovering"
    members.clock.advance(1.0)
    assert {one.state for one in members.sync(DOWN, members.names[2:])} == {"recovering"}
    advice = members.sync(DOWN, members.names[1:2])[0]
    assert (advice.state, advice.probe, advice.limit) == ("storm", True, 0.0)
    members.clock.advance(PROBE_TURN - 0.5)
    assert [one.probe for one in members.sync(DOWN)] == [False, True, False, False]
    members.clock.advance(0.5)
    assert [one.probe for one in members.sync(DOWN)] == [True, False, False, False]


def test_a_member_without_calls_causes_no_relapse(fleet):
    """Only a report of new failures can resume the outage."""
    members = fleet(4)
    members.sync(DOWN)
    assert members.sync(BACK, members.names[:1])[0].state == "recovering"
    assert members.sync(NOTHING, members.names[1:2])[0].state == "recovering"
    assert members.sync(BACK, members.names[:1])[0].state == "recovering"


def test_failures_of_a_minority_halve_the_limit_once_a_second(fleet):
    """The server is near its capacity: the fleet sends less but keeps recovering."""
    members = fleet(100)
    members.sync(DOWN)
    for _ in range(4):
        members.clock.advance(1.0)
        members.sync(BACK)
    before = sum(one.limit for one in members.sync(BACK))
    members.clock.advance(1.0)
    advice = members.sync(DOWN, members.names[:5])
    assert {one.state for one in advice} == {"recovering"}
    assert sum(one.limit for one in members.sync(NOTHING)) == pytest.approx(before / 2, rel=0.1)


ALL_WELL = MemberCounts(members=4, good=4, bad=0, place=0)
MIXED = ShelterReport("orders", "recovering", 8, 1, 0.0)
"""A ninth of the calls fails: more than `MAX_FAILURE_RATIO`, and no majority."""


def recovering(limit, base=None, grown=100.0):
    return OutageState("recovering", limit=limit, base=limit if base is None else base, grown=grown)


@pytest.mark.parametrize(
    ("report", "later", "limit"),
    [
        (NOTHING, 1.0, 20.0),  # an idle member changes nothing
        (BACK, 1.0, 22.0),  # plus 10 % a second once every member has one
        (BACK, 0.5, 23.0),  # of the limit when that second began
        (MIXED, 1.0, 10.0),  # halved
        (MIXED, 0.99, 20.0),  # at most once a second, and no growth
        (MIXED._replace(answered=9), 1.0, 22.0),  # a tenth may fail
    ],
)
def test_once_every_member_has_one_the_limit_grows_slowly(report, later, limit):
    """By 10 % a second; it is halved when more than a tenth of a member's calls fail."""
    known, advice = update(recovering(20.0, base=21.0 if later == 0.5 else None), report, "a", ALL_WELL, 100.0 + later)
    assert known.limit == pytest.approx(limit)
    assert advice.limit == pytest.approx(limit / 4)


@pytest.mark.parametrize(("limit", "base", "grown"), [(4.0, 3.9, 7.0), (4.0, 4.0, 4.4)])
def test_until_every_member_has_one_the_limit_may_double(limit, base, grown):
    """Growth is bounded by twice the limit at the start of the second."""
    known, _ = update(recovering(limit, base), BACK, "a", ALL_WELL, 100.5)
    assert known.limit == pytest.approx(grown)


def test_recovery_ends_at_eight_in_flight_for_each_member():
    """At 31.9 for four members it goes on, at 32 it is calm."""
    for limit, state in ((31.9, "recovering"), (32.0, "calm")):
        known, advice = update(recovering(limit, base=limit), NOTHING, "a", ALL_WELL, 100.5)
        assert (known.state, advice.state) == (state, state)


def test_a_hint_shorter_than_a_second_is_shared(fleet):
    """Other members are closed for the same half second."""
    members = fleet(2)
    members.sync(ShelterReport("orders", "probing", 0, 1, 0.5), members.names[:1])
    assert members.sync(NOTHING, members.names[1:])[0].pause == pytest.approx(0.5)


def test_a_hint_in_an_outage_closes_every_member(fleet):
    """Until the hint has passed, whichever member received it."""
    members = fleet(3)
    members.sync(ShelterReport("orders", "probing", 0, 1, 20.0), members.names[:1])
    members.clock.advance(10.0)
    assert [one.pause for one in members.sync(NOTHING)] == pytest.approx([10.0] * 3)
    members.clock.advance(10.0)
    assert [one.pause for one in members.sync(NOTHING)] == [0.0] * 3


def test_one_member_s_hint_closes_no_other_while_others_get_answers(fleet):
    """Its hint and failures may concern one of its callers only."""
    members = fleet(3)
    members.sync(UP)
    for _ in range(5):
        advice = members.sync(ShelterReport("orders", "probing", 0, 5, 299.0), members.names[:1]) + members.sync(
            UP, members.names[1:]
        )
        assert {(one.state, one.pause, one.limit) for one in advice} == {("calm", 0.0, inf)}
        members.clock.advance(1.0)


def test_the_first_answer_ends_a_shared_hint(fleet):
    """The server serves other members; the member with the hint keeps it locally."""
    members = fleet(3)
    members.sync(ShelterReport("orders", "probing", 0, 1, 20.0), members.names[:1])
    assert members.sync(BACK, members.names[:1])[0].pause == 0.0
    assert [one.pause for one in members.sync(NOTHING)] == [0.0] * 3


def test_a_shared_hint_is_cut_to_30_seconds(fleet):
    """A hint of 299 s closes the fleet for 30 s."""
    members = fleet(2)
    advice = members.sync(ShelterReport("orders", "probing", 0, 1, 299.0), members.names[:1])
    assert advice[0].pause == pytest.approx(30.0)


def test_dependencies_are_independent(fleet):
    """An outage of one name does not affect another."""
    members = fleet(2)
    members.sync(DOWN)
    assert {one.state for one in members.sync(UP._replace(name="mails"))} == {"calm"}


REPORTS = st.builds(
    ShelterReport,
    st.just("orders"),
    st.sampled_from(["calm", "storm", "probing", "recovering"]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.0, 0.0, 2.5]),
)


JUST_RECOVERING = OutageState("recovering", limit=FIRST_LIMIT, base=FIRST_LIMIT, grown=100.0)


@settings(max_examples=200)
@given(
    st.sampled_from([OutageState(), JUST_RECOVERING]),
    st.lists(st.tuples(REPORTS, st.integers(0, 7), st.floats(0, 2)), max_size=80),
)
@example(JUST_RECOVERING, [(DOWN, 0, 1.0), (DOWN, 1, 1.0), (BACK, 1, 1.0), (DOWN, 0, 0.0)])
@example(JUST_RECOVERING, [(UP, 0, 1.0), (DOWN, 1, 1.0), (NOTHING, 0, 1.0), (NOTHING, 2, 0.0), (DOWN, 3, 0.0)])
def test_the_rules_hold_for_any_reports(known, steps):
    """One prober at a time, bounded growth, relapse only by a majority, and no calls before a hint has passed."""
    now, views = 100.0, {}
    turns: dict[str, float] = {}
    for report, index, pause in steps:
        now += pause
        member = f"m{index}"
        views[member] = classify(report)
        counts = MemberCounts(
            len(views), list(views.values()).count("good"), list(views.values()).count("bad"), index % len(views)
        )
        before = known
        was = before.state if now < max(before.turn, before.grown) + OUTAGE_TIMEOUT else "calm"
        known, advice = update(known, report, member, counts, now)
        assert advice.pause == max(0.0, known.until - now)
        assert (advice.pause == 0.0) or known.state == "storm"
        if was == known.state == "storm":
            assert known.until >= min(before.until, now)
        if was == "recovering":
            relapse = report.failed > report.answered and counts.bad > counts.good
            assert (known.state == "storm") == relapse
            if relapse:
                assert (advice.probe, advice.limit, known.prober, known.turn) == (True, 0.0, member, now + PROBE_TURN)
        if advice.probe:
            assert advice.state == "storm"
            others = [until for other, until in turns.items() if other != member]
            if was == "storm":
                assert all(now >= until for until in others), "two probe at once"
            turns = {member: known.turn}
        if known.state != "storm":
            turns = {}
        if was == known.state == "recovering":
            assert known.limit <= before.limit + report.answered
            assert FIRST_LIMIT <= known.limit <= known.base * LIMIT_GROWTH
            assert known.limit < CALM_LIMIT * counts.members
        if advice.state == "recovering":
            assert advice.limit in (0.0, 1.0) or advice.limit == known.limit / counts.members


# -- shelters that apply the advice


def shelters(fleet_sync, count):
    fleet_syncs = [fleet_sync() for _ in range(count)]
    return fleet_syncs, [
        FleetShelter(one, "orders", rng=random.Random(number)) for number, one in enumerate(fleet_syncs)
    ]


def fail(shelter):
    """Make calls fail until the shelter detects an outage."""
    policy = abate.Policy(on=ConnectionError, max_attempts=1, shelter=shelter)

    def down():
        raise ConnectionError

    while shelter.state != "probing":
        with pytest.raises(ConnectionError):
            policy.call(down)


def test_an_outage_seen_by_one_member_closes_the_others(fleet_sync):
    """They send no calls; only one member probes."""
    fleet_syncs, (first, second, third) = shelters(fleet_sync, 3)
    fail(first)
    assert first.state == "probing"
    for one in fleet_syncs:
        one.sync_once()
    assert (second.state, third.state) == ("probing", "probing")
    sent = []
    for shelter in (second, third):
        with pytest.raises(abate.Refused), abate.deadline(0.5):
            abate.Policy(on=ConnectionError, shelter=shelter).call(lambda: sent.append(1))
    assert sent == []


def test_without_the_store_each_shelter_is_local(fleet_sync, flaky):
    """A member waits for no advice that cannot come."""
    fleet_syncs, (first, second) = shelters(fleet_sync, 2)
    fail(first)
    for one in fleet_syncs:
        one.sync_once()
    flaky.error = ConnectionError("gone")
    fleet_syncs[1].sync_once()
    sent = []
    abate.Policy(on=ConnectionError, shelter=second).call(lambda: sent.append(1))
    assert sent == [1]
    assert second.state == "recovering"


def test_an_answer_to_the_prober_starts_the_recovery(fleet_sync):
    """The prober recovers first, then the members whose turn it is."""
    fleet_syncs, (first, second) = shelters(fleet_sync, 2)
    fail(first)
    for one in fleet_syncs:
        one.sync_once()
    first._dispatchers.main.limiter.prober.next_probe = 0.0
    abate.Policy(on=ConnectionError, shelter=first).call(lambda: None)
    assert first.state == "recovering"
    for one in fleet_syncs:
        one.sync_once()
    sent = []
    abate.Policy(on=ConnectionError, shelter=second).call(lambda: sent.append(1))
    assert sent == [1]


def test_an_outage_is_synced_early(fleet_sync):
    """A shelter that detects one asks for a sync before the next interval."""
    (one,), (shelter,) = shelters(fleet_sync, 1)
    assert one._soon is False
    fail(shelter)
    assert one._soon is True
