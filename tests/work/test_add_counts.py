"""What a controller counts of its adds where a store has its keys."""

import asyncio

import pytest

import abate
from abate.testing import VirtualClock


@pytest.fixture
def store():
    with abate.open_store("memory:") as store:
        yield store


def live(controller, seconds):
    """Run a controller for so many virtual seconds."""

    async def main():
        running = asyncio.create_task(controller.arun())
        await abate.clock.current().asleep(seconds)
        controller.stop()
        await running

    asyncio.run(main())


def counted(controller):
    return controller.adds, controller.coalesced


def test_what_sources_bring_is_counted(store):
    """As what is added by hand; what found no room is counted when it has."""
    with VirtualClock() as clock:

        @abate.controller(store=store, capacity=2, workers=1)
        async def reconcile(key):
            await clock.asleep(1.0)

        @reconcile.source
        async def watch():
            for key in "aabbccdd":
                yield key
            await asyncio.Event().wait()

        live(reconcile, 60.0)
        adds, coalesced = counted(reconcile)
        assert adds == 8
        assert 1 <= coalesced <= 4


def test_an_add_that_was_refused_is_not_counted(store):
    """Neither where there was no room, nor where the key was none."""
    reconcile = abate.controller(store=store, capacity=1)(print)
    reconcile.add("a")
    with pytest.raises(abate.QueueFull):
        reconcile.add("b")
    with pytest.raises(TypeError):
        reconcile.add(42)
    assert counted(reconcile) == (1, 0)


def test_a_resync_that_changes_nothing_is_not_taken_for_coalesced(store):
    """The key may be parked as well as waiting, and the store does not say which."""
    with VirtualClock():

        @abate.controller(store=store, resync=10.0, keys=lambda: ["parked"])
        def reconcile(key):
            raise abate.PermanentFailure("no")

        live(reconcile, 50.0)
        adds, coalesced = counted(reconcile)
        assert adds >= 4
        assert coalesced == 0


def test_counts_do_not_go_back_when_keys_move_to_a_store(store):
    """What was added before the store was known has been counted, and is not counted again."""
    reconcile = abate.controller(name="orders")(lambda key: None)
    for key in ("a", "a", "b"):
        reconcile.add(key)
    reconcile.add("c", after=60.0)
    before = counted(reconcile)
    assert before == (4, 1)
    reconcile._source(store)
    assert counted(reconcile) == before
    reconcile.add("a")
    assert counted(reconcile) == (5, 2)
    reconcile._source(store)  # as a second run by the same store does
    assert counted(reconcile) == (5, 2)
