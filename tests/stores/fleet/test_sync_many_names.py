"""What a fleet shares costs the same for each name, however many there are: a budget per tenant, thousands of them."""

import threading

import pytest

from abate.stores import StoreUnreachable, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet import sync as sync_module
from abate.stores.fleet.sync import BATCH, REPLY_VALID, SYNC_INTERVAL
from tests.conformance.conftest import STORES

TERMS = BudgetTerms(0.2, 1.0, 10.0)


class Counting:
    """A store that counts what is brought to it."""

    def __init__(self, store):
        self.store = store
        self.visits = []
        self.broken = False

    def sync_members(self, member, requests):
        self.visits.append(len(requests))
        if self.broken:
            raise StoreUnreachable("it is not there")
        return self.store.sync_members(member, requests)


@pytest.fixture
def counting(still):
    with open_store("memory:") as store:
        yield Counting(store)


def budgets(fleet_sync, many):
    return [FleetBudget(fleet_sync, f"tenant-{number}", TERMS) for number in range(many)]


def test_what_joins_is_carried_alone(counting):
    """Not with everything that is there already: that would be a square of the names."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 600)
    assert counting.visits == [1] * 600
    assert all(budget.try_withdraw() for budget in made), "each has heard from the store"


def test_a_journey_is_made_in_batches(counting):
    """Each a round trip of its own, so that no store has to answer for thousands of names at once."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 2 * BATCH + 1)
    del counting.visits[:]
    fleet_sync.sync_once()
    assert counting.visits == [BATCH, BATCH, 1]
    del counting.visits[:]
    fleet_sync.close()
    assert counting.visits == [BATCH, BATCH, 1]
    del made


def test_a_store_that_is_not_there_is_asked_once(counting):
    """Neither the other batches nor those who join wait for it: all go by their own limits."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 2 * BATCH)
    del counting.visits[:]
    counting.broken = True
    fleet_sync.sync_once()
    late = FleetBudget(fleet_sync, "late", TERMS)
    assert counting.visits == [BATCH]
    assert all(budget._valid_until < 0.0 for budget in [*made, late])
    assert late.try_withdraw(), "by its own limits"
    counting.broken = False
    fleet_sync.sync_once()
    assert not fleet_sync.degraded
    assert all(budget._valid_until > 0.0 for budget in [*made, late])


def test_a_batch_that_always_fails_is_a_store_that_fails(counting, caplog):
    """It is said once, and the courier goes less and less often, though the batches before it are answered."""
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


def test_who_joins_waits_for_one_batch_of_a_journey_and_not_for_all(counting, monkeypatch):
    """The journey goes on between the batches of others."""
    fleet_sync = FleetSync(counting, "fleet")
    made = budgets(fleet_sync, 3 * BATCH)
    del counting.visits[:]
    within, joined = threading.Event(), threading.Event()
    visit = fleet_sync._sync_batch

    def slowly(parties):
        found = visit(parties)
        if len(parties) > 1 and not joined.is_set():
            within.set()
            assert joined.wait(30.0)
        return found

    monkeypatch.setattr(fleet_sync, "_sync_batch", slowly)
    journey = threading.Thread(target=fleet_sync.sync_once)
    journey.start()
    assert within.wait(30.0)
    late = FleetBudget(fleet_sync, "late", TERMS)
    joined.set()
    journey.join(30.0)
    assert counting.visits == [BATCH, 1, BATCH, BATCH]
    del made, late


def test_a_courier_that_takes_long_rests_as_long(counting, monkeypatch, caplog):
    """So it never takes more than half of the time; what it brought is good until the journey after the next."""
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

    class News:
        def get(self, timeout):
            waited.append(timeout)
            instant[0] += timeout

    monkeypatch.setattr(fleet_sync, "_wake_queue", News())
    assert fleet_sync.wait()
    assert sum(waited) == 4.0 > SYNC_INTERVAL * 1.25


def test_the_work_of_sqlite_grows_with_the_names_and_not_with_their_square(still):
    """Counted in the steps of its virtual machine."""

    def steps(many):
        with open_store("memory:") as store:
            made = budgets(store.fleet_sync, many)
            counted = [0]

            def step():
                counted[0] += 1

            store.file.transaction(lambda db: db.set_progress_handler(step, 50))
            store.fleet_sync.sync_once()
            del made
            return counted[0]

    assert steps(1600) < 5 * steps(400)


@pytest.mark.parametrize("kind", STORES)
def test_a_thousand_names_are_shared(still, tmp_path, kind):
    """On every store, in one journey that all of them hear from."""
    with open_store(STORES[kind](tmp_path)) as store:
        made = [store.budget(f"tenant-{number}", reserve=1.0) for number in range(1000)]
        store.fleet_sync.sync_once()
        assert not store.degraded
        assert all(budget.try_withdraw() for budget in made)
