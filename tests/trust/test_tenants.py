"""The trouble of one tenant does not affect others: callers of one policy with different outcomes, in virtual time."""

import asyncio
import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import AdaptiveThrottle, Policy, Refused, Ruling, Shelter
from abate.call import sync_driver
from abate.call.hedge_race import FIRST, Race
from abate.call.machine import Call
from abate.testing import Script, VirtualClock


class Answer(Exception):
    """A response of a server, as an error."""

    def __init__(self, status, **headers):
        super().__init__(status)
        self.status_code, self.headers = status, headers


def broken():
    """An error that the server answers with: it took the request."""
    return Answer(500)


def busy(seconds=299):
    """A refusal that says when to come back."""
    return Answer(random.Random(seconds).choice([429, 503]), **{"Retry-After": str(seconds)})


ON = (abate.http.transient, ConnectionError, TimeoutError)


def tenants_policy(**settings):
    """A policy that all tenants share."""
    return Policy(**{"name": "api", "on": ON, "timeout": 3.0, "rng": random.Random(3), **settings})


def sheltered(**settings):
    return tenants_policy(shelter=Shelter(name="api", rng=random.Random(4)), **settings)


class Mix:
    """Victims, whose calls the server answers within 20 ms, beside an attacker on a policy that they share."""

    def __init__(
        self, policy, attack, rate, victims=20.0, seconds=30.0, seed=1, key=lambda policy, who: policy, head=0.0
    ):
        self.policy, self.attack, self.rate = policy, attack, rate
        self.head = head  # seconds that the attacker comes before the victims
        self.victims, self.seconds, self.key = victims, seconds, key
        self.chance = random.Random(seed)
        self.waits, self.refused, self.sent = [], 0, 0

    async def good(self):
        await self.clock.asleep(0.02)

    async def bad(self):
        self.sent += 1
        await self.attack(self.clock)

    async def victim(self):
        began = self.clock.now()
        try:
            await self.key(self.policy, "victim").acall(self.good)
        except Exception:
            self.refused += 1
        else:
            self.waits.append(self.clock.now() - began)

    async def attacker(self):
        try:
            await self.key(self.policy, "attacker").acall(self.bad)
        except Exception:
            pass

    async def arrivals(self, rate, call, wait=0.0):
        await self.clock.asleep(wait)
        async with asyncio.TaskGroup() as group:
            while self.clock.now() < self.seconds and rate:
                await self.clock.asleep(self.chance.expovariate(rate))
                group.create_task(call())

    def run(self):
        with VirtualClock() as self.clock:

            async def main():
                for _ in range(100):
                    await self.policy.acall(self.good)
                    await self.clock.asleep(0.02)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.arrivals(self.victims, self.victim, self.head))
                    group.create_task(self.arrivals(self.rate, self.attacker))

            asyncio.run(main())
        return self

    @property
    def served(self):
        return len(self.waits) / (len(self.waits) + self.refused)

    @property
    def p90(self):
        return sorted(self.waits)[int(0.9 * len(self.waits))]


def raising(make, after=0.005):
    async def attack(clock):
        await clock.asleep(after)
        raise make()

    return attack


async def hanging(clock):
    """No answer at all."""
    await clock.asleep(3600.0)


def by_who(policy, who):
    return policy.keyed(who)


# -- without keys


@pytest.mark.parametrize("seed", range(3))
def test_error_responses_of_one_tenant_do_not_hold_others_back(seed):
    """60/s of 500s beside 20 healthy calls per second: all of these are served, without delay."""
    policy = sheltered()
    mix = Mix(policy, raising(broken), 60.0, seed=seed).run()
    assert (mix.served, policy.shelter.state) == (1.0, "calm")
    assert mix.p90 == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(3))
def test_hints_for_one_tenant_do_not_hold_others_back(seed):
    """8/s of 429 and 503 that ask for minutes beside 20 healthy calls per second: at least 95 % are served."""
    mix = Mix(sheltered(), raising(busy), 8.0, seed=seed).run()
    assert mix.served >= 0.95
    assert mix.p90 < 0.5


def test_error_responses_of_one_tenant_do_not_throttle_others():
    """The throttle counts refusals of the server, and a 500 is a request that it accepted."""
    policy = tenants_policy(gate=AdaptiveThrottle(rng=random.Random(1)))
    assert Mix(policy, raising(broken), 60.0).run().served == 1.0


@settings(max_examples=60, deadline=None)
@given(
    outcomes=st.lists(st.sampled_from(["good", "hint", "error"]), min_size=30, max_size=200),
    hint=st.floats(0.1, 1000.0),
    patience=st.floats(1.0, 60.0),
)
def test_a_hint_closes_the_shelter_for_all_only_when_all_fail(outcomes, hint, patience):
    """Whatever the mix: while one of the last five was answered well, nothing is shut; and never for longer than half
    of the patience, so that one call finds out in time."""
    limiter, now, row = abate.admit.limiter.Limiter(random.Random(1), 0.0, patience), 0.0, 0
    plan = abate.Backoff(0.01, 0.02)
    limiter.on_answer(limiter.send(now), now, 0)
    for outcome in outcomes:
        now = max(now + 0.01, limiter.due())
        permit = limiter.send(now)
        if outcome == "good":
            row = 0
            limiter.on_answer(permit, now, 0)
        else:
            row += 1
            limiter.on_failure(
                permit, now, plan, now + hint if outcome == "hint" else None, answered=outcome == "error"
            )
        if row < 5:
            assert limiter.paused_until() <= now
        assert limiter.paused_until() <= now + max(patience / 2, 0.02 * 1.1)


def test_the_call_that_was_given_a_hint_never_comes_back_before_it():
    """Though the shelter is open for all others."""
    with VirtualClock() as clock:
        policy, came = sheltered(timeout=60.0), []

        def told():
            came.append(clock.now())
            if len(came) == 1:
                raise Answer(429, **{"Retry-After": "20"})

        for _ in range(50):
            policy.call(clock.sleep, 0.05)
        policy.call(told)
        assert came[1] - came[0] >= 20.0
        assert policy.shelter.state == "calm"


def test_a_hinted_call_draws_its_delay_once_whether_or_not_it_is_sheltered():
    """The same chance gives the same delay."""

    def until(policy):
        with VirtualClock() as clock:
            for _ in range(20):
                policy.call(clock.sleep, 0.05)
            call = Call(policy)
            call.begin()
            return call.failed(Answer(429, **{"Retry-After": "20"}), clock.now()).until - clock.now()

    assert until(sheltered(timeout=None)) == until(tenants_policy(timeout=None))


def test_calls_after_the_error_responses_are_served():
    """One tenant's 500s have closed the idle shelter: probes soon find that other calls succeed.

    It is a matter of luck when the first of them is the probe.
    """
    mixes = [Mix(sheltered(), raising(broken), 60.0, seconds=16.0, seed=seed, head=4.0).run() for seed in range(18, 34)]
    assert all(mix.served >= 0.95 for mix in mixes)
    p90 = sorted(mix.p90 for mix in mixes)
    assert p90[8] < 0.5
    assert p90[13] < 2.0


def outage(make, seconds=20.0, rate=50.0, **options):
    """What a server sees of a shelter's calls while nothing but these errors come back."""
    mix = Mix(sheltered(**options), raising(make), rate, victims=0.0, seconds=2.0 + seconds)
    mix.run()
    return mix.sent / (seconds * rate)


@pytest.mark.parametrize("make", [broken, lambda: busy(1), ConnectionResetError], ids=["500", "503", "reset"])
def test_an_outage_is_still_sheltered_from_whatever_it_looks_like(make):
    """Where nothing is answered well any more, a 500 is a reason to send no more than a few."""
    assert outage(make) < 0.15


def attempts_to_close(make, pause):
    """How many attempts it takes until the shelter probes, after calls that were all answered well."""
    with VirtualClock() as clock:
        policy, sent = sheltered(), []

        async def fail():
            if policy.shelter.state != "probing":
                sent.append(clock.now())
            await clock.asleep(0.005)
            raise make()

        async def one(function, *args):
            try:
                await policy.acall(function, *args)
            except Exception:
                pass

        async def main():
            async with asyncio.TaskGroup() as group:
                for _ in range(100):
                    await clock.asleep(pause())
                    group.create_task(one(clock.asleep, 0.02))
            async with asyncio.TaskGroup() as group:
                while policy.shelter.state != "probing" and len(sent) < 100:
                    await clock.asleep(pause())
                    group.create_task(one(fail))

        asyncio.run(main())
        return len(sent)


@pytest.mark.parametrize(("make", "most"), [(broken, 36), (lambda: busy(120), 6)], ids=["500", "hint"])
def test_a_slow_process_notices_an_outage(make, most):
    """One call per second: ten usual distances without a good answer for 500s, five refusals in a row for overload."""
    assert attempts_to_close(make, lambda: 1.0) <= most


@pytest.mark.parametrize("broken_share", [0.3, 0.5])
def test_a_slow_process_keeps_serving_beside_a_broken_endpoint(broken_share):
    """About one call per second, some of them to an endpoint that answers 500: the shelter stays open for others."""
    closed = 0
    for seed in range(30):
        rng = random.Random(seed)
        limiter, now, plan = abate.admit.limiter.Limiter(random.Random(seed), 0.0), 0.0, abate.Backoff(0.1)
        while now < 180.0 and limiter.state != "probing":
            now += rng.expovariate(1.0)
            if now < 60.0 or rng.random() > broken_share:
                limiter.on_answer(limiter.send(now), now, 0)
                continue
            for retry in (1, 2, 3):
                limiter.on_failure(limiter.send(now), now, plan, retry=retry, answered=True)
        closed += limiter.state == "probing"
    assert closed <= 1


def test_errors_on_top_of_the_usual_traffic_do_not_close_a_slow_process_early():
    """One healthy call per second beside ten errors: two seconds without a good answer are chance."""
    limiter, now, plan = abate.admit.limiter.Limiter(random.Random(1), 0.0), 0.0, abate.Backoff(0.1)
    for _ in range(30):
        limiter.on_answer(limiter.send(now), now, 0)
        now += 1.0
    for _ in range(20):
        limiter.on_failure(limiter.send(now), now, plan, answered=True)
        now += 0.1
    assert limiter.state == "calm"


def test_one_call_that_fails_again_and_again_closes_nothing_early():
    """No other tenant has called since the last good answer: it may be the fault of this one."""
    limiter, now, plan = abate.admit.limiter.Limiter(random.Random(1), 0.0), 0.0, abate.Backoff(0.1)
    for _ in range(30):
        limiter.on_answer(limiter.send(now), now, 0)
        now += 1.0
    for retry in range(1, 9):
        now += 0.3
        limiter.on_failure(limiter.send(now), now, plan, retry=retry, answered=True)
    assert limiter.state == "calm"


def test_where_calls_become_rare_good_answers_are_expected_less_often_soon():
    """Ten of them are enough: errors among fewer calls than before are no outage."""
    limiter, now = abate.admit.limiter.Limiter(random.Random(1), 0.0), 0.0
    for pause in [0.02] * 200 + [0.5] * 10:
        now += pause
        limiter.on_answer(limiter.send(now), now, 0)
    for _ in range(14):
        now += 0.1
        limiter.on_failure(limiter.send(now), now, abate.Backoff(0.1), answered=True)
    assert limiter.is_serving()


@pytest.mark.parametrize("stall", [0.3, 0.8, 5.0])
def test_a_stall_of_this_process_is_no_silence_of_the_server(stall):
    """The errors that came in meanwhile are read first, in one go: nothing was answered well while nothing was read."""
    limiter, now, plan = abate.admit.limiter.Limiter(random.Random(1), 0.0), 0.0, abate.Backoff(0.1)
    for turn in range(200):
        now += 0.02
        limiter.on_answer(limiter.send(now), now, 0)
        if turn % 3 == 0:
            limiter.on_failure(limiter.send(now), now, plan, answered=True)
    now += stall
    for _ in range(50):
        now += 0.0001
        limiter.on_failure(limiter.send(now), now, plan, answered=True)
    assert limiter.state == "calm"
    for _ in range(50):  # an outage goes on
        now += 0.02
        limiter.on_failure(limiter.send(now), now, plan, answered=True)
    assert limiter.state == "probing"


def calm_limiter():
    """A limiter in calm after answers every 50 ms, and the instant."""
    limiter, now = abate.admit.limiter.Limiter(random.Random(1), 0.0), 0.0
    while not limiter.calm:
        now += 0.05
        limiter.on_answer(limiter.send(now), now, 0)
    return limiter, now


def test_errors_in_calm_are_judged_by_answers_that_are_all_counted():
    """Policies without a timeout count one answer of sixteen in calm: the first error has all of them counted."""
    limiter, now = calm_limiter()
    now += 16 * 0.05
    limiter.on_failure(None, now, abate.Backoff(0.1), uncounted=True, answered=True)
    assert (limiter.calm, limiter.state, limiter.is_serving()) == (False, "calm", True)
    for _ in range(20):
        now += 0.01
        limiter.on_failure(limiter.send(now), now, abate.Backoff(0.1), answered=True)
    assert (limiter.state, limiter.is_serving()) == ("calm", True)
    for _ in range(100):
        now += 0.01
        limiter.on_failure(limiter.send(now), now, abate.Backoff(0.1), answered=True)
    assert limiter.state == "probing"


def test_errors_that_start_the_counting_leave_retries_to_the_budget():
    """While the shelter has no limit, it bounds no retries: 60/s of 500s are not sent three times each."""
    mix = Mix(sheltered(), raising(broken), 60.0, seconds=32.0).run()
    assert mix.sent < 1.5 * 60.0 * 30.0


def test_a_hint_after_a_mixture_holds_everybody_no_longer_than_all_has_failed():
    """Five refusals in a row are chance there: the first pause is the backoff, and later ones grow with the outage."""

    def pauses(mixed):
        limiter, now, plan = abate.admit.limiter.Limiter(random.Random(1), 0.0, 10.0), 0.0, abate.Backoff(0.01, 0.02)
        for turn in range(40):
            limiter.on_answer(limiter.send(now), now, 0)
            if mixed and turn % 5 == 0:
                limiter.on_failure(limiter.send(now), now, plan, now + 299.0)
            now += 0.05
        found = []
        while len(found) < 12:
            limiter.on_failure(limiter.send(now), now, plan, now + 299.0)
            if limiter.state == "probing":
                found.append(limiter.paused_until() - now)
            now = max(now, limiter.paused_until())
        return found

    assert pauses(mixed=False) == pytest.approx([5.0] * 12)
    grown = pauses(mixed=True)
    assert grown[0] < 0.03
    assert grown[-1] == pytest.approx(5.0)
    assert all(later <= max(0.03, sum(grown[:turn]) + 1e-9) for turn, later in enumerate(grown))


def test_a_server_that_hangs_is_noticed_though_no_caller_has_much_time():
    """50 ms each, where an answer takes 20: no attempt is out for long, and none of many has an answer."""
    policy = sheltered(timeout=5.0)

    async def hang(clock):
        await clock.asleep(abate.remaining())
        raise TimeoutError

    mix = Mix(policy, hang, 500.0, victims=0.0, seconds=12.0)

    async def hurried():
        with abate.deadline(0.05):
            await Mix.attacker(mix)

    mix.attacker = hurried
    assert mix.run().sent < 0.1 * 8.0 * 500.0


def test_a_good_answer_now_and_then_does_not_hide_an_outage():
    """500s for all, but for one call each five seconds: that is no more usual than it was."""
    last = 0.0

    async def hardly_any(clock):
        nonlocal last
        await clock.asleep(0.02)
        if clock.now() - last < 5.0:
            raise broken()
        last = clock.now()

    mix = Mix(sheltered(timeout=10.0), hardly_any, 50.0, victims=0.0, seconds=42.0).run()
    assert mix.sent < 40.0 * 50.0


# -- no verdict


def cancelled(policy, load):
    """Calls that their callers break off: half of them before the server has answered."""

    async def main():
        for _ in range(50):
            await policy.acall(load)
        for _ in range(100):
            tasks = [asyncio.ensure_future(policy.acall(load)) for _ in range(8)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [await policy.acall(load) for _ in range(100)]

    return main


@pytest.mark.parametrize("where", ["throttle", "shelter", "permits"])
def test_a_cancelled_call_says_nothing_about_the_server(where):
    """Eight cancelled calls for each answered one: no other call is refused or held back."""
    with VirtualClock() as clock:
        more = {
            "throttle": {"gate": AdaptiveThrottle()},
            "permits": {"gate": abate.ConcurrencyLimit(8)},
            "shelter": {},
        }[where]
        policy = sheltered() if where == "shelter" else tenants_policy(**more)

        async def load():
            await clock.asleep(0.03)
            return "fine"

        began = clock.now()
        assert asyncio.run(cancelled(policy, load)()) == ["fine"] * 100
        assert clock.now() - began < 100 * 0.04 + 50 * 0.04 + 100 * 0.01
        if where == "throttle":
            assert policy.gate.probability() == 0.0


def test_a_gate_of_the_users_own_is_told_that_there_is_no_verdict():
    """None is false: gates that know of two outcomes take it for what they were told before."""
    told = []

    class Own(abate.Gate):
        name = "own"

        def enter(self, retry):
            return None

        def leave(self, accepted):
            told.append(accepted)

    with VirtualClock() as clock:

        async def main():
            policy = Policy(on=ON, max_attempts=1, gate=Own())
            await policy.acall(Script("fine").acall)
            for error in (Answer(404), Answer(500), Answer(503), ConnectionResetError()):
                with pytest.raises(type(error)):
                    await policy.acall(Script(error).acall)
            with abate.deadline(0.01), pytest.raises(TimeoutError):
                await policy.acall(hasty)
            task = asyncio.ensure_future(policy.acall(clock.asleep, 60.0))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def hasty():
            """A client that keeps the deadline."""
            await clock.asleep(abate.remaining())
            raise TimeoutError

        asyncio.run(main())
    assert told == [True, True, True, False, False, None, None]


WAYS = ["shelter", "throttle"]


def hurried(policy, clock, seconds):
    """A call of a server that takes 30 ms, with a deadline in the given seconds."""

    async def load():
        left = abate.remaining()
        await clock.asleep(0.03 if left is None else min(0.03, left))
        if left is not None and left < 0.03:
            raise TimeoutError
        return "fine"

    async def call():
        with abate.deadline(seconds):
            try:
                return await policy.acall(load)
            except (TimeoutError, Refused) as error:
                return error

    return call()


@pytest.mark.parametrize("where", WAYS)
@pytest.mark.parametrize("timeouts", [{"timeout": 5.0}, {"timeout": None}, {"timeout": 5.0, "attempt_timeout": 1.0}])
def test_a_callers_short_deadline_is_not_the_servers_overload(where, timeouts):
    """Fifty callers per second with 20 ms each, of a server that takes 30: calls of others are served as ever."""
    with VirtualClock() as clock:
        policy = sheltered(**timeouts) if where == "shelter" else tenants_policy(gate=AdaptiveThrottle(), **timeouts)

        async def main():
            for _ in range(60):
                await hurried(policy, clock, None)
                await clock.asleep(0.05)
            results = []
            for _ in range(100):
                for _ in range(5):
                    assert isinstance(await hurried(policy, clock, 0.02), TimeoutError)
                results.append(await hurried(policy, clock, None))
            return results

        assert asyncio.run(main()) == ["fine"] * 100
        if where == "shelter":
            assert policy.shelter.state == "calm"


@pytest.mark.parametrize("timeouts", [{"timeout": 5.0}, {"timeout": None}])
def test_a_server_that_hangs_for_everybody_is_noticed_though_deadlines_cut_the_calls_off(timeouts):
    """Attempts that had much longer than usual, and no answer, count, whatever cut them off."""
    with VirtualClock() as clock:
        policy, sent = sheltered(max_attempts=1, **timeouts), []

        async def hang():
            sent.append(clock.now())
            await clock.asleep(abate.remaining())
            raise TimeoutError

        async def call():
            with abate.deadline(1.0):
                try:
                    await policy.acall(hang)
                except (TimeoutError, Refused):
                    pass

        async def main():
            for _ in range(60):
                await policy.acall(clock.asleep, 0.03)
                await clock.asleep(0.05)
            async with asyncio.TaskGroup() as group:
                for _ in range(400):
                    group.create_task(call())
                    await clock.asleep(0.05)

        asyncio.run(main())
    assert len(sent) < 60


def test_what_a_deadline_cut_off_in_calm_starts_the_counting_and_no_more():
    """In calm a wrapper asks no dispatcher: later attempts must be counted, or a hanging server is never noticed."""
    with VirtualClock() as clock:
        policy = sheltered(timeout=None)
        for _ in range(60):
            policy.call(clock.sleep, 0.05)
        limiter = policy.shelter.dispatcher().limiter
        assert limiter.calm
        for _ in range(3):
            with abate.deadline(0.0), pytest.raises(TimeoutError):
                sync_driver.drive(policy, TimeoutError(), 0, print, (), {})
            assert (limiter.calm, limiter.state, limiter.last_failure, limiter.failures) == (False, "calm", -inf, 0)


@pytest.mark.parametrize(
    ("settings", "outer_deadline", "allowed", "verdict"),
    [
        ({"attempt_timeout": 1.0, "timeout": 5.0}, False, 1.0, False),
        ({"attempt_timeout": 1.0, "timeout": 5.0}, False, 0.9, None),
        ({"attempt_timeout": 1.0, "timeout": None}, True, 0.9, None),
        ({"timeout": 5.0}, False, 5.0, False),
        ({"timeout": 5.0}, False, 2.5, False),
        ({"timeout": 5.0}, False, 2.4, None),
        ({"timeout": 5.0}, True, 4.9, None),
        ({"timeout": None}, True, 60.0, None),
    ],
)
@pytest.mark.parametrize("early", [0.0, 0.01])
def test_when_a_timeout_counts_as_a_failure(settings, outer_deadline, allowed, verdict, early):
    """An attempt that had its own timeout, or a good part of the policy's, counts."""
    told = []

    class Gate(abate.Gate):
        name = "gate"

        def enter(self, retry):
            return None

        def leave(self, accepted):
            told.append(accepted)

    call = Call(Policy(on=ON, gate=Gate(), **settings), deadline=100.0, outer_deadline=outer_deadline)
    call.begin(now=0.0)
    call.allowance(100.0 - allowed)
    call.failed(TimeoutError(), 100.0 - early)
    assert told == [verdict]


@pytest.mark.parametrize(("error", "verdict"), [(Answer(503), False), (Answer(500), True), (ConnectionError(), False)])
def test_an_answer_at_the_last_moment_is_a_verdict(error, verdict):
    """It came in time, and so did a connection that broke. A 504 may be about this very deadline."""
    told = []

    class Gate(abate.Gate):
        name = "gate"

        def enter(self, retry):
            return None

        def leave(self, accepted):
            told.append(accepted)

    for seen in (error, Answer(504)):
        call = Call(Policy(on=ON, gate=Gate()), deadline=100.0, outer_deadline=True)
        call.begin(now=0.0)
        call.failed(seen, 100.0)
    assert told == [verdict, None]


def test_a_probe_that_its_caller_cuts_off_is_followed_by_the_next_after_a_pause():
    """Callers that come and go in an outage must not be probes one after the other."""
    with VirtualClock() as clock:
        policy, sent = sheltered(timeout=None), []

        async def load():
            sent.append(clock.now())
            await clock.asleep(60.0)

        async def main():
            for _ in range(5):
                with pytest.raises(ConnectionResetError):
                    await policy.replace(max_attempts=1).acall(Script(ConnectionResetError()).acall)
            for _ in range(200):
                task = asyncio.ensure_future(policy.acall(load))
                await clock.asleep(0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
    assert len(sent) < 30


def test_timeouts_learn_nothing_from_what_a_deadline_cut_off():
    """A caller with no time is not a server that is slow, nor one that is quick."""
    from abate.clients.stopwatch import Stopwatch

    with VirtualClock() as clock:
        learned = abate.Timeouts(false_rate=0.1, ceiling=10.0)
        for _ in range(100):
            learned.observe(0.1)
        before = learned.request()

        def cut_off(seconds, left):
            watch_for_exhausted = Stopwatch(learned, lambda error: Ruling.overload())
            with abate.deadline(left), pytest.raises(TimeoutError), watch_for_exhausted as watch:
                watch.connect_started()
                watch.connect_done()
                clock.sleep(seconds)
                raise TimeoutError

        for _ in range(100):
            cut_off(0.08, 0.08)
        assert learned.request() == before
        for _ in range(100):
            cut_off(0.08, 5.0)
        assert learned.request() == pytest.approx(0.16, rel=0.05)


def test_a_hedge_learns_nothing_from_what_a_deadline_cut_off():
    """Neither that the server is slow, nor that it is quick."""
    with VirtualClock() as clock:
        learned = abate.Timeouts(false_rate=0.1, ceiling=10.0)
        for _ in range(100):
            learned.observe(0.1)
        before = learned.request()
        for left in [0.08] * 100:
            with abate.deadline(left):
                race = Race(tenants_policy(), learned, clock)
                clock.sleep(left)
                race.ended(FIRST, abate.Outcome(TimeoutError()))
        assert learned.request() == before


# -- keys


@pytest.mark.parametrize(
    "attack",
    [raising(broken), raising(busy), raising(ConnectionResetError), hanging],
    ids=["500", "hints", "reset", "hang"],
)
def test_with_keys_tenants_do_not_affect_each_other(attack):
    """60/s of anything: all other tenants are served as quickly as if they were alone."""
    mix = Mix(sheltered(), attack, 60.0, key=by_who).run()
    assert mix.served == 1.0
    assert mix.p90 == pytest.approx(0.02)
