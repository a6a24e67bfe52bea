"""An add hastens a key that has failed as far as the retry budget pays for it, and no further."""

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

BROKE = {"ratio": 0.0, "reserve": 0.0}
STEADY = Backoff(10.0, 10.0, jitter="none")


def live(controller, body, clock, seconds=0.0):
    """Run a controller while a body runs, and then for so many virtual seconds: the tally."""

    async def main():
        running = asyncio.create_task(controller.arun())
        await body()
        await clock.asleep(seconds)
        controller.stop()
        return await running

    return asyncio.run(main())


def again(key="a"):
    """A key that has failed before."""
    return Message(key, receives=2)


# -- the rule


def test_a_key_that_comes_in_its_time_costs_nothing():
    """Also where clocks don't quite agree."""
    held = BackoffGuard(Budget(**BROKE))
    held.record(Message("a"), Back(60.0), now=100.0)
    assert held.remaining(again(), now=157.5) == 0.0
    assert len(held) == 0


def test_a_key_that_comes_early_goes_back_for_the_rest():
    """As often as it comes, until its time has come."""
    held = BackoffGuard(Budget(**BROKE))
    held.record(Message("a"), Back(60.0), now=100.0)
    assert held.remaining(again(), now=100.0) == 60.0
    assert held.remaining(again(), now=130.0) == 30.0
    assert held.remaining(again("b"), now=130.0) == 0.0
    assert held.remaining(again(), now=160.0) == 0.0


def test_each_early_try_is_paid_for():
    """One withdrawal each, and none for what goes back."""
    budget = Budget(ratio=0.0, reserve=0.2, window=10.0)
    held = BackoffGuard(budget)
    tried = 0
    with VirtualClock():
        for _ in range(5):
            held.record(Message("a"), Back(60.0), now=0.0)
            tried += held.remaining(again(), now=1.0) == 0.0
        assert (tried, budget.balance()) == (2, 0.0)


@pytest.mark.parametrize("verdict", [Done(), Done(again=5.0), Bury("permanent", "no"), Back(60.0, touched=False)])
def test_what_is_not_a_failure_holds_nothing_back(verdict):
    """It has ended what was there before."""
    held = BackoffGuard(Budget(**BROKE))
    held.record(Message("a"), Back(60.0), now=0.0)
    held.record(again(), verdict, now=1.0)
    assert held.remaining(again(), now=2.0) == 0.0


def test_a_key_that_has_succeeded_elsewhere_is_new():
    """Another process was done with it: its receives begin anew."""
    held = BackoffGuard(Budget(**BROKE))
    held.record(Message("a"), Back(60.0), now=0.0)
    assert held.remaining(Message("a", receives=1), now=1.0) == 0.0
    assert held.remaining(again(), now=2.0) == 0.0


def test_a_pause_on_another_clock_does_not_count():
    """A test in virtual time begins at nought, long before what was written down on the machine's clock."""
    held = BackoffGuard(Budget(**BROKE))
    held.record(Message("a"), Back(60.0), now=1e6)
    assert held.remaining(again(), now=0.0) == 0.0


def test_what_is_remembered_is_bounded(monkeypatch):
    """The key that failed longest ago is forgotten for one more."""
    monkeypatch.setattr(backoff_guard, "MAX_KEYS", 2)
    held = BackoffGuard(Budget(**BROKE))
    for key in "abca":
        held.record(Message(key), Back(60.0), now=0.0)
    assert [held.remaining(again(key), now=1.0) for key in "bca"] == [0.0, 59.0, 59.0]


# -- controllers


@pytest.fixture(params=["in memory", "memory:", "sqlite"])
def store(request, tmp_path):
    """Where a controller has its keys: None for in memory."""
    return {"in memory": None, "memory:": "memory:", "sqlite": f"sqlite:///{tmp_path}/work.db"}[request.param]


def test_an_add_does_not_hasten_what_the_budget_does_not_pay_for(store):
    """The key keeps its time, and is looked at then; so does one that is added while it is in hand."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, backoff=STEADY, budget=Budget(**BROKE), slow=0.1)
        async def reconcile(key):
            tries.append(clock.now())
            if len(tries) < 3:
                reconcile.add(key)  # while it is in hand
                raise ConnectionError("down")

        async def body():
            reconcile.add("a")
            for _ in range(19):
                await clock.asleep(1.0)
                reconcile.add("a")

        tally = live(reconcile, body, clock, 5.0)
        assert [round(at) for at in tries[:3]] == [0, 10, 20]
        assert tally["held"] >= 15
        assert reconcile.waiting() == 0


def test_an_add_hastens_what_the_budget_pays_for(store):
    """At once; and what was meant for later from the start is hastened for nothing."""
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
            reconcile.add("a")  # two withdrawals: for the first failure's return, and for this
            reconcile.add("later", after=60.0)
            await clock.asleep(1.0)
            reconcile.add("later")
            reconcile.add("a")
            await clock.asleep(1.0)

        live(reconcile, body, clock)
        assert tries == [(0, "a"), (1, "a"), (2, "later")]


def test_a_parked_key_that_is_added_again_costs_nothing(store):
    """It comes back to life as new."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, budget=Budget(**BROKE), max_requeues=0)
        async def reconcile(key):
            tries.append(clock.now())
            raise ConnectionError("down")

        async def body():
            for _ in range(3):
                reconcile.add("a")
                await clock.asleep(1.0)

        live(reconcile, body, clock)
        assert len(tries) == 3


def test_a_discarded_key_begins_anew(store):
    """What comes by its name later is another thing."""
    with VirtualClock() as clock:
        tries = []

        @abate.controller(store=store, backoff=STEADY, budget=Budget(**BROKE))
        async def reconcile(key):
            tries.append(clock.now())
            raise ConnectionError("down")

        async def body():
            reconcile.add("a")
            await clock.asleep(1.0)
            reconcile.discard("a")
            reconcile.add("a")
            await clock.asleep(1.0)

        live(reconcile, body, clock)
        assert len(tries) == 2


@pytest.mark.parametrize("feed", ["poll", "source", "resync"])
def test_feeds_bring_keys_back_no_sooner_than_the_budget_pays_for(feed):
    """A poller of all keys each second adds nothing to what a dependency that is down gets without it."""
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

            live(reconcile, body, clock, 60.0)
    # first looks, a token a second, and those that come back at the slow rate
    assert len(tried[True]) <= 50 + 60 + 20 + 60
    assert len(tried[True]) <= len(tried[False]) * 1.5


def test_processes_that_share_a_store_hold_to_their_own_times():
    """Each tries a key once in its time, however often it is added, by whomever."""
    with VirtualClock() as clock, abate.open_store("memory:") as store:
        tries = defaultdict(list)

        def process(number):
            @abate.controller(store=store, name="orders", backoff=STEADY, budget=Budget(**BROKE), slow=20.0)
            async def reconcile(key):
                tries[number].append(clock.now())
                raise ConnectionError("down")

            return reconcile

        processes = [process(number) for number in range(3)]

        async def body():
            running = [asyncio.create_task(other.arun()) for other in processes[1:]]
            for _ in range(100):
                store.queue("orders").add("a")  # not by a controller: it has no budget that could pay
                await clock.asleep(0.7)
            for other in processes[1:]:
                other.stop()
            await asyncio.gather(*running)

        live(processes[0], body, clock)
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
def test_whatever_is_added_tries_are_paid_for_or_in_their_time_and_no_add_is_lost(adds, reserve, slow, in_store):
    """Between two tries of a failing key lies its delay, or a withdrawal; and each add is followed by a look."""
    with VirtualClock() as clock:
        paid, early, added, tries, due = [], 0, defaultdict(list), defaultdict(list), {}

        class Purse(Budget):
            def try_withdraw(self, now=None):
                granted = super().try_withdraw(now)
                if granted:
                    paid.append(clock.now())
                return granted

        class Fixed(Backoff):
            def delay(self, retry, rng, previous=None):
                return 4.0

        budget = Purse(ratio=0.0, reserve=reserve, window=10.0)
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

        live(reconcile, body, clock, 2 * slow + 5.0)
        assert early <= len(paid)
        for key, instants in added.items():
            assert tries[key][-1] >= instants[-1]
            gaps = [after - before for before, after in pairwise(tries[key])]
            assert max(gaps, default=0.0) <= max(4.0, 1.5 * slow) + 0.5
