"""What a fleet knows of a dependency: who probes, and how the doors open."""

import random
from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import abate
from abate.stores import open_store
from abate.stores.fleet import FleetShelter
from abate.stores.fleet.messages import ShelterReport
from abate.stores.fleet.outage import (
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
from abate.testing import VirtualClock

UP = ShelterReport("orders", "calm", 5, 0, 0.0)
DOWN = ShelterReport("orders", "probing", 0, 5, 0.0)
NOTHING = ShelterReport("orders", "calm", 0, 0, 0.0)
BACK = ShelterReport("orders", "recovering", 3, 0, 0.0)


class Fleet:
    """Members that come to a store in virtual time."""

    def __init__(self, store, clock, many):
        self.store, self.clock = store, clock
        self.names = [f"member-{number:03}" for number in range(many)]

    def come(self, sight, names=None):
        """Each tells the same: what each is told."""
        return [self.store.sync_members(name, [sight])[0] for name in names or self.names]


@pytest.fixture
def clock():
    return VirtualClock(start=1000.0)


@pytest.fixture
def fleet(clock):
    with open_store("memory:", clock=clock) as store:
        yield lambda many: Fleet(store, clock, many)


def test_in_calm_nobody_is_held_back(fleet):
    """Members that see answers, or nothing, are told of calm."""
    told = fleet(5).come(UP)
    assert {(one.state, one.closed, one.probe, one.limit) for one in told} == {("calm", 0.0, False, inf)}
    assert told[-1].members == 5


def test_in_a_storm_one_probes_for_all(fleet):
    """However many see it fail, and however often they come."""
    many = fleet(50)
    for _ in range(5):
        told = many.come(DOWN)
        assert [one.state for one in told] == ["storm"] * 50
        assert sum(one.probe for one in told) == 1
        many.clock.advance(1.0)


def test_one_whose_own_network_is_broken_closes_nobody_elses_door(fleet):
    """It takes more who see failures than who see answers."""
    many = fleet(10)
    many.come(UP)
    assert many.come(DOWN, many.names[:1])[0].state == "calm"
    assert {one.state for one in many.come(UP, many.names[1:])} == {"calm"}
    told = many.come(DOWN, many.names[1:6])
    assert [one.state for one in told] == ["calm"] * 4 + ["storm"]


def test_who_sees_nothing_has_no_say(fleet):
    """Idle members neither make a storm nor keep it away."""
    many = fleet(10)
    many.come(NOTHING)
    assert many.come(DOWN, many.names[:1])[0].state == "storm"
    assert {one.state for one in many.come(NOTHING, many.names[1:])} == {"storm"}


def test_whoever_probes_does_so_for_a_turn(fleet):
    """One who is idle, or cut off by itself, must not shut out the others: the next with calls waiting has its turn."""
    many = fleet(3)
    many.come(DOWN)
    probers = []
    for _ in range(4):
        many.clock.advance(PROBE_TURN)
        probers += [name for name in reversed(many.names) if many.come(DOWN, [name])[0].probe]
        many.clock.advance(PROBE_TURN)
        many.come(NOTHING, many.names[2:])
        probers += [name for name in many.names if many.come(DOWN, [name])[0].probe]
    assert set(probers) == {many.names[0], many.names[2]}


def test_a_storm_that_nobody_has_calls_for_is_forgotten(fleet):
    """A fleet that was replaced, or went quiet, leaves none behind."""
    many = fleet(2)
    many.come(DOWN)
    many.clock.advance(PROBE_TURN + OUTAGE_TIMEOUT)
    assert [one.state for one in many.come(NOTHING)] == ["calm", "calm"]


def test_everybody_has_a_turn_while_the_doors_open(fleet):
    """Those first in line may be idle: the line moves on."""
    many = fleet(50)
    many.come(DOWN)
    many.come(BACK, many.names[:1])
    opened = set()
    for _ in range(60):
        many.clock.advance(1.0)
        opened |= {name for name, one in zip(many.names, many.come(NOTHING), strict=True) if one.limit >= 1}
    assert opened == set(many.names)


def test_a_clock_that_is_set_back_closes_no_door():
    """Instants that lie too far ahead are none."""
    known = OutageState("storm", until=10_000.0, prober="a", turn=10_003.0)
    known, told = update(known, DOWN, "b", MemberCounts(2, 0, 1, 1), now=1_000.0)
    assert told.closed <= 3600.0
    assert update(known, DOWN, "b", MemberCounts(2, 0, 1, 1), now=1_000.0 + PROBE_TURN)[1].probe


def test_a_prober_that_stays_away_is_replaced(fleet):
    """When its turn is over, by the next one that comes and sees it fail."""
    many = fleet(3)
    assert [one.probe for one in many.come(DOWN)] == [True, False, False]
    many.clock.advance(PROBE_TURN)
    assert many.come(NOTHING, many.names[2:])[0].probe is False
    assert [one.probe for one in many.come(DOWN, many.names[1:])] == [True, False]


def test_the_doors_open_one_after_the_other(fleet):
    """After the first answer a few, then more with every answer, until there is plenty for all."""
    many = fleet(100)
    many.come(DOWN)
    assert many.come(BACK, many.names[:1])[0].state == "recovering"
    opened = []
    for _ in range(60):
        told = many.come(BACK)
        opened.append(sum(one.limit for one in told))
        if told[-1].state == "calm":
            break
        many.clock.advance(1.0)
    assert opened[0] <= 100 * FIRST_LIMIT_SHARE * LIMIT_GROWTH
    assert opened[-1] == inf
    for before, after in pairwise(opened[:-1]):
        assert after <= before * LIMIT_GROWTH + 1e-9
    assert len(opened) >= 3


def test_failures_on_the_way_close_the_doors_again(fleet):
    """When more members see failures than answers, the first of them probes."""
    many = fleet(10)
    many.come(DOWN)
    many.come(BACK, many.names[:1])
    told = many.come(DOWN, many.names[1:2])[0]
    assert (told.state, told.probe) == ("storm", True)


def test_a_relapse_takes_more_who_see_failures_than_answers(fleet):
    """While as many see answers the doors stay open; the one who tips the balance probes, for a turn of its own."""
    many = fleet(4)
    many.come(DOWN, many.names[:1])
    assert many.come(BACK, many.names[:2])[1].state == "recovering"
    many.clock.advance(1.0)
    assert {one.state for one in many.come(DOWN, many.names[2:])} == {"recovering"}
    told = many.come(DOWN, many.names[1:2])[0]
    assert (told.state, told.probe, told.limit) == ("storm", True, 0.0)
    many.clock.advance(PROBE_TURN - 0.5)
    assert [one.probe for one in many.come(DOWN)] == [False, True, False, False]
    many.clock.advance(0.5)
    assert [one.probe for one in many.come(DOWN)] == [True, False, False, False]


def test_a_member_without_calls_does_not_relapse_the_fleet(fleet):
    """However many have seen failures lately, it takes one that sees them now."""
    many = fleet(4)
    many.come(DOWN)
    assert many.come(BACK, many.names[:1])[0].state == "recovering"
    assert many.come(NOTHING, many.names[1:2])[0].state == "recovering"
    assert many.come(BACK, many.names[:1])[0].state == "recovering"


def test_a_member_that_sees_failures_halves_the_limit_once_a_second(fleet):
    """A server that turns some away has enough: less is sent, and what was won is not lost."""
    many = fleet(100)
    many.come(DOWN)
    for _ in range(4):
        many.clock.advance(1.0)
        many.come(BACK)
    before = sum(one.limit for one in many.come(BACK))
    many.clock.advance(1.0)
    told = many.come(DOWN, many.names[:5])
    assert {one.state for one in told} == {"recovering"}
    assert sum(one.limit for one in many.come(NOTHING)) == pytest.approx(before / 2, rel=0.1)


ALL_WELL = MemberCounts(members=4, good=4, bad=0, place=0)
MIXED = ShelterReport("orders", "recovering", 8, 1, 0.0)
"""A ninth of the calls is turned away: more than `MAX_FAILURE_RATIO`, and far from most."""


def recovering(limit, base=None, grown=100.0):
    return OutageState("recovering", limit=limit, base=limit if base is None else base, grown=grown)


@pytest.mark.parametrize(
    ("sight", "later", "limit"),
    [
        (NOTHING, 1.0, 20.0),  # an idle member is turned away by nobody
        (BACK, 1.0, 22.0),  # 10 % more in a second where everybody has one
        (BACK, 0.5, 23.0),  # of what it was at the beginning of that second
        (MIXED, 1.0, 10.0),  # halved
        (MIXED, 0.99, 20.0),  # but no more than once a second, and it does not grow
        (MIXED._replace(answered=9), 1.0, 22.0),  # a tenth may fail
    ],
)
def test_where_everybody_has_one_the_limit_grows_gently(sight, later, limit):
    """The server's own limit may be near; it is halved when more than a tenth of somebody's calls fail."""
    known, told = update(recovering(20.0, base=21.0 if later == 0.5 else None), sight, "a", ALL_WELL, 100.0 + later)
    assert known.limit == pytest.approx(limit)
    assert told.limit == pytest.approx(limit / 4)


@pytest.mark.parametrize(("limit", "base", "grown"), [(4.0, 3.9, 7.0), (4.0, 4.0, 4.4)])
def test_until_everybody_has_one_it_may_double(limit, base, grown):
    """From what it was when the second began."""
    known, _ = update(recovering(limit, base), BACK, "a", ALL_WELL, 100.5)
    assert known.limit == pytest.approx(grown)


def test_it_is_calm_when_there_is_plenty_for_each():
    """At eight for each, and not before."""
    line = ALL_WELL
    for limit, state in ((31.9, "recovering"), (32.0, "calm")):
        known, told = update(recovering(limit, base=limit), NOTHING, "a", line, 100.5)
        assert (known.state, told.state) == (state, state)


def test_a_short_hint_is_a_hint(fleet):
    """Of less than a second, too."""
    many = fleet(2)
    many.come(ShelterReport("orders", "probing", 0, 1, 0.5), many.names[:1])
    assert many.come(NOTHING, many.names[1:])[0].closed == pytest.approx(0.5)


def test_a_hint_in_a_storm_closes_every_door(fleet):
    """Until then, whoever was told."""
    many = fleet(3)
    many.come(ShelterReport("orders", "probing", 0, 1, 20.0), many.names[:1])
    many.clock.advance(10.0)
    assert [one.closed for one in many.come(NOTHING)] == pytest.approx([10.0] * 3)
    many.clock.advance(10.0)
    assert [one.closed for one in many.come(NOTHING)] == [0.0] * 3


def test_what_one_member_is_told_closes_no_door_while_others_are_answered(fleet):
    """Neither its hint nor its failures: they may be those of one of its callers."""
    many = fleet(3)
    many.come(UP)
    for _ in range(5):
        told = many.come(ShelterReport("orders", "probing", 0, 5, 299.0), many.names[:1]) + many.come(
            UP, many.names[1:]
        )
        assert {(one.state, one.closed, one.limit) for one in told} == {("calm", 0.0, inf)}
        many.clock.advance(1.0)


def test_the_first_answer_ends_a_hint(fleet):
    """The server serves others: whoever was told is held back by itself."""
    many = fleet(3)
    many.come(ShelterReport("orders", "probing", 0, 1, 20.0), many.names[:1])
    assert many.come(BACK, many.names[:1])[0].closed == 0.0
    assert [one.closed for one in many.come(NOTHING)] == [0.0] * 3


def test_a_hint_of_minutes_is_probed_after_half_a_minute(fleet):
    """However long the server asks for."""
    many = fleet(2)
    told = many.come(ShelterReport("orders", "probing", 0, 1, 299.0), many.names[:1])
    assert told[0].closed == pytest.approx(30.0)


def test_dependencies_are_apart(fleet):
    """A storm over one is none over another."""
    many = fleet(2)
    many.come(DOWN)
    assert {one.state for one in many.come(UP._replace(name="mails"))} == {"calm"}


SIGHTS = st.builds(
    ShelterReport,
    st.just("orders"),
    st.sampled_from(["calm", "storm", "probing", "recovering"]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.0, 0.0, 2.5]),
)


CAME_BACK = OutageState("recovering", limit=FIRST_LIMIT, base=FIRST_LIMIT, grown=100.0)


@settings(max_examples=200)
@given(
    st.sampled_from([OutageState(), CAME_BACK]),
    st.lists(st.tuples(SIGHTS, st.integers(0, 7), st.floats(0, 2)), max_size=80),
)
@example(CAME_BACK, [(DOWN, 0, 1.0), (DOWN, 1, 1.0), (BACK, 1, 1.0), (DOWN, 0, 0.0)])
@example(CAME_BACK, [(UP, 0, 1.0), (DOWN, 1, 1.0), (NOTHING, 0, 1.0), (NOTHING, 2, 0.0), (DOWN, 3, 0.0)])
def test_whatever_members_tell_the_rules_hold(known, steps):
    """One turn at a time, limits that grow step by step, a relapse where most see failures and nowhere else, nobody
    sent before a hint is over."""
    now, views = 100.0, {}
    turns: dict[str, float] = {}
    for sight, who, pause in steps:
        now += pause
        member = f"m{who}"
        views[member] = classify(sight)
        line = MemberCounts(
            len(views), list(views.values()).count("good"), list(views.values()).count("bad"), who % len(views)
        )
        before = known
        was = before.state if now < max(before.turn, before.grown) + OUTAGE_TIMEOUT else "calm"
        known, told = update(known, sight, member, line, now)
        assert told.closed == max(0.0, known.until - now)
        assert (told.closed == 0.0) or known.state == "storm"
        if was == known.state == "storm":
            assert known.until >= min(before.until, now)
        if was == "recovering":
            relapse = sight.failed > sight.answered and line.bad > line.good
            assert (known.state == "storm") == relapse
            if relapse:
                assert (told.probe, told.limit, known.prober, known.turn) == (True, 0.0, member, now + PROBE_TURN)
        if told.probe:
            assert told.state == "storm"
            others = [until for other, until in turns.items() if other != member]
            if was == "storm":
                assert all(now >= until for until in others), "two probe at once"
            turns = {member: known.turn}
        if known.state != "storm":
            turns = {}
        if was == known.state == "recovering":
            assert known.limit <= before.limit + sight.answered
            assert FIRST_LIMIT <= known.limit <= known.base * LIMIT_GROWTH
            assert known.limit < CALM_LIMIT * line.members
        if told.state == "recovering":
            assert told.limit in (0.0, 1.0) or told.limit == known.limit / line.members


# -- the shelter that goes by it


def shelters(fleet_sync, many):
    fleet_syncs = [fleet_sync() for _ in range(many)]
    return fleet_syncs, [
        FleetShelter(one, "orders", rng=random.Random(number)) for number, one in enumerate(fleet_syncs)
    ]


def fail(shelter, times=6):
    """Let calls of a policy fail until its shelter has seen a storm."""
    policy = abate.Policy(on=ConnectionError, max_attempts=1, shelter=shelter)

    def down():
        raise ConnectionError

    for _ in range(times):
        with pytest.raises((ConnectionError, abate.Refused)), abate.deadline(0.001):
            policy.call(down)


def test_a_storm_that_one_has_seen_holds_back_the_others(fleet_sync):
    """They are told to send nothing, and only one of them probes."""
    fleet_syncs, (first, second, third) = shelters(fleet_sync, 3)
    fail(first)
    assert first.state == "probing"
    for one in fleet_syncs:
        one.sync_once()
    assert (second.state, third.state) == ("probing", "probing")
    sent = []
    for shelter in (second, third):
        with pytest.raises(abate.Refused), abate.deadline(0.01):
            abate.Policy(on=ConnectionError, shelter=shelter).call(lambda: sent.append(1))
    assert sent == []


def test_without_the_store_each_shelters_alone(fleet_sync, flaky):
    """Nobody waits for a word that doesn't come."""
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


def test_an_answer_of_the_prober_opens_the_doors(fleet_sync):
    """Step by step: first itself, then those whose place in the line it is."""
    fleet_syncs, (first, second) = shelters(fleet_sync, 2)
    fail(first)
    for one in fleet_syncs:
        one.sync_once()
    first._dispatchers.main.limiter.prober.pause_until = 0.0
    abate.Policy(on=ConnectionError, shelter=first).call(lambda: None)
    assert first.state == "recovering"
    for one in fleet_syncs:
        one.sync_once()
    sent = []
    abate.Policy(on=ConnectionError, shelter=second).call(lambda: sent.append(1))
    assert sent == [1]


def test_a_shelter_in_need_makes_the_courier_hurry(fleet_sync):
    """A storm is told as soon as may be, not with the next beat."""
    (one,), (shelter,) = shelters(fleet_sync, 1)
    assert one._soon is False
    fail(shelter)
    assert one._soon is True
