"""How stores answer the sync requests of a fleet's members: exactly as the rules in Python, in every implementation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import grant_rules, shelter_rules
from abate.stores.fleet.sync_requests import (
    MEMBER_TIMEOUT,
    BucketGrant,
    BucketRequest,
    BudgetGrant,
    BudgetRequest,
    ShelterReport,
)
from abate.testing import VirtualClock
from tests.conformance.conftest import STORES

MEMBERS = tuple(f"{host}:{number}:0{number}" for number, host in enumerate("gbDfaCeh"))
TERMS = (
    BudgetTerms(ratio=0.2, reserve=1.0),
    BudgetTerms(ratio=0.6, reserve=0.0, window=2.0),
    BudgetTerms(ratio=1 / 3, reserve=1 / 6, window=4.0),
    BudgetTerms(ratio=0.123457, reserve=0.777777, window=10.1),
)


class Fleet:
    """What a store knows of its members, in dictionaries; what it answers, by the rules of `abate.stores.fleet`."""

    def __init__(self):
        self.members = {}  # by what is shared: by member, when it came, and what it said
        self.slots = {}  # by budget: by first instant, when it is forgotten, deposits, withdrawals
        self.known = {}  # by shelter

    def answer(self, now, member, request):
        kind, name = type(request), request.name
        here = self.members.setdefault((kind, name), {})
        for other, (seen, _) in list(here.items()):
            if seen <= now - MEMBER_TIMEOUT or seen > now + MEMBER_TIMEOUT:
                del here[other]
        match request:
            case BudgetRequest():
                here[member] = (now, None)
                return self.tokens(now, request, len(here))
            case BucketRequest():
                others = [said for other, (_, said) in sorted(here.items()) if other != member]
                part = grant_rules.bucket_share(
                    request.wanted, [wanted for wanted, _ in others], [part for _, part in others]
                )
                here[member] = (now, (request.wanted, part))
                return BucketGrant(part, len(here))
            case ShelterReport():
                here[member] = (now, shelter_rules.classify(request))
                return self.advice(now, member, request, here)

    def tokens(self, now, request, members):
        begins, since, forgotten = request.terms.slot(now)
        slots = self.slots.setdefault(request.name, {})
        for first, (end, _, _) in list(slots.items()):
            if end <= now or first > begins + request.terms.window:
                del slots[first]
        returned = request.held
        for first in sorted(slots, reverse=True):
            if first >= since:
                back = min(returned, slots[first][2])
                slots[first][2] -= back
                returned -= back
        counted = [slot for first, slot in slots.items() if first >= since]
        deposits = sum(slot[1] for slot in counted) + request.earned
        withdrawals = sum(slot[2] for slot in counted) + request.spent
        granted = grant_rules.budget_grant(request.terms, deposits, withdrawals, request.want, members)
        if request.earned or request.spent or granted:  # a member that counts nothing keeps no slot
            slot = slots.setdefault(begins, [forgotten, 0, 0])
            slot[0] = max(slot[0], forgotten)
            slot[1] += request.earned
            slot[2] += request.spent + granted
        return BudgetGrant(granted, members)

    def advice(self, now, member, request, here):
        lately = [said for seen, said in here.values() if seen > now - shelter_rules.REPORT_VALID]
        place = sum(other < member for other in here)
        line = shelter_rules.MemberCounts(len(here), lately.count("good"), lately.count("bad"), place)
        known, advice = shelter_rules.update(
            self.known.get(request.name, shelter_rules.OutageState()), request, member, line, now
        )
        self.known[request.name] = known
        return advice


def same(answer, expected):
    """Floats may be added in another order."""
    return type(answer) is type(expected) and all(
        one == other if isinstance(other, str) else one == pytest.approx(other)
        for one, other in zip(answer, expected, strict=True)
    )


FEW = st.sampled_from([0, 0, 1, 2, 3])
COUNTS = st.one_of(FEW, st.sampled_from([10, 1000, 10**6]))


def accounts(names, terms, counts):
    return st.builds(BudgetRequest, names, terms, counts, FEW, FEW, counts)


def sights(names, closed):
    states = st.sampled_from(["calm", "storm", "probing", "recovering"])
    answered = st.sampled_from([0, 0, 1, 3, 10, 18, 100])  # of 18 and 2 as many fail as may
    return st.builds(ShelterReport, names, states, answered, st.sampled_from([0, 0, 0, 2]), closed)


X, NAMES = st.just("x"), st.sampled_from(["x", "y"])
DEMANDS = st.sampled_from([0.0, 0.0, 1.0, 3.5, 1000.0])
OFFERS = {
    "budget": accounts(X, st.just(TERMS[0]), FEW),
    "budget of thirds": accounts(X, st.just(TERMS[2]), FEW),
    "budget of several terms": accounts(X, st.sampled_from(TERMS), COUNTS),
    "bucket": st.builds(BucketRequest, X, DEMANDS),
    "shelter": sights(X, st.just(0.0)),
    "shelter with hints": sights(X, st.sampled_from([0.0, 0.0, 0.0, 2.5, 30.0])),
    "all": st.one_of(
        accounts(NAMES, st.sampled_from(TERMS), COUNTS),
        st.builds(BucketRequest, NAMES, DEMANDS),
        sights(NAMES, st.sampled_from([0.0, 2.5])),
    ),
}


STORMY = [
    *((0.0, member, [ShelterReport("x", "calm", 0, 0, 0.0)]) for member in MEMBERS),
    (0.0, MEMBERS[0], [ShelterReport("x", "probing", 0, 5, 0.0)]),
    (0.0, MEMBERS[0], [ShelterReport("x", "recovering", 1, 0, 0.0)]),
]
"""All are there, and the dependency comes back."""


@st.composite
def rounds(draw, shared):
    """Members that come one after the other; between them time passes, or does not."""
    requests = OFFERS[shared]
    members = MEMBERS[: draw(st.sampled_from([1, 2, len(MEMBERS)]))]
    pauses = draw(
        st.sampled_from([(0.0, 0.2, 1.0), (0.0, 0.0, 1.0), (0.2, 2.0), (0.0, 3.0), (0.0, 0.5, 1.0, 3.0, 5.0, 60.0)])
    )
    most = 3 if shared == "all" else 1
    begun = STORMY if shared == "shelter" and draw(st.booleans()) else []
    return begun + draw(
        st.lists(
            st.tuples(st.sampled_from(pauses), st.sampled_from(members), st.lists(requests, min_size=1, max_size=most)),
            min_size=1,
            max_size=50,
        )
    )


@pytest.mark.parametrize("shared", OFFERS)
@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_sync_requests_are_answered_by_the_rules(kind, shared, tmp_path_factory, data):
    """Budgets, buckets and shelters of several members that join, leave and join again."""
    clock = VirtualClock(start=1000.0)
    model = Fleet()
    with open_store(STORES[kind](tmp_path_factory.mktemp("store")), clock=clock) as store:
        for pause, member, requests in data.draw(rounds(shared)):
            clock.advance(pause)
            answers = store.sync_members(member, requests)
            expected = [model.answer(clock.wall(), member, request) for request in requests]
            for request, answer, wanted in zip(requests, answers, expected, strict=True):
                assert same(answer, wanted), (request, answer, wanted)


CAME_BACK = [
    ("a:1:00", ShelterReport("x", "probing", 0, 5, 0.0), "storm", True),
    ("b:2:ff", ShelterReport("x", "probing", 0, 5, 0.0), "storm", False),
    ("a:1:00", ShelterReport("x", "probing", 1, 0, 0.0), "recovering", False),
]


def test_one_member_probes_and_its_first_answer_reaches_all(store, clock):
    """The others wait, and the shelters open step by step until it is calm."""
    for member, sight, state, probe in CAME_BACK:
        (advice,) = store.sync_members(member, [sight])
        assert (advice.state, advice.probe) == (state, probe)
        clock.advance(0.3)
    states = []
    for _ in range(20):
        for member in ("a:1:00", "b:2:ff"):
            states += [
                advice.state for advice in store.sync_members(member, [ShelterReport("x", "recovering", 5, 0, 0.0)])
            ]
        clock.advance(1.0)
    assert states[-1] == "calm"


@pytest.mark.parametrize(
    ("answered", "failed", "growth"),
    [(99, 1, shelter_rules.SLOW_GROWTH), (90, 10, shelter_rules.SLOW_GROWTH), (89, 11, 1.0), (55, 45, 1.0)],
)
def test_few_failures_among_many_answers_do_not_slow_the_recovery(store, clock, answered, failed, growth):
    """The limit grows as if there were none; from more than a tenth on it does not."""
    model = Fleet()
    for member, sight, _, _ in CAME_BACK:
        clock.advance(0.1)
        (advice,) = store.sync_members(member, [sight])
        assert advice == model.answer(clock.wall(), member, sight)
    assert advice.limit == shelter_rules.FIRST_LIMIT / 2  # of two members each
    clock.advance(shelter_rules.GROWTH_INTERVAL)
    sight = ShelterReport("x", "recovering", answered, failed, 0.0)
    (advice,) = store.sync_members("a:1:00", [sight])
    assert advice == model.answer(clock.wall(), "a:1:00", sight)
    assert (advice.state, advice.limit) == ("recovering", growth * shelter_rules.FIRST_LIMIT / 2)


def test_few_failures_among_many_answers_are_not_a_storm(store):
    """A calm shelter stays calm, and a storm ends."""
    for sight, state in (
        (ShelterReport("x", "calm", 100, 5, 0.0), "calm"),
        (ShelterReport("x", "calm", 51, 49, 0.0), "calm"),
        (ShelterReport("x", "calm", 1, 5, 0.0), "storm"),
        (ShelterReport("x", "probing", 5, 5, 0.0), "storm"),
        (ShelterReport("x", "probing", 100, 5, 0.0), "recovering"),
    ):
        (advice,) = store.sync_members("a:1:00", [sight])
        assert advice.state == state


def test_a_hint_in_a_storm_closes_all_members(store, clock):
    """For the hint's duration from when it was reported; the first answer opens them."""
    store.sync_members("a:1:00", [ShelterReport("x", "probing", 0, 3, 20.0)])
    clock.advance(10.0)
    (advice,) = store.sync_members("b:2:ff", [ShelterReport("x", "calm", 0, 0, 0.0)])
    assert (advice.state, advice.pause, advice.members) == ("storm", 10.0, 1)
    (advice,) = store.sync_members("b:2:ff", [ShelterReport("x", "calm", 1, 0, 0.0)])
    assert (advice.state, advice.pause) == ("recovering", 0.0)


def test_a_hint_to_one_member_closes_no_other_while_others_are_answered(store):
    """Its failures and hints may be those of one of its callers."""
    store.sync_members("a:1:00", [ShelterReport("x", "calm", 5, 0, 0.0)])
    for _ in range(3):
        for member, sight in (
            ("b:2:ff", ShelterReport("x", "probing", 0, 9, 299.0)),
            ("a:1:00", ShelterReport("x", "calm", 5, 0, 0.0)),
        ):
            (advice,) = store.sync_members(member, [sight])
            assert (advice.state, advice.pause) == ("calm", 0.0)


def test_a_fleet_and_a_store_budget_of_one_name_share_their_counts(store):
    """Both see the same balance."""
    terms = BudgetTerms(ratio=0.0, reserve=1.0)
    assert store.sync_members("a:1:00", [BudgetRequest("x", terms, 0, 3, 0, 4)]) == [BudgetGrant(4, 1)]
    assert store.balance("x", terms) == 3.0
    assert store.exchange("x", terms, want=10) == 3
    assert store.sync_members("a:1:00", [BudgetRequest("x", terms, 0, 0, 4, 1)]) == [BudgetGrant(1, 1)]


LONG, SHORT = TERMS[:2]


@pytest.mark.parametrize(
    ("first", "granted"),
    [
        (BudgetRequest("y", LONG, 0, 0, 0, 0), 10),  # counts nothing: the debit goes with the window of who spent it
        (BudgetRequest("y", LONG, 0, 1, 0, 0), 8),  # counts something in the same slot: both debits stay
    ],
)
def test_a_slot_is_kept_for_the_longest_window_that_counted_in_it(store, clock, first, granted):
    """Members that disagree on the window: who only asked keeps nothing alive, whatever its window."""
    model = Fleet()
    rounds = [(0.0, first), (0.0, BudgetRequest("y", SHORT, 0, 1, 0, 0)), (3.0, BudgetRequest("y", LONG, 0, 0, 0, 10))]
    for pause, request in rounds:
        clock.advance(pause)
        (answer,) = store.sync_members("a:1:00", [request])
        assert answer == model.answer(clock.wall(), "a:1:00", request)
    assert answer == BudgetGrant(granted, 1)


def test_no_offers_have_no_answers(store):
    """A member that shares nothing."""
    assert store.sync_members("a:1:00", []) == []
