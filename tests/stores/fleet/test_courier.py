"""The courier: how often it goes, and whom it keeps alive."""

import gc
import threading
import time
import weakref

import pytest

from abate.stores import Terms, open_store
from abate.stores.fleet import Courier, FleetBudget
from abate.stores.fleet.courier import LEAST

LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


def eventually(condition):
    """Wait until something is so."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.005)


def test_it_goes_by_itself_in_a_thread():
    """Again and again, as long as there is something to carry."""
    with open_store("memory:") as store:
        budget = store.budget("orders")
        eventually(lambda: store.courier.journeys >= 3)
        assert budget.try_withdraw()


def test_all_that_a_process_shares_is_one_journey(still):
    """However many budgets, buckets and shelters there are."""
    with open_store("memory:") as store:
        things = [store.budget("a"), store.budget("b"), store.bucket("c", 1.0), store.shelter("d")]
        before = store.courier.journeys
        store.courier.travel()
        assert store.courier.journeys == before + 1
        del things


def test_need_makes_it_hurry_but_not_more_than_twice_a_second():
    """A storm of refusals is no storm of journeys."""
    with open_store("memory:") as store:
        budget = store.budget("orders", ratio=0.0, reserve=0.1, window=10.0)
        began, before = time.monotonic(), store.courier.journeys
        while time.monotonic() - began < 2.0:
            budget.try_withdraw()
        made = store.courier.journeys - before
        assert made <= (time.monotonic() - began) / LEAST + 1


def test_withdrawing_never_waits_for_a_store_that_hangs():
    """The courier may be stuck on its way; calls are not."""
    stuck = threading.Event()

    class Hanging:
        def trade(self, member, offers):
            if threading.current_thread() is not threading.main_thread():
                stuck.wait(LIMIT)
            return store.trade(member, offers)

    with open_store("memory:") as store:
        courier = Courier(Hanging(), "hanging")
        budget = FleetBudget(courier, "orders", Terms(0.0, 1.0, 10.0))
        for _ in range(1000):
            budget.try_withdraw()
        eventually(lambda: courier.journeys >= 2)
        budget._fresh = 0.0  # what it had is not good any more
        assert budget.balance() == 5.0
        stuck.set()
        courier.close()


def test_something_that_breaks_on_the_way_does_not_end_the_journeys(caplog):
    """One party's mistake is logged, and the courier goes on."""

    class Broken:
        def offer(self, now):
            raise ZeroDivisionError

        def closed(self): ...

    with open_store("memory:") as store:
        budget = store.budget("orders")
        broken = Broken()
        store.courier._parties.add(broken)
        eventually(lambda: "a journey has failed" in caplog.text)
        store.courier._parties.discard(broken)
        before = store.courier.journeys
        eventually(lambda: store.courier.journeys > before)
        del budget


def test_closing_ends_the_thread():
    """Nothing stays behind."""
    store = open_store("memory:")
    budget = store.budget("orders")
    thread = store.courier._thread
    store.close()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert budget.try_withdraw(), "what it holds is still its own"


def test_what_nobody_uses_any_more_is_not_carried(still):
    """A budget that is gone leaves by itself."""
    with open_store("memory:") as store:
        budget = store.budget("orders")
        gone = weakref.ref(budget)
        del budget
        gc.collect()
        assert gone() is None
        store.courier.travel()


@pytest.mark.parametrize("name", ["", 3, "x" * 600])
def test_odd_names_are_refused(still, name):
    """A clear error at construction."""
    with open_store("memory:") as store:
        for make in (store.budget, store.shelter, lambda name: store.bucket(name, 1.0)):
            with pytest.raises((TypeError, ValueError), match="name must be"):
                make(name)
