"""Calls as callbacks: what the simulated driver does is what the production driver does, on the same answers."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, ConcurrencyLimit, Policy, Shelter, TokenBucket
from abate.clock import current
from abate.sim import simulated
from abate.sim.agenda import Agenda
from abate.sim.calls import CallDriver
from abate.sim.server import answer
from abate.sim.simulation import bind_policy
from abate.testing import VirtualClock

FAILURES = {
    503: answer(503),
    500: answer(500),
    404: answer(404),
    429: answer(429, 3.0),
    "layer": answer(502, exhausted=True),
}
FINE = 200


class Seen(list):
    """What happened: attempts when they were sent, how each call ended and when; what was in the budget after that."""

    def __init__(self):
        super().__init__()
        self.balances = {}

    def sent(self, client, now):
        self.append(("sent", client, now))

    def over(self, client, now, reason, budget):
        self.append(("over", client, now, reason))
        self.balances[now] = budget.balance()  # calls that end at one instant may end in any order


class Scripted:
    """A server that answers each client by its script of delays and statuses."""

    def __init__(self, agenda, scripts):
        self.agenda = agenda
        self.scripts = [list(script) for script in scripts]

    def submit(self, request):
        seconds, status = self.scripts[request.owner.client].pop(0)
        failure = None if status == FINE else FAILURES[status]()
        self.agenda.at(self.agenda.time + seconds, lambda _: request.reply(request, failure), None)


def simulated_calls(policy, scripts, starts):
    """The calls by the callback driver."""
    agenda, seen = Agenda(), Seen()
    here = bind_policy(policy, agenda, Random(7), FAILURES.values())
    caller = CallDriver(here, Scripted(agenda, scripts), agenda, seen.sent)

    def ended(journey, reason):
        seen.over(journey.client, agenda.now(), reason, here.budget)

    for client, start in enumerate(starts):
        agenda.at(start, lambda client: caller.call(ended, None, client), client)
    agenda.run(until=1000.0)
    return seen


def production_calls(policy, scripts, starts):
    """The calls by the driver for tasks, on a virtual clock."""
    seen, rng = Seen(), Random(7)
    clock = VirtualClock()
    budget = Budget(*policy.budget.settings(), clock=clock)
    shelter = policy.shelter and Shelter(policy.shelter.capacity, policy.shelter.patience, clock=clock, rng=rng)
    here = policy.replace(clock=clock, rng=rng, budget=budget, shelter=shelter, name="production")

    async def call(client, start):
        script = list(scripts[client])

        async def attempt():
            seen.sent(client, clock.now())
            seconds, status = script.pop(0)
            await clock.asleep(seconds)
            if status != FINE:
                raise FAILURES[status]

        await clock.asleep(start)
        try:
            await here.acall(attempt)
        except abate.errors.AbateError as error:
            report = abate.report(error)
            seen.over(client, clock.now(), "budget" if report is None else report.reason, budget)
        else:
            seen.over(client, clock.now(), None, budget)

    async def all_of_them():
        await asyncio.gather(*(call(client, start) for client, start in enumerate(starts)))

    with clock:
        asyncio.run(all_of_them())
    return seen


def both(policy, scripts, starts=(0.0,)):
    """What both drivers made of the same."""
    ours, production = simulated_calls(policy, scripts, starts), production_calls(policy, scripts, starts)
    assert (ours, ours.balances) == (production, production.balances)
    return ours


def ending(seen):
    """How a single call ended."""
    (end,) = [event[2:] for event in seen if event[0] == "over"]
    return end


# answers take odd times and calls begin at odd ones, so that hardly ever two things happen at one instant
SECONDS = st.floats(0.01, 3.0).map(lambda seconds: round(seconds, 6) + 1e-8)
STATUSES = st.sampled_from([FINE, FINE, 503, 503, 503, 500, 429, 404, "layer"])
SCRIPTS = st.lists(st.tuples(SECONDS, STATUSES), min_size=6, max_size=6)
POLICIES = st.builds(
    lambda **settings: Policy(on=simulated, **settings),
    max_attempts=st.integers(1, 6),
    timeout=st.sampled_from([None, None, None, 2.5, 8.0]),
    attempt_timeout=st.sampled_from([None, None, None, 1.0]),
    backoff=st.builds(Backoff, st.sampled_from([0.1, 1.0]), jitter=st.sampled_from(["full", "decorrelated", "none"])),
    budget=st.builds(
        Budget,
        st.sampled_from([0.5, 0.5, 0.0]),
        st.sampled_from([0.0, 0.2, 10.0]),
        funded_by=st.sampled_from(["success", "success", "request"]),
    ),
    idempotent=st.sampled_from([None, False]),
    max_hint=st.sampled_from([300.0, 2.0]),
)


@given(policy=POLICIES, script=SCRIPTS)
def test_one_call_goes_as_in_production(policy, script):
    """Attempts at the same instants, the same end for the same reason, the same deposits and withdrawals."""
    both(policy, [script])


CALLS = st.lists(st.tuples(SECONDS.map(lambda seconds: 4 * seconds), SCRIPTS), min_size=1, max_size=8).map(
    lambda calls: [(start + 1e-7 * client, script) for client, (start, script) in enumerate(calls)]
)


@given(policy=POLICIES, calls=CALLS)
def test_many_calls_that_share_a_budget_go_as_in_production(policy, calls):
    """In the same order, as chance is shared too."""
    both(policy, [script for _, script in calls], [start for start, _ in calls])


@given(
    policy=POLICIES,
    calls=CALLS,
    capacity=st.sampled_from([1, 3, 100]),
    patience=st.sampled_from([0.7, 5.0]),
)
def test_many_calls_that_share_a_shelter_go_as_in_production(policy, calls, capacity, patience):
    """Each waiting call is sent, or refused, at the same instant."""
    sheltered = policy.replace(shelter=Shelter(capacity, patience))
    both(sheltered, [script for _, script in calls], [start for start, _ in calls])


# -- one by one, so that it is known what happens

NO_CHANCE = Policy(on=simulated, max_attempts=3, backoff=Backoff(2.0, jitter="none"), budget=Budget.unlimited())


def test_retries_wait_for_their_backoff():
    """2 s, and 4 s."""
    seen = both(NO_CHANCE, [[(1.0, 503), (1.0, 503), (1.0, FINE)]])
    assert seen == [("sent", 0, 0.0), ("sent", 0, 3.0), ("sent", 0, 8.0), ("over", 0, 9.0, None)]


@pytest.mark.parametrize(("funded_by", "balances"), [("success", (2.5, 1.0, 1.0)), ("request", (3.5, 1.5, 1.5))])
def test_deposits_and_withdrawals_are_those_of_production(funded_by, balances):
    """A success at once, one after a retry, and none: each pays in when it should, and retries pay out."""
    policy = NO_CHANCE.replace(max_attempts=2, budget=Budget(0.5, 0.2, funded_by=funded_by))
    scripts = [[(1.0, FINE)], [(1.0, 503), (1.0, FINE)], [(1.0, 503), (2.0, 503)]]
    seen = both(policy, scripts, [0.0, 0.25, 0.5])
    assert tuple(seen.balances.values()) == balances


def test_a_backoff_of_nothing_is_no_wait():
    """The next attempt is made at the same instant."""
    seen = both(NO_CHANCE.replace(backoff=[0.0]), [[(1.0, 500), (1.0, FINE)]])
    assert seen == [("sent", 0, 0.0), ("sent", 0, 1.0), ("over", 0, 2.0, None)]


@pytest.mark.parametrize(
    ("settings", "statuses", "end"),
    [
        ({}, [503, 503, 503], (9.0, "attempts")),
        ({}, [404], (1.0, "fatal")),
        ({}, ["layer"], (1.0, "layer")),
        ({}, [429, FINE], (7.0, None)),  # the hint of 3 s, and the backoff
        ({"max_hint": 2.0}, [429], (1.0, "hint")),
        ({"timeout": 2.5}, [503], (1.0, "deadline")),
        ({"timeout": 0.5}, [503], (0.5, "deadline")),
        ({"attempt_timeout": 0.5}, [FINE, FINE, FINE], (7.5, "attempts")),
        ({"idempotent": False}, [503], (1.0, "unsafe")),
        ({"budget": Budget.empty()}, [503], (1.0, "budget")),
    ],
)
def test_a_call_ends_for_the_reason_that_production_gives(settings, statuses, end):
    """Each reason once; answers take a second."""
    assert ending(both(NO_CHANCE.replace(**settings), [[(1.0, status) for status in statuses]])) == end


def test_a_first_attempt_that_a_gate_refuses_is_not_sent():
    """The reason is a denial's; a gate that bears the shelter's name is still a gate."""
    policy = NO_CHANCE.replace(gate=TokenBucket(0.001, name="orders"), shelter=Shelter(name="orders"))
    seen = simulated_calls(policy, [[(1.0, FINE)], [(1.0, FINE)]], [0.0, 0.5])
    assert seen == [("sent", 0, 0.0), ("over", 1, 0.5, "budget"), ("over", 0, 1.0, None)]


def test_a_retry_that_a_gate_refuses_is_a_denial_too():
    """What was withdrawn for it is returned."""
    policy = NO_CHANCE.replace(gate=TokenBucket(0.001), budget=Budget(0.0, 1.0))
    seen = simulated_calls(policy, [[(1.0, 503)]], [0.0])
    assert seen == [("sent", 0, 0.0), ("over", 0, 3.0, "budget")]
    assert tuple(seen.balances.values()) == (10.0,)


def test_permits_are_held_while_an_attempt_is_under_way():
    """And returned however it ends."""
    policy = NO_CHANCE.replace(gate=ConcurrencyLimit(1), max_attempts=1)
    scripts = [[(1.0, 404)], [(1.0, FINE)], [(1.0, FINE)]]
    seen = simulated_calls(policy, scripts, [0.0, 0.5, 1.5])
    assert [event[1:] for event in seen if event[0] == "over"] == [
        (1, 0.5, "budget"),
        (0, 1.0, "fatal"),
        (2, 2.5, None),
    ]


def test_who_finds_no_place_in_the_shelter_is_turned_away():
    """With the reason of a shelter, and without an attempt."""
    policy = NO_CHANCE.replace(
        shelter=Shelter(capacity=1, patience=50.0), max_attempts=6, backoff=Backoff(20.0, jitter="none")
    )
    scripts = [[(1.0, 503)] * 6, [(1.0, FINE)] * 6, [(1.0, FINE)] * 6]
    seen = simulated_calls(policy, scripts, [0.0, 2.0, 3.0])
    assert ("over", 2, 3.0, "shelter") in seen
    assert ("sent", 2, 3.0) not in seen


def test_an_answer_that_comes_too_late_changes_nothing():
    """The call has gone on to its next attempt."""
    seen = both(NO_CHANCE.replace(attempt_timeout=1.0), [[(2.0, FINE), (2.0, FINE), (0.5, FINE)]])
    assert seen == [("sent", 0, 0.0), ("sent", 0, 3.0), ("sent", 0, 8.0), ("over", 0, 8.5, None)]


def test_production_objects_are_left_alone():
    """The budget, gate and shelter that a policy was given see nothing of a simulated world, nor do its rules."""
    budget, bucket, shelter = Budget(0.5, 1.0), TokenBucket(1.0, burst=5), Shelter()
    policy = NO_CHANCE.replace(budget=budget, gate=bucket & ConcurrencyLimit(1), shelter=shelter)
    known = dict(policy.rulings_by_type)
    simulated_calls(policy, [[(1.0, 503)] * 3 for _ in range(20)], [number / 7 for number in range(20)])
    assert (budget.balance(), shelter.state, shelter.waiters, policy.rulings_by_type) == (10.0, "calm", 0, known)
    assert [bucket.try_acquire() for _ in range(6)] == [True] * 5 + [False]
    assert current() is abate.clock.MACHINE
