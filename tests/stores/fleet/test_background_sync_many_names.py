"""The cost of a sync per name is constant: a fleet may have thousands of names, such as a budget per tenant."""

import threading

import pytest

from abate.stores import StoreUnreachable, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet import background_sync as sync_module
from abate.stores.fleet.background_sync import BATCH, REPLY_VALID, SYNC_INTERVAL
from tests.conformance.conftest import STORES

TERMS = BudgetTerms(0.2, 1.0, 10.0)


class Counting:
    """A store that records the number of requests of each sync."""

    def __init__(self, store):
        self.store = store
        self.batch_sizes = []
        self.broken = False

    def sync_members(self, member, requests):
        self.batch_sizes.append(len(requests))
        if self.broken:
            raise StoreUnreachable("connection refused")
        return self.store.sync_members(member, requests)


@pytest.fixture
def counting(manual_sync):
    with open_store("memory:") as store:
        yield Counting(store)


def budgets(fleet_sync, count):
    return [FleetBudget(fleet_sync, f"tenant-{number}", TERMS) for number in range(count)]


def test_a_new_name_is_synced_alone(counting):
    """Syncing all names for each new one would cost the square of their number."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 600)
    assert counting.batch_sizes == [1] * 600
    assert all(budget.try_withdraw() for budget in made), "each has a reply"


def test_a_sync_is_made_in_batches(counting):
    """Each batch is one round trip: no request has thousands of names."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 2 * BATCH + 1)
    del counting.batch_sizes[:]
    fleet_sync.sync_once()
    assert counting.batch_sizes == [BATCH, BATCH, 1]
    del counting.batch_sizes[:]
    fleet_sync.close()
    assert counting.batch_sizes == [BATCH, BATCH, 1]
    del made


def test_an_unreachable_store_is_asked_once(counting):
    """After one failed batch, other batches and new names use local limits without waiting."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 2 * BATCH)
    del counting.batch_sizes[:]
    counting.broken = True
    fleet_sync.sync_once()
    late = FleetBudget(fleet_sync, "late", TERMS)
    assert counting.batch_sizes == [BATCH]
    assert all(budget._valid_until < 0.0 for budget in [*made, late])
    assert late.try_withdraw(), "local limits apply"
    counting.broken = False
    fleet_sync.sync_once()
    assert not fleet_sync.degraded
    assert all(budget._valid_until > 0.0 for budget in [*made, late])


def test_one_failing_batch_makes_the_store_degraded(counting, caplog):
    """It is logged once and syncs become rarer, though other batches succeed."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 2 * BATCH)
    answer = counting.sync_members

    def sync_members(member, requests):
        if any(request.name == f"tenant-{BATCH + 50}" for request in requests):
            raise StoreUnreachable("it takes too long")
        return answer(member, requests)

    counting.sync_members = sync_members
    for failures in (1, 2, 3):
        fleet_sync.sync_once()
        assert (fleet_sync._failures, fleet_sync.degraded) == (failures, True)
    assert [one.message for one in caplog.records] == [
        "fleet does not answer: each process applies local limits now (it takes too long)"
    ]
    del counting.sync_members
    fleet_sync.sync_once()
    assert (fleet_sync._failures, fleet_sync.degraded) == (0, False)
    del made


def test_a_new_name_waits_for_one_batch_of_a_sync_only(counting, monkeypatch):
    """It is synced between two batches."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 3 * BATCH)
    del counting.batch_sizes[:]
    within, joined = threading.Event(), threading.Event()
    sync_batch = fleet_sync._sync_batch

    def slowly(synced):
        found = sync_batch(synced)
        if len(synced) > 1 and not joined.is_set():
            within.set()
            assert joined.wait(30.0)
        return found

    monkeypatch.setattr(fleet_sync, "_sync_batch", slowly)
    sync = threading.Thread(target=fleet_sync.sync_once)
    sync.start()
    assert within.wait(30.0)
    late = FleetBudget(fleet_sync, "late", TERMS)
    joined.set()
    sync.join(30.0)
    assert counting.batch_sizes == [BATCH, 1, BATCH, BATCH]
    del made, late


def test_a_slow_sync_pauses_as_long_as_it_took(counting, monkeypatch, caplog):
    """It is busy at most half of the time, and replies are valid until the second next sync."""
    fleet_sync = FleetSync(counting, "fleet")
    (budget,) = budgets(fleet_sync, 1)
    instant = [1000.0]

    class Slow:
        def now(self):
            return instant[0]

    def sync_members(member, requests):
        instant[0] += 4.0
        return counting.store.sync_members(member, requests)

    monkeypatch.setattr(sync_module, "MACHINE", Slow())
    monkeypatch.setattr(counting, "sync_members", sync_members)
    fleet_sync.sync_once()
    began = instant[0]
    fleet_sync.sync_once()
    assert budget._valid_until == began + 2 * (4.0 + 4.0) > began + REPLY_VALID
    assert caplog.text.count("syncing 1 names takes 4.0 s") == 1
    waited = []

    class WakeQueue:
        def get(self, timeout):
            waited.append(timeout)
            instant[0] += timeout

    monkeypatch.setattr(fleet_sync, "_wake_queue", WakeQueue())
    assert fleet_sync.wait()
    assert sum(waited) == 4.0 > SYNC_INTERVAL * 1.25


def test_the_work_of_sqlite_grows_linearly_with_the_names(manual_sync):
    """Counted in steps of its virtual machine."""

    def steps(count):
        with open_store("memory:") as store:
            made = budgets(store.fleet_sync, count)
            counted = [0]

            def step():
                counted[0] += 1

            store.file.transaction(lambda db: db.set_progress_handler(step, 50))
            store.fleet_sync.sync_once()
            del made
            return counted[0]

    assert steps(1600) < 5 * steps(400)


@pytest.mark.parametrize("kind", STORES)
def test_a_thousand_names_are_synced_in_one_round(manual_sync, tmp_path, kind):
    """Every store replies to all of them."""
    with open_store(STORES[kind](tmp_path)) as store:
        made = [store.budget(f"tenant-{number}", reserve=1.0) for number in range(1000)]
        store.fleet_sync.sync_once()
        assert not store.degraded
        assert all(budget.try_withdraw() for budget in made)
