"""Calls that wait in a shelter during an outage: in threads, under asyncio and trio, in virtual time."""

import asyncio
import itertools
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import trio

import abate
from abate import Backoff, Budget, Policy, Refused, Shelter
from abate.call.actions import Send, Wait, WaitForTurn
from abate.call.machine import Call
from abate.call.shelter_visit import _permit_scopes, _PermitScope, holds_permit
from abate.testing import Recorder, Script, VirtualClock
from abate.testing.script import after


class Down(Exception):
    """What a dependency raises while it is down."""


class Missing(Exception):
    """What a healthy dependency raises for a missing object."""


class Busy(Exception):
    """What an overloaded dependency raises; it may carry a hint."""

    def __init__(self, hint=None):
        super().__init__()
        self.hint = hint


def busy(error):
    return isinstance(error, Busy) and abate.Ruling.overload(error.hint)


class Server:
    """A dependency with an outage: records what reaches it, and when."""

    def __init__(self, clock, down_until=0.0, takes=0.01, error=Down):
        self.clock = clock
        self.down_until = down_until
        self.takes = takes
        self.error = error
        self.arrivals = []
        self.most = self.inside = 0

    async def acall(self):
        self.arrivals.append(self.clock.now())
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.clock.asleep(self.takes)
        finally:
            self.inside -= 1
        if self.arrivals[-1] < self.down_until:
            raise self.error()
        return "fine"

    def __call__(self):
        self.arrivals.append(self.clock.now())
        self.clock.sleep(self.takes)
        if self.arrivals[-1] < self.down_until:
            raise self.error()
        return "fine"


def sheltered(**settings):
    """Return a policy with a shelter, both with a seeded random source."""
    given = {
        "name": "orders",
        "on": (Down, busy),
        "max_attempts": 10,
        "backoff": Backoff(0.1, 2.0),
        "rng": random.Random(1),
        "shelter": Shelter(capacity=1000, patience=60.0, name="shop", rng=random.Random(2)),
    }
    return Policy(**{**given, **settings})


def run(main, loop):
    return trio.run(main) if loop == "trio" else asyncio.run(main())


async def together(loop, *functions):
    """Run coroutine functions at once; return what they return or raise."""
    results = [None] * len(functions)

    async def one(place, function):
        try:
            results[place] = await function()
        except Exception as error:
            results[place] = error

    if loop == "trio":
        async with trio.open_nursery() as nursery:
            for place, function in enumerate(functions):
                nursery.start_soon(one, place, function)
    else:
        await asyncio.gather(*(one(place, function) for place, function in enumerate(functions)))
    return results


@pytest.fixture(params=["asyncio", "trio"])
def loop(request):
    """Both event loops."""
    return request.param


def at(clock, seconds, function):
    """Run `function` some seconds later."""

    async def later():
        await clock.asleep(seconds)
        return await function()

    return later


# -- during an outage


def test_all_calls_wait_and_none_is_lost(loop):
    """500 calls into an outage of 3 s: a handful reach the server before it is up, and all are answered after it."""
    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=3.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[load] * 500)

        assert run(main, loop) == ["fine"] * 500
    early = sum(arrival < 3.0 for arrival in server.arrivals)
    assert early <= 10 + 30
    assert len(server.arrivals) == 500 + early
    assert policy.shelter.waiters == 0


def test_one_probe_at_a_time_while_all_fails(loop):
    """After the first failures never two attempts at once, and no two pauses are equal."""
    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=20.0, takes=0.5)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[load] * 100)

        run(main, loop)
    probes = [arrival for arrival in server.arrivals if 0.5 < arrival < 20.0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert len(probes) >= 3
    assert all(gap >= 0.5 for gap in gaps)
    assert len({round(gap, 6) for gap in gaps}) == len(gaps)


def test_a_thread_waits_its_turn_in_virtual_time():
    """A single call is its own probe: it waits, and is answered when the dependency is up."""
    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=3.0)
        assert policy.call(server) == "fine"
        assert 2 <= len(server.arrivals) <= 10
        assert policy.shelter.state == "recovering"


def test_the_block_form_waits_too(loop):
    """``for`` and ``async for`` wait for their turn like other calls."""
    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=3.0)
        for attempt in policy.attempts():
            with attempt:
                result = server()
        assert result == "fine"

    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=3.0)

        async def main():
            async for attempt in policy.attempts():
                with attempt:
                    result = await server.acall()
            return result

        async def several():
            return await together(loop, *[main] * 20)

        assert run(several, loop) == ["fine"] * 20
        assert policy.shelter.waiters == 0


def test_the_report_includes_the_time_in_the_queue(loop):
    """`waited` of a report includes the time that a call spent in the wait queue."""
    with VirtualClock() as clock:
        policy, server = sheltered(max_attempts=2), Server(clock, down_until=100.0)
        with pytest.raises(Down) as caught:
            run(lambda: policy.acall(server.acall), loop)
        assert abate.report(caught.value).waited == pytest.approx(server.arrivals[1] - server.arrivals[0] - 0.01)


# -- refusals


def test_a_call_that_cannot_meet_its_deadline_is_refused_at_once(loop):
    """A hint goes beyond the call's deadline: new calls are refused at once, with the error of others as cause."""
    with VirtualClock() as clock:
        policy = sheltered(timeout=5.0, max_hint=300.0)

        async def main():
            with pytest.raises(Busy):
                await policy.replace(timeout=None, max_attempts=1).acall(Script(Busy(60.0)).acall)
            began = clock.now()
            with pytest.raises(Refused) as caught:
                await policy.acall(Script().acall)
            assert clock.now() == began
            return caught.value

        refused = run(main, loop)
    assert isinstance(refused.__cause__, Busy)
    assert (abate.report(refused).reason, abate.report(refused).attempts) == ("shelter", 0)
    assert refused.gate == "shop"


def test_a_waiting_call_is_refused_when_it_becomes_hopeless(loop):
    """A new hint refuses those waiting calls at once that cannot wait for it."""
    with VirtualClock() as clock:
        policy = sheltered()

        async def main():
            first = Script(after(0.1, Down()), after(1.0, Busy(120.0)))
            impatient = policy.replace(timeout=30.0)
            return await together(
                loop,
                lambda: policy.replace(max_attempts=2).acall(first.acall),
                at(clock, 0.5, lambda: impatient.acall(Script().acall)),
            )

        first, second = run(main, loop)
        assert isinstance(first, Busy)
        assert isinstance(second, Refused)
        assert clock.now() < 10.0


def test_a_retry_that_gets_no_turn_raises_its_own_error(loop):
    """A call that has failed once, and runs out of time before its turn, raises that error: reason shelter."""
    with VirtualClock() as clock:
        policy, server = sheltered(timeout=5.0), Server(clock, down_until=1000.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[load] * 30)

        results = run(main, loop)
    reasons = {abate.report(error).reason for error in results}
    assert reasons <= {"shelter", "deadline"}
    assert "shelter" in reasons
    assert {type(error) for error in results} == {Down, Refused}
    assert policy.shelter.waiters == 0


def test_patience_bounds_each_wait(loop):
    """Without a deadline, a call waits no longer than the shelter's patience."""
    with VirtualClock() as clock:
        policy = sheltered(shelter=Shelter(patience=7.0), max_attempts=1)
        server = Server(clock, down_until=1000.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[load] * 30)

        results = run(main, loop)
        assert clock.now() <= 7.0 + 0.02
    assert all(isinstance(result, (Down, Refused)) for result in results)


def test_a_full_queue_refuses(loop):
    """A call beyond `capacity` is refused, and the waiting calls are still served."""
    with VirtualClock() as clock:
        policy = sheltered(shelter=Shelter(capacity=5, patience=60.0, name="shop"))
        server = Server(clock, down_until=3.0)
        load = policy(server.acall)

        async def main():
            first = at(clock, 0.0, load)
            others = [at(clock, 0.05, load)] * 8
            return await together(loop, first, *others)

        results = run(main, loop)
    refused = [result for result in results if isinstance(result, Refused)]
    lost = [result for result in results if result != "fine"]
    assert 1 <= len(lost) <= 4  # probes are not in the queue
    assert {abate.report(error).reason for error in lost} == {"shelter"}  # a retry raises its own error
    assert "5 calls are waiting already" in str(refused[0])
    assert isinstance(refused[0].__cause__, Down)


def test_a_cancelled_waiter_leaves_no_trace(loop):
    """Cancelled waiters are removed at once, and those behind them are served."""
    with VirtualClock() as clock:
        policy, server = sheltered(), Server(clock, down_until=3.0)
        load = policy(server.acall)
        seen = []

        async def in_asyncio():
            tasks = [asyncio.create_task(load()) for _ in range(50)]
            await clock.asleep(1.0)
            for task in tasks[:25]:
                task.cancel()
            await clock.asleep(0.001)
            seen.append(policy.shelter.waiters)
            return await asyncio.gather(*tasks, return_exceptions=True)

        async def in_trio():
            results = []

            async def one():
                results.append(await load())

            async with trio.open_nursery() as nursery:
                for _ in range(25):
                    nursery.start_soon(one)
                async with trio.open_nursery() as doomed:
                    for _ in range(25):
                        doomed.start_soon(one)
                    await clock.asleep(1.0)
                    doomed.cancel_scope.cancel()
                seen.append(policy.shelter.waiters)
            return results

        results = asyncio.run(in_asyncio()) if loop == "asyncio" else trio.run(in_trio)
        assert results.count("fine") == 25
        assert seen[0] <= 25
        assert policy.shelter.waiters == 0
        assert policy.shelter.dispatcher().limiter.in_flight == 0


def test_a_waiter_cancelled_after_it_got_its_permit_returns_it():
    """A cancellation between the turn and the attempt frees the permit for the next call."""

    async def main():
        with VirtualClock() as clock:
            policy = sheltered()
            dispatcher = policy.shelter.dispatcher()
            dispatcher.limiter.limit = 1.0
            held = dispatcher.try_enter(clock.now(), clock.now(), None, True)
            task = asyncio.create_task(policy.acall(Script().acall))
            await asyncio.sleep(0)
            assert policy.shelter.waiters == 1
            dispatcher.answered(held, clock.now(), "orders")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert dispatcher.limiter.in_flight == 0
            assert await policy.acall(Script("fine").acall) == "fine"

    asyncio.run(main())


# -- what counts


def test_a_hint_holds_all_calls_back(loop):
    """After a Retry-After of 2 s, no call of the shelter reaches the server before that."""
    with VirtualClock() as clock:
        policy = sheltered()
        arrivals = []

        async def load():
            arrivals.append(clock.now())
            if clock.now() < 2.0:
                raise Busy(2.0)
            return "fine"

        async def main():
            calls = [at(clock, place / 100, policy(load)) for place in range(100)]
            return await together(loop, *calls)

        assert run(main, loop) == ["fine"] * 100
    assert len([arrival for arrival in arrivals if arrival < 2.0]) == 1
    assert all(arrival == 0.0 or arrival >= 2.0 for arrival in arrivals)


def test_a_hint_beyond_max_hint_does_not_close_the_shelter():
    """It ends its own call, and does not hold the others back for hours."""
    with VirtualClock():
        policy = sheltered()
        policy.call(Script("fine"))
        with pytest.raises(Busy) as caught:
            policy.call(Script(Busy(3600.0)))
        assert abate.report(caught.value).reason == "hint"
        assert policy.call(Script("fine")) == "fine"


@pytest.mark.parametrize(("hint", "reason", "attempts"), [(5.0, None, 2), (5.001, "hint", 1), (0.0, None, 2)])
def test_a_hint_of_exactly_max_hint_is_honoured(hint, reason, attempts):
    """In a shelter as without one: no call is back before it is over."""
    with VirtualClock() as clock:
        policy = Policy(on=busy, max_hint=5.0, shelter=Shelter(rng=random.Random(1)))
        server = Script(Busy(hint), "fine")
        if reason is None:
            assert policy.call(server) == "fine"
            assert clock.now() >= hint
        else:
            with pytest.raises(Busy) as raised:
                policy.call(server)
            assert abate.report(raised.value).reason == reason
            assert clock.now() == 0.0
        assert len(server.calls) == attempts


def test_fatal_errors_count_as_answers():
    """A hundred 404s in a row are a hundred answers."""
    with VirtualClock():
        policy = sheltered()
        for _ in range(100):
            with pytest.raises(Missing):
                policy.call(Script(Missing()))
        assert policy.shelter.state == "calm"
        assert policy.shelter.dispatcher().limiter.failure_ratio == 0.0


def test_an_error_that_an_inner_policy_gave_up_on_is_not_counted():
    """The inner policy has counted it in its own shelter."""
    with VirtualClock():
        outer = sheltered(on=(Down, abate.on_error(lambda error: abate.decide.outcome.LAYER)))
        with pytest.raises(Missing):
            outer.call(Script(Missing()))
        limiter = outer.shelter.dispatcher().limiter
        assert (limiter.in_flight, limiter.failure_ratio) == (0, 0.0)


def test_a_third_of_errors_loses_no_call_where_the_budget_alone_would(loop):
    """While the server answers, the shelter admits retries that the budget could not pay for."""

    def lost(shelter):
        with VirtualClock() as clock:
            policy = sheltered(shelter=shelter, max_attempts=12, budget=Budget(ratio=0.2, reserve=0.0))
            chance = random.Random(3)

            async def load():
                await clock.asleep(0.01)
                if chance.random() < 1 / 3:
                    raise Down
                return "fine"

            async def main():
                calls = [at(clock, place / 100, policy(load)) for place in range(2000)]
                return await together(loop, *calls)

            return sum(isinstance(result, Exception) for result in run(main, loop))

    assert lost(None) > 100
    assert lost(Shelter(patience=60.0, rng=random.Random(4))) == 0


def test_in_an_outage_the_shelter_stops_attempts_before_the_budget_does(loop):
    """Hardly any of the budget is spent."""
    with VirtualClock() as clock:
        policy = sheltered(budget=Budget(ratio=0.0, reserve=10.0))
        server = Server(clock, down_until=8.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[at(clock, place / 50, load) for place in range(300)])

        assert run(main, loop) == ["fine"] * 300
    assert sum(arrival < 8.0 for arrival in server.arrivals) < 40


def test_a_retryable_result_counts_as_a_failure():
    """A dependency may be down without raising anything."""
    with VirtualClock():
        policy = sheltered(on=abate.on_result(lambda result: result == "busy"))
        assert policy.replace(max_attempts=1).call(Script("busy")) == "busy"
        assert policy.shelter.state == "probing"
        assert policy.shelter.dispatcher().last_error is None
        assert policy.call(Script("busy", "fine")) == "fine"


# -- in calm


def test_in_calm_nothing_is_counted():
    """After a quiet second the wrapper takes no permits."""
    with VirtualClock() as clock:
        policy = sheltered(budget=Budget.unlimited())
        load = policy(Script(*["fine"] * 300))
        for _ in range(200):
            load()
            clock.advance(0.01)
        limiter = policy.shelter.dispatcher().limiter
        assert (policy.shelter.state, limiter.calm, policy.shelter.limit) == ("calm", True, float("inf"))
        samples = limiter.latencies._samples
        for _ in range(100):
            load()
            clock.advance(0.0001)
        assert limiter.latencies._samples <= samples + 1
        assert limiter.in_flight == 0


def test_calm_ends_with_failures():
    """A call with a deadline is counted from the first failure on, and seven in a row close the shelter."""
    with VirtualClock() as clock:
        policy = sheltered(max_attempts=1, timeout=60.0)
        for _ in range(1500):
            policy.call(Script("fine"))
            clock.advance(0.001)
        assert policy.shelter.dispatcher().limiter.calm
        for _ in range(7):
            with pytest.raises((Down, Refused)):
                policy.replace(timeout=0.001).call(Script(Down()))
        assert policy.shelter.state == "probing"


@pytest.mark.parametrize("timeout", [None, 60.0], ids=["not counted", "counted"])
def test_a_retry_in_calm_waits_for_its_backoff(timeout):
    """In calm there is no wait queue that could replace the backoff."""
    with VirtualClock() as clock:
        policy = sheltered(backoff=Backoff(3.0, factor=1.0, jitter="none"), timeout=timeout)
        for _ in range(1500):
            policy.call(Script("fine"))
            clock.advance(0.001)
        assert policy.shelter.dispatcher().limiter.calm
        for load in (policy.call, lambda script: policy(script)()):
            clock.waits.clear()
            assert load(Script(Down(), "fine")) == "fine"
            assert (clock.waits, policy.shelter.state) == ([3.0], "calm")


STAND_IN = """
import abate
now = [0.0]
shelter = abate.Shelter(clock=lambda: now[0], name="shop")
outcomes = []

@abate.Policy(on=OSError, max_attempts=1, shelter=shelter)
def load():
    now[0] += 0.001
    if outcomes:
        raise outcomes.pop()
    return "fine"

for _ in range(1200):
    load()
limiter = shelter.dispatcher().limiter
assert shelter.calm and limiter.calm and shelter.state == "calm", "not calm after a quiet second"
while now[0] >= limiter.latencies.next_sample:
    load()
look, asked = limiter.latencies.next_sample, []
dispatcher = shelter.dispatcher().__class__
try_enter, dispatcher.try_enter = dispatcher.try_enter, lambda *_: asked.append(1)
while now[0] < look - 0.002:
    load()
assert not asked, "a stand-in in calm asked the shelter"
dispatcher.try_enter = try_enter
shelter.sample()
assert shelter.calm, "measured before it was due"
now[0] = look
shelter.sample()
assert not shelter.calm
load()
assert shelter.calm and limiter.latencies.next_sample > look, "not measured when it was due"
for _ in range(7):
    outcomes.append(OSError())
    try:
        load()
    except (OSError, abate.Refused):
        pass
assert not shelter.calm and shelter.state == "probing", shelter.state
with abate.testing.VirtualClock():
    pass
print("as expected")
"""


def test_a_wrapper_takes_no_permit_in_calm():
    """Without a deadline, an attempt in calm reads one flag; some are measured; failures end the calm.

    In a separate interpreter: here virtual clocks have been entered, and wrappers always take permits.
    """
    done = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "as expected\n", done.stderr


def test_a_wrapper_that_fails_in_calm_starts_counting():
    """One failure of an uncounted attempt starts counting, and does not close the shelter."""
    policy = sheltered(max_attempts=1, shelter=Shelter())
    shelter, limiter = policy.shelter, policy.shelter.dispatcher().limiter
    for way in (policy(Script(Down())), lambda: policy.call(Script(Down()))):
        shelter.calm = limiter.calm = limiter._ever_answered = True
        with pytest.raises(Down):
            way()
        assert (shelter.state, limiter.calm, shelter.calm) == ("calm", False, False)


def test_the_latency_of_plain_calls_is_measured():
    """A wrapper measures when the budget reads the clock, `call` and `acall` one of sixteen calls."""
    policy = sheltered(shelter=Shelter())
    shelter, limiter = policy.shelter, policy.shelter.dispatcher().limiter

    def asked(way):
        shelter.calm = limiter.calm = True
        limiter.latencies.next_sample = 0.0
        way()
        return not shelter.calm

    stand_in = policy(Script(*["fine"] * 100))
    assert asked(stand_in)
    script = Script(*["fine"] * 100)
    assert sum(asked(lambda: policy.call(script)) for _ in range(32)) == 2
    assert sum(asked(lambda: asyncio.run(policy.acall(script.acall))) for _ in range(32)) == 2
    shelter.calm, limiter.latencies.next_sample = True, float("inf")
    shelter.sample()
    assert shelter.calm


def test_a_fatal_error_in_calm_is_not_counted():
    """With a deadline and in calm it is neither counted nor measured."""
    with VirtualClock() as clock:
        policy = sheltered(timeout=60.0)
        for _ in range(1500):
            policy.call(Script("fine"))
            clock.advance(0.001)
        limiter = policy.shelter.dispatcher().limiter
        limiter.latencies.next_sample = clock.now() + 1.0
        outcomes = limiter._counted_outcomes
        with pytest.raises(Missing):
            policy.call(Script(Missing()))
        assert limiter.calm
        assert limiter._counted_outcomes == outcomes


def test_a_first_attempt_whose_turn_does_not_come_is_refused():
    """After its patience, with an error that says why, as an attempt has failed meanwhile."""
    with VirtualClock() as clock:
        policy = sheltered(shelter=Shelter(patience=5.0))
        dispatcher = policy.shelter.dispatcher()
        dispatcher.limiter.limit, dispatcher.limiter.state, dispatcher.limiter.last_failure = 1.0, "storm", 0.0
        dispatcher.try_enter(0.0, 0.0, None, True)
        with pytest.raises(Refused, match="the call's turn did not come in time"):
            policy.call(Script())
        assert clock.now() == 5.0


def test_a_virtual_clock_ends_the_shortcut_of_wrappers():
    """Each clock has its own state, so wrappers look it up; dispatchers of virtual clocks share nothing."""
    shelter = Shelter()
    shelter.calm = True
    shelter.dispatcher().disable_fast_path()
    assert not shelter.calm
    with VirtualClock():
        shelter.calm = True
        shelter.dispatcher().disable_fast_path()
        assert shelter.calm


# -- several policies


def test_a_call_within_a_call_does_not_wait_for_itself(loop):
    """Two policies share a shelter, one around the other: the inner one uses the permit of the outer one."""
    with VirtualClock() as clock:
        inner = sheltered(max_attempts=1)
        outer = sheltered(shelter=inner.shelter, max_attempts=3)
        server = Server(clock)
        inner.shelter.dispatcher().limiter.limit = 1.0

        async def main():
            async def outside():
                return await inner.acall(server.acall)

            return await outer.acall(outside)

        assert run(main, loop) == "fine"
        assert clock.now() == pytest.approx(0.01)
    assert _permit_scopes.peek() is None


def test_a_call_in_a_child_task_of_an_attempt_uses_its_permit():
    """A timeout around the inner call runs it in another task, which still belongs to the attempt."""

    async def main():
        with VirtualClock() as clock:
            inner = sheltered(max_attempts=1)
            outer = sheltered(shelter=inner.shelter)
            inner.shelter.dispatcher().limiter.limit = 1.0
            server = Server(clock)

            async def outside():
                return await asyncio.create_task(inner.acall(server.acall))

            assert await outer.acall(outside) == "fine"
            assert clock.now() == pytest.approx(0.01)

    asyncio.run(main())


def test_a_task_that_outlives_the_attempt_needs_its_own_permit():
    """A returned permit admits no further call."""

    async def main():
        with VirtualClock() as clock:
            policy = sheltered()
            dispatcher = policy.shelter.dispatcher()
            started = []

            async def attempt():
                async def later():
                    await clock.asleep(1.0)
                    return await policy.acall(Script("fine").acall)

                started.append(asyncio.create_task(later()))
                return "fine"

            await policy.acall(attempt)
            dispatcher.limiter.limit = 1.0
            held = dispatcher.try_enter(clock.now(), clock.now(), None, True)
            await clock.asleep(1.5)
            assert policy.shelter.waiters == 1
            dispatcher.answered(held, clock.now(), "orders")
            assert await started[0] == "fine"

    asyncio.run(main())


def test_two_shelters_are_independent(loop):
    """A dependency that is down holds back no call of another one."""
    with VirtualClock() as clock:
        down, up = sheltered(), sheltered()
        dead, alive = Server(clock, down_until=10.0), Server(clock)
        times = []

        async def fine():
            began = clock.now()
            await up.acall(alive.acall)
            times.append(clock.now() - began)

        async def main():
            return await together(
                loop, *[down(dead.acall)] * 50, *[at(clock, 1 + place / 10, fine) for place in range(50)]
            )

        run(main, loop)
    assert max(times) < 0.05


def test_a_refusal_by_a_gate_returns_the_permit():
    """The attempt was not sent."""
    with VirtualClock():
        policy = sheltered(gate=abate.ConcurrencyLimit(1))
        policy.gate.enter(False)
        with pytest.raises(Refused):
            policy.call(Script())
        assert policy.shelter.dispatcher().limiter.in_flight == 0


def test_no_hedge_in_a_storm():
    """Hedges are sent in calm only."""

    async def main():
        with VirtualClock() as clock:
            policy = sheltered(budget=Budget.unlimited())
            timeouts = abate.Timeouts()
            for _ in range(1000):
                timeouts.observe(0.01)
            hedged = abate.Hedge(policy, timeouts)
            server = Server(clock, takes=1.0)
            assert await hedged.acall(server.acall) == "fine"
            assert len(server.arrivals) == 1

    asyncio.run(main())


def test_with_retries_off_no_call_waits():
    """A test with retries switched off is not delayed by a failing dependency."""
    with VirtualClock() as clock, abate.testing.off():
        policy = sheltered()
        for _ in range(10):
            with pytest.raises(Down):
                policy.call(Script(Down()))
        assert clock.now() == 0.0
        assert policy.shelter.dispatcher().limiter.failure_ratio == 0.0


def test_a_call_within_a_call_keeps_its_backoff():
    """The outer attempt holds the permit: inner retries wait for their backoff, and withdraw from the budget."""
    with VirtualClock() as clock:
        inner = sheltered(max_attempts=4, backoff=[1.0])
        outer = sheltered(shelter=inner.shelter, max_attempts=1)
        with pytest.raises(Down), pytest.warns(abate.LayeredRetryWarning):
            outer.replace(name="outer").call(inner.call, Script(*[Down()] * 4))
        assert clock.waits[:3] == [1.0, 1.0, 1.0]
        assert inner.replace(budget=Budget.empty()).shelter is inner.shelter


def test_a_gate_that_raises_returns_the_permit():
    """An error in a user-defined gate ends only its own call."""

    class Broken(abate.Gate):
        name = "broken"

        def enter(self, retry):
            raise RuntimeError("a bug")

    with VirtualClock():
        policy = sheltered()
        with pytest.raises(RuntimeError, match="a bug"):
            policy.replace(gate=Broken()).call(Script())
        assert policy.shelter.dispatcher().limiter.in_flight == 0
        assert _permit_scopes.peek() is None


def test_a_user_defined_schedule_is_called_for_its_retries_only():
    """A function that knows two delays is not called for the tenth, however many probes have failed."""
    with VirtualClock():
        policy = sheltered(max_attempts=3, backoff=lambda retry: [0.1, 0.2][retry - 1])
        for _ in range(5):
            with pytest.raises((Down, Refused)):
                policy.call(Script(*[Down()] * 3))


def test_slow_is_not_down(loop):
    """Nothing has failed: 50 calls at once that take longer than the patience are all answered."""
    with VirtualClock() as clock:
        policy, server = sheltered(shelter=Shelter(patience=10.0)), Server(clock, takes=12.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[load] * 50)

        assert run(main, loop) == ["fine"] * 50


def test_a_late_answer_does_not_shorten_the_hint_of_another_call(loop):
    """The hinted call waits for its hint, though the shelter is open for others."""
    with VirtualClock() as clock:
        policy = sheltered(shelter=Shelter(patience=2.0))
        slow, arrivals, back = [after(5.0, "fine")] * 5, [], []

        async def load():
            arrivals.append(clock.now())
            return "fine"

        async def told():
            back.append(clock.now())
            if len(back) == 1:
                raise Busy(30.0)
            return "fine"

        async def main():
            await policy.acall(Script("fine").acall)
            return await together(
                loop,
                *[lambda outcome=outcome: policy.acall(Script(outcome).acall) for outcome in slow],
                at(clock, 0.1, lambda: policy.acall(told)),
                *[at(clock, 5.5 + place / 10, lambda: policy.acall(load)) for place in range(100)],
            )

        assert run(main, loop) == ["fine"] * 106
    assert len([arrival for arrival in arrivals if arrival < 30.0]) == 100
    assert back[1] >= 30.1


def test_a_permit_is_found_behind_those_of_other_shelters():
    """In three nested calls, the outermost attempt holds the permit as long as it is in flight."""
    first, second, third = (Shelter().dispatcher() for _ in range(3))
    permit = SimpleNamespace(out=True)
    outer, inner = (
        _permit_scopes.enter(_PermitScope(first, permit)),
        _permit_scopes.enter(_PermitScope(second, SimpleNamespace(out=True))),
    )
    try:
        assert (holds_permit(first), holds_permit(second), holds_permit(third)) == (True, True, False)
        permit.out = False
        assert not holds_permit(first)
    finally:
        _permit_scopes.leave(inner)
        _permit_scopes.leave(outer)
    assert not holds_permit(second)


def test_the_context_of_an_ended_attempt_holds_no_references():
    """Work that schedules further work within an attempt does not grow a chain of contexts."""

    async def main():
        with VirtualClock() as clock:
            policy = sheltered()
            tasks = []

            def depth():
                held, deep = _permit_scopes.peek(), 0
                while held is not None:
                    held, deep = held.outer, deep + 1
                return deep

            async def hop(left):
                async def attempt():
                    seen.append(depth())
                    if left:
                        tasks.append(asyncio.create_task(hop(left - 1)))
                    await clock.asleep(0.001)

                await clock.asleep(0.01)
                await policy.acall(attempt)

            seen = []
            await hop(50)
            while len(seen) < 51:
                await clock.asleep(0.1)
            await asyncio.gather(*tasks)
            assert max(seen) <= 2

    asyncio.run(main())


def test_a_hanging_server_emits_a_state_event(loop):
    """Ten attempts without an outcome change the state before any timeout."""
    with VirtualClock() as clock, Recorder() as seen:
        policy, server = sheltered(max_attempts=1, timeout=30.0), Server(clock, takes=100.0)
        load = policy(server.acall)

        async def main():
            return await together(loop, *[at(clock, 1 + place / 10, load) for place in range(40)])

        async def first():
            for _ in range(30):
                await policy.acall(Script("fine").acall)
                await clock.asleep(0.1)

        async def both():
            await first()
            return await main()

        run(both, loop)
    assert seen.of(abate.events.ShelterChanged)[0].state == "storm"
    assert len(server.arrivals) < 20


# -- events


def test_state_changes_emit_events(loop):
    """The events of calm, probing and recovering have the shelter's name and the number of waiting calls."""
    with VirtualClock() as clock, Recorder() as seen:
        policy, server = sheltered(), Server(clock, down_until=3.0)
        load = policy(server.acall)

        async def main():
            calls = [at(clock, place / 100, load) for place in range(600)]
            return await together(loop, *calls)

        assert run(main, loop) == ["fine"] * 600
    changes = seen.of(abate.events.ShelterChanged)
    assert [change.state for change in changes][:2] == ["probing", "recovering"]
    assert changes[-1].state == "calm"
    assert {(change.name, change.shelter) for change in changes} == {("orders", "shop")}
    assert changes[1].waiters > 100


def test_a_refused_first_attempt_emits_a_gave_up_event():
    """Its reason is shelter, with no attempts."""
    with VirtualClock(), Recorder() as seen:
        policy = sheltered(timeout=5.0)
        with pytest.raises(Busy):
            policy.replace(timeout=None, max_attempts=1).call(Script(Busy(60.0)))
        with pytest.raises(Refused):
            policy.call(Script())
    gave_up = seen.of(abate.events.GaveUp)[-1]
    assert (gave_up.reason, gave_up.attempts) == ("shelter", 0)


# -- clocks


def test_each_clock_has_its_own_dispatcher():
    """A storm in virtual time affects no other clock."""
    policy = sheltered(max_attempts=1)
    with VirtualClock(), pytest.raises(Down):
        policy.call(Script(Down()))
    assert policy.shelter.state == "calm"
    with VirtualClock():
        assert policy.shelter.state == "calm"


def test_a_policy_and_its_shelter_may_have_two_clocks():
    """Deadlines use the policy's clock, turns the shelter's: only durations pass between them."""
    own, other = VirtualClock(1000.0), VirtualClock(5.0)
    policy = sheltered(clock=own, timeout=50.0, shelter=Shelter(clock=other, patience=60.0), max_attempts=3)
    assert policy.call(Script(Down(), "fine")) == "fine"
    assert own.now() >= 1000.0
    assert other.now() > 5.0


def test_a_call_queues_by_the_clock_of_its_shelter():
    """Also if its driver has just read the policy's."""
    own, other = VirtualClock(1000.0), VirtualClock(5.0)
    policy = sheltered(clock=own, backoff=[3.0], shelter=Shelter(clock=other, patience=60.0))
    failing, waiting = Call(policy), Call(policy)
    assert isinstance(failing.begin(own.now()), Send)
    failing.failed(Down(), own.now())
    action = waiting.begin(own.now())
    assert isinstance(action, WaitForTurn)
    assert action.waiter.began == 5.0


def test_in_a_storm_the_wait_queue_replaces_the_backoff():
    """A retry is queued at once, and needs no budget: the shelter pauses."""
    with VirtualClock(start=100.0):
        call = Call(sheltered(backoff=[5.0], budget=Budget.empty()))
        call.begin()
        assert call.failed(Down(), 100.0) == Wait(until=100.0)
        assert isinstance(call.resume(), WaitForTurn)
        call.broken_off()


# -- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be a whole number of at least 1, not 0"),
        ({"capacity": 1.5}, "capacity must be a whole number of at least 1, not 1.5"),
        ({"patience": 0}, "patience must be a number above 0, not 0"),
        ({"patience": float("nan")}, "patience must be a number above 0, not nan"),
        ({"name": 5}, "name must be a string, not 5"),
        ({"clock": 5}, "clock must have now"),
    ],
)
def test_bad_settings_are_named(settings, message):
    """Every bad setting raises an error at construction that names it."""
    with pytest.raises((TypeError, ValueError), match=message):
        Shelter(**settings)


def test_shelter_must_be_a_shelter():
    """A number of waiters is refused."""
    with pytest.raises(TypeError, match="shelter must be a Shelter, not 1000"):
        Policy(on=OSError, shelter=1000)


def test_a_shelter_shows_its_settings():
    """Its repr has them."""
    assert repr(Shelter(500, 20.0, name="shop")) == "Shelter(capacity=500, patience=20, name='shop')"
