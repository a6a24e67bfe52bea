"""How a controller with a store counts its adds."""

import asyncio

import pytest

import abate
from abate.testing import VirtualClock


@pytest.fixture
def store():
    with abate.open_store("memory:") as store:
        yield store


def run_for(controller, seconds):
    """Run a controller for some virtual seconds."""

    async def main():
        running = asyncio.create_task(controller.arun())
        await abate.clock.current().asleep(seconds)
        controller.stop()
        await running

    asyncio.run(main())


def add_counts(controller):
    return controller.adds, controller.coalesced


def test_adds_of_a_source_are_counted(store):
    """Each key from a source counts as one add, also if it waited for capacity."""
    with VirtualClock() as clock:

        @abate.controller(store=store, capacity=2, workers=1)
        async def reconcile(key):
            await clock.asleep(1.0)

        @reconcile.source
        async def watch():
            for key in "aabbccdd":
                yield key
            await asyncio.Event().wait()

        run_for(reconcile, 60.0)
        adds, coalesced = add_counts(reconcile)
        assert adds == 8
        assert 1 <= coalesced <= 4


def test_a_refused_add_is_not_counted(store):
    """An add that raises QueueFull or TypeError does not change the counts."""
    reconcile = abate.controller(store=store, capacity=1)(print)
    reconcile.add("a")
    with pytest.raises(abate.QueueFull):
        reconcile.add("b")
    with pytest.raises(TypeError):
        reconcile.add(42)
    assert add_counts(reconcile) == (1, 0)


def test_a_resync_without_effect_does_not_count_as_coalesced(store):
    """The store does not report whether the key is waiting or parked."""
    with VirtualClock():

        @abate.controller(store=store, resync=10.0, keys=lambda: ["parked"])
        def reconcile(key):
            raise abate.PermanentFailure("no")

        run_for(reconcile, 50.0)
        adds, coalesced = add_counts(reconcile)
        assert adds >= 4
        assert coalesced == 0


def test_counts_continue_when_keys_move_to_a_store(store):
    """Adds made before the store was known are counted once, not again when the keys move."""
    reconcile = abate.controller(name="orders")(lambda key: None)
    for key in ("a", "a", "b"):
        reconcile.add(key)
    reconcile.add("c", after=60.0)
    before = add_counts(reconcile)
    assert before == (4, 1)
    reconcile.run(store, drain=True)
    assert add_counts(reconcile) == before
    reconcile.add("c")
    assert add_counts(reconcile) == (5, 2)
    reconcile.run(store, drain=True)
    assert add_counts(reconcile) == (5, 2)
