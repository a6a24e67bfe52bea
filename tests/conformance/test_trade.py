"""How stores answer the offers of a fleet's members: as the rules in Python do, whatever they are written in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.stores import Terms, open_store
from abate.stores.fleet import rules, weather
from abate.stores.fleet.offers import GONE, Accounts, Demand, Share, Sight, Tokens
from abate.testing import VirtualClock
from tests.conformance.conftest import STORES

MEMBERS = tuple(f"{host}:{number}:0{number}" for number, host in enumerate("gbDfaCeh"))
TERMS = (
    Terms(ratio=0.2, reserve=1.0),
    Terms(ratio=0.6, reserve=0.0, window=2.0),
    Terms(ratio=1 / 3, reserve=1 / 6, window=4.0),
    Terms(ratio=0.123457, reserve=0.777777, window=10.1),
)


class Fleet:
    """What a store knows of its members, in dictionaries; what it answers, by the rules of `abate.stores.fleet`."""

    def __init__(self):
        self.members = {}  # by what is shared: by member, when it came, and what it said
        self.slots = {}  # by budget: by first instant, when it is forgotten, deposits, withdrawals
        self.known = {}  # by shelter

    def answer(self, now, member, offer):
        kind, name = type(offer), offer.name
        here = self.members.setdefault((kind, name), {})
        for other, (seen, _) in list(here.items()):
            if seen <= now - GONE or seen > now + GONE:
                del here[other]
        match offer:
            case Accounts():
                here[member] = (now, None)
                return self.tokens(now, offer, len(here))
            case Demand():
                others = [said for other, (_, said) in sorted(here.items()) if other != member]
                part = rules.part(offer.wanted, [wanted for wanted, _ in others], [part for _, part in others])
                here[member] = (now, (offer.wanted, part))
                return Share(part, len(here))
            case Sight():
                here[member] = (now, weather.seen(offer))
                return self.forecast(now, member, offer, here)

    def tokens(self, now, offer, members):
        begins, since, forgotten = offer.terms.slot(now)
        slots = self.slots.setdefault(offer.name, {})
        for first, (end, _, _) in list(slots.items()):
            if end <= now or first > begins + offer.terms.window:
                del slots[first]
        returned = offer.held
        for first in sorted(slots, reverse=True):
            if first >= since:
                back = min(returned, slots[first][2])
                slots[first][2] -= back
                returned -= back
        counted = [slot for first, slot in slots.items() if first >= since]
        deposits = sum(slot[1] for slot in counted) + offer.earned
        withdrawals = sum(slot[2] for slot in counted) + offer.spent
        granted = rules.granted(offer.terms, deposits, withdrawals, offer.want, members)
        if offer.earned or offer.spent or granted:  # who counts nothing keeps no slot
            slot = slots.setdefault(begins, [forgotten, 0, 0])
            slot[0] = max(slot[0], forgotten)
            slot[1] += offer.earned
            slot[2] += offer.spent + granted
        return Tokens(granted, members)

    def forecast(self, now, member, offer, here):
        lately = [said for seen, said in here.values() if seen > now - weather.LATELY]
        place = sum(other < member for other in here)
        line = weather.Line(len(here), lately.count("good"), lately.count("bad"), place)
        known, forecast = weather.heard(self.known.get(offer.name, weather.Known()), offer, member, line, now)
        self.known[offer.name] = known
        return forecast


def same(answer, expected):
    """Floats may be added in another order."""
    return type(answer) is type(expected) and all(
        one == other if isinstance(other, str) else one == pytest.approx(other)
        for one, other in zip(answer, expected, strict=True)
    )


FEW = st.sampled_from([0, 0, 1, 2, 3])
COUNTS = st.one_of(FEW, st.sampled_from([10, 1000, 10**6]))


def accounts(names, terms, counts):
    return st.builds(Accounts, names, terms, counts, FEW, FEW, counts)


def sights(names, closed):
    states = st.sampled_from(["calm", "storm", "probing", "recovering"])
    answered = st.sampled_from([0, 0, 1, 3, 10, 18, 100])  # of 18 and 2 as many fail as may
    return st.builds(Sight, names, states, answered, st.sampled_from([0, 0, 0, 2]), closed)


X, NAMES = st.just("x"), st.sampled_from(["x", "y"])
DEMANDS = st.sampled_from([0.0, 0.0, 1.0, 3.5, 1000.0])
OFFERS = {
    "budget": accounts(X, st.just(TERMS[0]), FEW),
    "budget of thirds": accounts(X, st.just(TERMS[2]), FEW),
    "budget of several terms": accounts(X, st.sampled_from(TERMS), COUNTS),
    "bucket": st.builds(Demand, X, DEMANDS),
    "shelter": sights(X, st.just(0.0)),
    "shelter with hints": sights(X, st.sampled_from([0.0, 0.0, 0.0, 2.5, 30.0])),
    "all": st.one_of(
        accounts(NAMES, st.sampled_from(TERMS), COUNTS),
        st.builds(Demand, NAMES, DEMANDS),
        sights(NAMES, st.sampled_from([0.0, 2.5])),
    ),
}


STORMY = [
    *((0.0, member, [Sight("x", "calm", 0, 0, 0.0)]) for member in MEMBERS),
    (0.0, MEMBERS[0], [Sight("x", "probing", 0, 5, 0.0)]),
    (0.0, MEMBERS[0], [Sight("x", "recovering", 1, 0, 0.0)]),
]
"""All are there, and the dependency comes back."""


@st.composite
def journeys(draw, shared):
    """Members that come one after the other; between them time passes, or does not."""
    offers = OFFERS[shared]
    members = MEMBERS[: draw(st.sampled_from([1, 2, len(MEMBERS)]))]
    pauses = draw(
        st.sampled_from([(0.0, 0.2, 1.0), (0.0, 0.0, 1.0), (0.2, 2.0), (0.0, 3.0), (0.0, 0.5, 1.0, 3.0, 5.0, 60.0)])
    )
    most = 3 if shared == "all" else 1
    begun = STORMY if shared == "shelter" and draw(st.booleans()) else []
    return begun + draw(
        st.lists(
            st.tuples(st.sampled_from(pauses), st.sampled_from(members), st.lists(offers, min_size=1, max_size=most)),
            min_size=1,
            max_size=50,
        )
    )


@pytest.mark.parametrize("shared", OFFERS)
@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_offers_are_answered_by_the_rules(kind, shared, tmp_path_factory, data):
    """Budgets, buckets and shelters, of several members that come, stay away and come again."""
    clock = VirtualClock(start=1000.0)
    model = Fleet()
    with open_store(STORES[kind](tmp_path_factory.mktemp("store")), clock=clock) as store:
        for pause, member, offers in data.draw(journeys(shared)):
            clock.advance(pause)
            answers = store.trade(member, offers)
            expected = [model.answer(clock.wall(), member, offer) for offer in offers]
            for offer, answer, wanted in zip(offers, answers, expected, strict=True):
                assert same(answer, wanted), (offer, answer, wanted)


CAME_BACK = [
    ("a:1:00", Sight("x", "probing", 0, 5, 0.0), "storm", True),
    ("b:2:ff", Sight("x", "probing", 0, 5, 0.0), "storm", False),
    ("a:1:00", Sight("x", "probing", 1, 0, 0.0), "recovering", False),
]


def test_one_member_probes_and_all_hear_of_the_first_answer(store, clock):
    """The others wait, and the doors open step by step until it is calm."""
    for member, sight, state, probe in CAME_BACK:
        (forecast,) = store.trade(member, [sight])
        assert (forecast.state, forecast.probe) == (state, probe)
        clock.advance(0.3)
    states = []
    for _ in range(20):
        for member in ("a:1:00", "b:2:ff"):
            states += [forecast.state for forecast in store.trade(member, [Sight("x", "recovering", 5, 0, 0.0)])]
        clock.advance(1.0)
    assert states[-1] == "calm"


@pytest.mark.parametrize(
    ("answered", "failed", "growth"),
    [(99, 1, weather.GENTLY), (90, 10, weather.GENTLY), (89, 11, 1.0), (55, 45, 1.0)],
)
def test_few_failures_among_many_answers_hold_nobody_back(store, clock, answered, failed, growth):
    """While it recovers the limit grows as if there were none; from more than a tenth on it does not."""
    model = Fleet()
    for member, sight, _, _ in CAME_BACK:
        clock.advance(0.1)
        (forecast,) = store.trade(member, [sight])
        assert forecast == model.answer(clock.wall(), member, sight)
    assert forecast.limit == weather.FIRST / 2  # of two members each
    clock.advance(weather.EVERY)
    sight = Sight("x", "recovering", answered, failed, 0.0)
    (forecast,) = store.trade("a:1:00", [sight])
    assert forecast == model.answer(clock.wall(), "a:1:00", sight)
    assert (forecast.state, forecast.limit) == ("recovering", growth * weather.FIRST / 2)


def test_few_failures_among_many_answers_are_no_storm(store):
    """Where it is calm it stays so, and where it was not, that is over."""
    for sight, state in (
        (Sight("x", "calm", 100, 5, 0.0), "calm"),
        (Sight("x", "calm", 51, 49, 0.0), "calm"),
        (Sight("x", "calm", 1, 5, 0.0), "storm"),
        (Sight("x", "probing", 5, 5, 0.0), "storm"),
        (Sight("x", "probing", 100, 5, 0.0), "recovering"),
    ):
        (forecast,) = store.trade("a:1:00", [sight])
        assert forecast.state == state


def test_a_hint_in_a_storm_closes_the_doors_of_all(store, clock):
    """For as long as was asked, from when it was told; the first answer opens them."""
    store.trade("a:1:00", [Sight("x", "probing", 0, 3, 20.0)])
    clock.advance(10.0)
    (forecast,) = store.trade("b:2:ff", [Sight("x", "calm", 0, 0, 0.0)])
    assert (forecast.state, forecast.closed, forecast.members) == ("storm", 10.0, 1)
    (forecast,) = store.trade("b:2:ff", [Sight("x", "calm", 1, 0, 0.0)])
    assert (forecast.state, forecast.closed) == ("recovering", 0.0)


def test_what_one_member_is_told_closes_no_other_door(store):
    """While others are answered: its failures and hints may be those of one of its callers."""
    store.trade("a:1:00", [Sight("x", "calm", 5, 0, 0.0)])
    for _ in range(3):
        for member, sight in (
            ("b:2:ff", Sight("x", "probing", 0, 9, 299.0)),
            ("a:1:00", Sight("x", "calm", 5, 0, 0.0)),
        ):
            (forecast,) = store.trade(member, [sight])
            assert (forecast.state, forecast.closed) == ("calm", 0.0)


def test_what_a_fleet_and_a_ledger_count_is_one_budget(store):
    """Under one name, whoever asks."""
    terms = Terms(ratio=0.0, reserve=1.0)
    assert store.trade("a:1:00", [Accounts("x", terms, 0, 3, 0, 4)]) == [Tokens(4, 1)]
    assert store.balance("x", terms) == 3.0
    assert store.exchange("x", terms, want=10) == 3
    assert store.trade("a:1:00", [Accounts("x", terms, 0, 0, 4, 1)]) == [Tokens(1, 1)]


LONG, SHORT = TERMS[:2]


@pytest.mark.parametrize(
    ("first", "granted"),
    [
        (Accounts("y", LONG, 0, 0, 0, 0), 10),  # counts nothing: the debit goes with the window of who spent it
        (Accounts("y", LONG, 0, 1, 0, 0), 8),  # counts something in the same slot: both debits stay
    ],
)
def test_a_slot_is_kept_for_the_longest_window_that_counted_in_it(store, clock, first, granted):
    """Members that disagree on the window: who only asked keeps nothing alive, whatever its window."""
    model = Fleet()
    journeys = [(0.0, first), (0.0, Accounts("y", SHORT, 0, 1, 0, 0)), (3.0, Accounts("y", LONG, 0, 0, 0, 10))]
    for pause, offer in journeys:
        clock.advance(pause)
        (answer,) = store.trade("a:1:00", [offer])
        assert answer == model.answer(clock.wall(), "a:1:00", offer)
    assert answer == Tokens(granted, 1)


def test_no_offers_have_no_answers(store):
    """A member that shares nothing."""
    assert store.trade("a:1:00", []) == []
