"""The fleet_sync: how often it goes, and whom it keeps alive."""

import gc
import sys
import threading
import time
import weakref

import pytest

from abate.registry import Registry
from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet import sync as sync_module
from abate.stores.fleet.messages import BucketRequest
from abate.stores.fleet.sync import MIN_SYNC_INTERVAL

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
        eventually(lambda: store.fleet_sync.rounds >= 3)
        assert budget.try_withdraw()


def test_all_that_a_process_shares_is_one_journey(still):
    """However many budgets, buckets and shelters there are."""
    with open_store("memory:") as store:
        things = [store.budget("a"), store.budget("b"), store.bucket("c", 1.0), store.shelter("d")]
        before = store.fleet_sync.rounds
        store.fleet_sync.sync_once()
        assert store.fleet_sync.rounds == before + 1
        del things


def test_need_makes_it_hurry_but_not_more_than_twice_a_second():
    """A storm of refusals is no storm of journeys."""
    with open_store("memory:") as store:
        budget = store.budget("orders", ratio=0.0, reserve=0.1, window=10.0)
        began, before = time.monotonic(), store.fleet_sync.rounds
        while time.monotonic() - began < 2.0:
            budget.try_withdraw()
        made = store.fleet_sync.rounds - before
        assert made <= (time.monotonic() - began) / MIN_SYNC_INTERVAL + 1


def test_withdrawing_never_waits_for_a_store_that_hangs():
    """The courier may be stuck on its way; calls are not."""
    stuck = threading.Event()

    class Hanging:
        def sync_members(self, member, requests):
            if threading.current_thread() is not threading.main_thread():
                stuck.wait(LIMIT)
            return store.sync_members(member, requests)

    with open_store("memory:") as store:
        fleet_sync = FleetSync(Hanging(), "hanging")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        for _ in range(1000):
            budget.try_withdraw()
        eventually(lambda: fleet_sync.rounds >= 2)
        budget._valid_until = 0.0  # what it had is not good any more
        assert budget.balance() == 5.0
        stuck.set()
        fleet_sync.close()


def test_something_that_breaks_on_the_way_does_not_end_the_journeys(caplog):
    """One party's mistake is logged, and the courier goes on."""

    class Broken:
        mended = False

        def request(self, now):
            if self.mended:
                return BucketRequest("mails", 0.0)
            raise ZeroDivisionError

        def apply(self, answer, until): ...

        def on_close(self): ...

    with open_store("memory:") as store:
        budget = store.budget("orders")
        broken = Broken()
        store.fleet_sync._synced.add(broken)
        eventually(lambda: "a sync failed" in caplog.text)
        broken.mended = True
        before = store.fleet_sync.rounds
        eventually(lambda: store.fleet_sync.rounds > before)
        del budget


def test_closing_ends_the_thread():
    """Nothing stays behind."""
    store = open_store("memory:")
    budget = store.budget("orders")
    thread = store.fleet_sync._thread
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
        store.fleet_sync.sync_once()


def test_what_joins_when_the_thread_is_about_to_end_is_carried(monkeypatch):
    """The last thing that was shared is gone, and the next one comes while the thread looks for it."""
    monkeypatch.setattr("abate.stores.fleet.sync.SYNC_INTERVAL", 0.01)
    with open_store("memory:") as store:
        kept = []

        class Meeting(Registry):
            def alive(self):
                found = super().alive()
                if not found and not kept and threading.current_thread() is not threading.main_thread():
                    kept.append(store.budget("mails"))
                return found

        fleet_sync = store.fleet_sync
        fleet_sync._synced = Meeting()
        budget = store.budget("orders")
        del budget
        gc.collect()
        eventually(lambda: kept)
        before = fleet_sync.rounds
        eventually(lambda: fleet_sync.rounds > before + 1)


def test_without_a_thread_it_is_said_once_and_tried_again(monkeypatch, caplog):
    """A machine that has no more threads: calls go on, by limits of their own."""
    with monkeypatch.context() as poor, open_store("memory:") as store:
        poor.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        budget = store.budget("orders", ratio=0.0, reserve=1.0, window=10.0)
        for _ in range(3):
            budget._valid_until = 0.0
            assert budget.try_withdraw()
        assert caplog.text.count("no more threads") == 1
        assert store.fleet_sync.start() is False
        poor.undo()
        assert budget.try_withdraw()
        assert store.fleet_sync._thread.is_alive()


def interrupted(function, handler):
    """Call a function; before each line of it that lies in the courier's file, a signal handler runs."""

    def trace(frame, event, arg):
        if frame.f_code.co_filename != sync_module.__file__:
            return None
        if event == "line":
            sys.settrace(None)
            try:
                handler()
            finally:
                sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("what", ["sync_soon", "start", "sync_once"])
def test_a_signal_handler_may_call_from_within_the_courier(what):
    """At every line of it, in the thread that is there already; nothing waits for itself, and one thread goes."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        fleet_sync._thread = None  # as if it had not begun

        def handler():
            fleet_sync.sync_soon()
            fleet_sync.sync_once()
            budget.try_withdraw()

        thread = threading.Thread(target=interrupted, args=(getattr(fleet_sync, what), handler), daemon=True)
        thread.start()
        thread.join(LIMIT)
        assert not thread.is_alive(), "it waits for itself"
        assert len(budget._tokens) <= 5
        fleet_sync.close()


def test_a_store_closed_by_a_signal_handler_in_mid_journey_is_closed(still):
    """The journey that it interrupts brings nothing any more."""

    class Closing:
        def sync_members(self, member, requests):
            if budget_of:
                budget_of[0]._fleet_sync.close()
            return store.sync_members(member, requests)

    budget_of = []
    with open_store("memory:") as store:
        budget = FleetBudget(FleetSync(Closing(), "fleet"), "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert len(budget._tokens) == 5
        budget_of.append(budget)
        budget._fleet_sync.sync_once()
        assert len(budget._tokens) == 0
        assert budget._valid_until < 0.0, "it goes by its own limits"


@pytest.mark.parametrize("name", ["", 3, "x" * 600])
def test_odd_names_are_refused(still, name):
    """A clear error at construction."""
    with open_store("memory:") as store:
        for make in (store.budget, store.shelter, lambda name: store.bucket(name, 1.0)):
            with pytest.raises((TypeError, ValueError), match="name must be"):
                make(name)


def test_who_is_broken_off_as_it_starts_the_thread_leaves_one_thread(monkeypatch):
    """The one that was started goes, and if another is started then, one of them ends."""
    start, made = threading.Thread.start, []

    def broken_off(thread):
        start(thread)
        made.append(thread)
        if len(made) == 1:
            raise KeyboardInterrupt

    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "memory:")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        eventually(lambda: fleet_sync._thread is not None)
        first, fleet_sync._thread = fleet_sync._thread, None
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(threading.Thread, "start", broken_off)
            fleet_sync.start()
        fleet_sync.start()
        going = fleet_sync._thread
        eventually(lambda: [one for one in (first, *made) if one.is_alive()] == [going])
        fleet_sync.close()
        del budget


def test_a_fork_by_a_signal_handler_as_the_thread_is_started_keeps_the_child_s_own_lock(monkeypatch):
    """The child starts a thread of its own."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "memory:")

        def forked(thread):
            fleet_sync.after_fork()  # what the child does first

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", forked)
            assert fleet_sync.start()
        assert not fleet_sync._starting.locked()
        fleet_sync.close()
