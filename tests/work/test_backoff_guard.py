"""Adding a failed key skips its backoff only if the retry budget has a token for it."""

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget
from abate.testing import VirtualClock
from abate.work import backoff_guard
from abate.work.backoff_guard import BackoffGuard
from abate.work.source import Back, Bury, Done, Message

EMPTY = {"ratio": 0.0, "reserve": 0.0}
STEADY = Backoff(10.0, 10.0, jitter="none")


def run_during(controller, body, clock, seconds=0.0):
    """Run a controller while the body runs, then for some virtual seconds; return its tally."""

    async def main():
        running = asyncio.create_task(controller.arun())
        await body()
        await clock.asleep(seconds)
        controller.stop()
        return await running

    return asyncio.run(main())


def failed_before(key="a"):
    """Return a message that has failed before."""
    return Message(key, receives=2)


# -- the guard alone


def test_a_key_received_after_its_backoff_costs_nothing():
    """A key that is early by a few seconds of clock skew counts as on time."""
    guard = BackoffGuard(Budget(**EMPTY))
    guard.record(Message("a"), Back(60.0), now=100.0)
    assert guard.remaining(failed_before(), now=157.5) == 0.0
    assert len(guard) == 0


def test_a_key_received_early_waits_for_the_rest_of_its_backoff():
    """Each early receive returns the seconds that remain."""
    guard = BackoffGuard(Budget(**EMPTY))
    guard.record(Message("a"), Back(60.0), now=100.0)
    assert guard.remaining(failed_before(), now=100.0) == 60.0
    assert guard.remaining(failed_before(), now=130.0) == 30.0
    assert guard.remaining(failed_before("b"), now=130.0) == 0.0
    assert guard.remaining(failed_before(), now=160.0) == 0.0


def test_each_early_attempt_withdraws_one_token():
    """A key that goes back withdraws nothing."""
    budget = Budget(ratio=0.0, reserve=0.2, window=10.0)
    guard = BackoffGuard(budget)
    tried = 0
    with VirtualClock():
        for _ in range(5):
            guard.record(Message("a"), Back(60.0), now=0.0)
            tried += guard.remaining(failed_before(), now=1.0) == 0.0
        assert (tried, budget.balance()) == (2, 0.0)


@pytest.mark.parametrize("verdict", [Done(), Done(again=5.0), Bury("permanent", "no"), Back(60.0, touched=False)])
def test_a_verdict_that_is_not_a_failure_ends_the_backoff(verdict):
    """Success, burial and an untouched return all clear the recorded backoff."""
    guard = BackoffGuard(Budget(**EMPTY))
    guard.record(Message("a"), Back(60.0), now=0.0)
    guard.record(failed_before(), verdict, now=1.0)
    assert guard.remaining(failed_before(), now=2.0) == 0.0


def test_a_success_in_another_process_ends_the_backoff():
    """A key with one receive has been handled successfully since."""
    guard = BackoffGuard(Budget(**EMPTY))
    guard.record(Message("a"), Back(60.0), now=0.0)
    assert guard.remaining(Message("a", receives=1), now=1.0) == 0.0
    assert guard.remaining(failed_before(), now=2.0) == 0.0


def test_a_backoff_recorded_on_another_clock_is_ignored():
    """Virtual time starts at zero, long before an instant of the machine's clock."""
    guard = BackoffGuard(Budget(**EMPTY))
    guard.record(Message("a"), Back(60.0), now=1e6)
    assert guard.remaining(failed_before(), now=0.0) == 0.0


def test_the_number_of_recorded_keys_is_bounded(monkeypatch):
    """The guard forgets the key that failed longest ago."""
    monkeypatch.setattr(backoff_guard, "MAX_KEYS", 2)
    guard = BackoffGuard(Budget(**EMPTY))
    for key in "abca":
        guard.record(Message(key), Back(60.0), now=0.0)
    assert [guard.remaining(failed_before(key), now=1.0) for key in "bca"] == [0.0, 59.0, 59.0]


# -- controllers


@pytest.fixture(params=["in memory", "memory:", "sqlite"])
def store(request, tmp_path):
    """Return the store of the controller; None keeps the keys in memory."""
    return {"in memory": None, "memory:": "memory:", "sqlite": f"sqlite:///{tmp_path}/work.db"}[request.param]


def test_without_a_token_an_add_does_not_skip_the_backoff(store):
    """The key is handled when its backoff is over, also if it was added while in hand."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, backoff=STEADY, budget=Budget(**EMPTY), slow=0.1)
        async def reconcile(key):
            tries.append(clock.now())
            if len(tries) < 3:
                reconcile.add(key)  # while the key is in hand
                raise ConnectionError("down")

        async def body():
            reconcile.add("a")
            for _ in range(19):
                await clock.asleep(1.0)
                reconcile.add("a")

        tally = run_during(reconcile, body, clock, 5.0)
        assert [round(at) for at in tries[:3]] == [0, 10, 20]
        assert tally["held"] >= 15
        assert reconcile.waiting() == 0


def test_with_a_token_an_add_skips_the_backoff(store):
    """The key is handled at once; a key added with a delay needs no token."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, backoff=STEADY, budget=Budget(ratio=0.0, reserve=0.2, window=10.0))
        async def reconcile(key):
            tries.append((round(clock.now()), key))
            if key == "a" and len(tries) < 3:
                raise ConnectionError("down")

        async def body():
            reconcile.add("a")
            await clock.asleep(1.0)
            reconcile.add("a")  # withdraws the second token; the first failure's retry took the first
            reconcile.add("later", after=60.0)
            await clock.asleep(1.0)
            reconcile.add("later")
            reconcile.add("a")
            await clock.asleep(1.0)

        run_during(reconcile, body, clock)
        assert tries == [(0, "a"), (1, "a"), (2, "later")]


def test_adding_a_parked_key_costs_nothing(store):
    """An added parked key starts without failures."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, budget=Budget(**EMPTY), max_requeues=0)
        async def reconcile(key):
            tries.append(clock.now())
            raise ConnectionError("down")

        async def body():
            for _ in range(3):
                reconcile.add("a")
                await clock.asleep(1.0)

        run_during(reconcile, body, clock)
        assert len(tries) == 3


def test_discarding_a_key_ends_its_backoff(store):
    """A discarded key that is added again is handled at once."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, backoff=STEADY, budget=Budget(**EMPTY))
        async def reconcile(key):
            tries.append(clock.now())
            raise ConnectionError("down")

        async def body():
            reconcile.add("a")
            await clock.asleep(1.0)
            reconcile.discard("a")
            reconcile.add("a")
            await clock.asleep(1.0)

        run_during(reconcile, body, clock)
        assert len(tries) == 2


@pytest.mark.parametrize("feed", ["poll", "source", "resync"])
def test_feeds_do_not_skip_the_backoff_without_tokens(feed):
    """A feed that adds all keys each second hardly adds load to a dependency that is down."""
    keys = [f"key-{number}" for number in range(50)]
    tried = {}
    for fed in (True, False):
        with VirtualClock() as clock:
            times = tried[fed] = []
            resync = {"resync": 1.0, "keys": lambda: keys} if fed and feed == "resync" else {}

            @abate.controller(workers=8, budget=Budget(ratio=0.2, reserve=1.0, window=10.0), **resync)
            async def reconcile(key, times=times):
                times.append(abate.clock.current().now())
                raise ConnectionError("down")

            if fed and feed == "poll":
                reconcile.poll(every=1.0)(lambda: keys)
            if fed and feed == "source":

                @reconcile.source
                async def watch():
                    while True:
                        for key in keys:
                            yield key
                        await abate.clock.current().asleep(1.0)

            async def body(reconcile=reconcile):
                for key in keys:
                    reconcile.add(key)

            run_during(reconcile, body, clock, 60.0)
    # first attempts, one token a second, and retries at the slow rate
    assert len(tried[True]) <= 50 + 60 + 20 + 60
    assert len(tried[True]) <= len(tried[False]) * 1.5


def test_each_process_keeps_its_own_backoff_of_a_shared_key():
    """Each process tries a key once per backoff, however often any process adds it."""
    with VirtualClock() as clock, abate.open_store("memory:") as store:
        tries = defaultdict(list)

        def process(number):
            @abate.controller(store=store, name="orders", backoff=STEADY, budget=Budget(**EMPTY), slow=20.0)
            async def reconcile(key):
                tries[number].append(clock.now())
                raise ConnectionError("down")

            return reconcile

        processes = [process(number) for number in range(3)]

        async def body():
            running = [asyncio.create_task(other.arun()) for other in processes[1:]]
            for _ in range(100):
                store.queue("orders").add("a")  # the queue itself has no budget
                await clock.asleep(0.7)
            for other in processes[1:]:
                other.stop()
            await asyncio.gather(*running)

        run_during(processes[0], body, clock)
        assert sum(map(len, tries.values())) > 3
        for times in tries.values():
            assert all(after - before >= 9.5 for before, after in pairwise(times))


@settings(max_examples=20, deadline=None)
@example(adds=[(4.269660959410934, "a"), (0.0, "a")], reserve=0.0, slow=2.0, in_store=False)  # rounding
@given(
    adds=st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from("abc")), min_size=1, max_size=60),
    reserve=st.sampled_from([0.0, 0.1, 1.0]),
    slow=st.sampled_from([2.0, 20.0]),
    in_store=st.booleans(),
)
def test_attempts_wait_or_withdraw_a_token_and_no_add_is_lost(adds, reserve, slow, in_store):
    """Two attempts of a failing key are a delay or a withdrawal apart, and an attempt follows each add."""
    with VirtualClock() as clock:
        withdrawals, early, added, tries, due = [], 0, defaultdict(list), defaultdict(list), {}

        class RecordingBudget(Budget):
            def try_withdraw(self, now=None):
                granted = super().try_withdraw(now)
                if granted:
                    withdrawals.append(clock.now())
                return granted

        class Fixed(Backoff):
            def delay(self, retry, rng, previous=None):
                return 4.0

        budget = RecordingBudget(ratio=0.0, reserve=reserve, window=10.0)
        store = abate.open_store("memory:") if in_store else None

        @abate.controller(store=store, workers=2, backoff=Fixed(4.0), budget=budget, slow=slow)
        async def reconcile(key):
            nonlocal early
            early += clock.now() < due.get(key, 0.0) - 0.3
            tries[key].append(clock.now())
            due[key] = clock.now() + 4.0
            raise ConnectionError("down")

        async def body():
            for pause, key in adds:
                await clock.asleep(pause)
                added[key].append(clock.now())
                reconcile.add(key)

        run_during(reconcile, body, clock, 2 * slow + 5.0)
        assert early <= len(withdrawals)
        for key, instants in added.items():
            assert tries[key][-1] >= instants[-1]
            gaps = [after - before for before, after in pairwise(tries[key])]
            assert max(gaps, default=0.0) <= max(4.0, 1.5 * slow) + 0.5
