"""FleetSync: how often it syncs, its thread, and what it keeps alive."""

import gc
import sys
import threading
import time
import weakref

import pytest

from abate.registry import Registry
from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet import background_sync as sync_module
from abate.stores.fleet.background_sync import MIN_SYNC_INTERVAL
from abate.stores.fleet.sync_requests import BucketRequest

LIMIT = 30.0
"""Seconds: keeps a broken test from hanging."""


def eventually(condition):
    """Wait until the condition holds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.005)


def test_a_thread_syncs_repeatedly():
    """As long as an object is shared."""
    with open_store("memory:") as store:
        budget = store.budget("orders")
        eventually(lambda: store.fleet_sync.rounds >= 3)
        assert budget.try_withdraw()


def test_one_sync_serves_all_shared_objects(manual_sync):
    """However many budgets, buckets and shelters there are."""
    with open_store("memory:") as store:
        things = [store.budget("a"), store.budget("b"), store.bucket("c", 1.0), store.shelter("d")]
        before = store.fleet_sync.rounds
        store.fleet_sync.sync_once()
        assert store.fleet_sync.rounds == before + 1
        del things


def test_refusals_sync_early_but_at_most_twice_a_second():
    """Many refusals do not cause many syncs."""
    with open_store("memory:") as store:
        budget = store.budget("orders", ratio=0.0, reserve=0.1, window=10.0)
        began, before = time.monotonic(), store.fleet_sync.rounds
        while time.monotonic() - began < 2.0:
            budget.try_withdraw()
        made = store.fleet_sync.rounds - before
        assert made <= (time.monotonic() - began) / MIN_SYNC_INTERVAL + 1


def test_withdrawals_never_wait_for_a_store_that_hangs():
    """Only the sync thread waits."""
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
        budget._valid_until = 0.0  # the last reply has expired
        assert budget.balance() == 5.0
        stuck.set()
        fleet_sync.close()


def test_an_error_in_one_shared_object_does_not_end_the_thread(caplog):
    """It is logged, and syncs go on."""

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
    """Budgets of the store work locally afterwards."""
    store = open_store("memory:")
    budget = store.budget("orders")
    thread = store.fleet_sync._thread
    store.close()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert budget.try_withdraw(), "the budget is local now"


def test_an_unreferenced_budget_is_not_synced(manual_sync):
    """The sync holds no strong reference to it."""
    with open_store("memory:") as store:
        budget = store.budget("orders")
        gone = weakref.ref(budget)
        del budget
        gc.collect()
        assert gone() is None
        store.fleet_sync.sync_once()


def test_an_object_shared_as_the_thread_ends_is_synced(monkeypatch):
    """The last shared object is gone, and a new one joins while the thread checks."""
    monkeypatch.setattr("abate.stores.fleet.background_sync.SYNC_INTERVAL", 0.01)
    with open_store("memory:") as store:
        kept = []

        class JoiningRegistry(Registry):
            def alive(self):
                found = super().alive()
                if not found and not kept and threading.current_thread() is not threading.main_thread():
                    kept.append(store.budget("mails"))
                return found

        fleet_sync = store.fleet_sync
        fleet_sync._synced = JoiningRegistry()
        budget = store.budget("orders")
        del budget
        gc.collect()
        eventually(lambda: kept)
        before = fleet_sync.rounds
        eventually(lambda: fleet_sync.rounds > before + 1)


def test_a_thread_that_cannot_start_is_logged_once_and_retried(monkeypatch, caplog):
    """Calls go on with local limits."""
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
    """Call a function and run a signal handler before each line of it that lies in background_sync.py."""

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


@pytest.mark.parametrize("method", ["sync_soon", "start", "sync_once"])
def test_a_signal_handler_may_call_the_sync_at_any_line(method):
    """The interrupted thread does not deadlock."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        fleet_sync._thread = None  # as before its start

        def handler():
            fleet_sync.sync_soon()
            fleet_sync.sync_once()
            budget.try_withdraw()

        thread = threading.Thread(target=interrupted, args=(getattr(fleet_sync, method), handler), daemon=True)
        thread.start()
        thread.join(LIMIT)
        assert not thread.is_alive(), "deadlock"
        assert len(budget._tokens) <= 5
        fleet_sync.close()


def test_a_store_closed_by_a_signal_handler_during_a_sync_is_closed(manual_sync):
    """The reply of the interrupted sync is dropped."""

    class Closing:
        def sync_members(self, member, requests):
            if budget_of:
                budget_of[0]._fleet_sync.close()
            return store.sync_members(member, requests)

    budget_of = []
    with open_store("memory:") as store:
        budget = FleetBudget(FleetSync(Closing(), "fleet"), "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert budget.balance() == 5
        budget_of.append(budget)
        budget._fleet_sync.sync_once()
        assert budget.balance() == 10, "local limits apply"


@pytest.mark.parametrize("name", ["", 3, "x" * 600])
def test_invalid_names_are_refused(manual_sync, name):
    """Construction raises an error that says what was expected."""
    with open_store("memory:") as store:
        for make in (store.budget, store.shelter, lambda name: store.bucket(name, 1.0)):
            with pytest.raises((TypeError, ValueError), match="name must be"):
                make(name)


def test_an_interrupt_while_the_thread_starts_leaves_one_thread(monkeypatch):
    """If a second thread is started afterwards, the first one ends."""
    start, made = threading.Thread.start, []

    def interrupted_start(thread):
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
            patched.setattr(threading.Thread, "start", interrupted_start)
            fleet_sync.start()
        fleet_sync.start()
        current = fleet_sync._thread
        eventually(lambda: [one for one in (first, *made) if one.is_alive()] == [current])
        fleet_sync.close()
        del budget


def test_a_fork_by_a_signal_handler_while_the_thread_starts_frees_the_child_s_lock(monkeypatch):
    """The child can start a thread of its own."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "memory:")

        def forked(thread):
            fleet_sync.after_fork()  # what the child does first

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", forked)
            assert fleet_sync.start()
        assert not fleet_sync._starting.locked()
        fleet_sync.close()
