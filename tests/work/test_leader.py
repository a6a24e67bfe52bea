"""One of many resyncs: who leads, and what happens when the leader is gone."""

import asyncio
import random
import threading
import time

import pytest

import abate
from abate.testing import VirtualClock
from abate.work.leader import EXTENDS_PER_LEASE, LEASE, run_while_leader


@pytest.fixture
def store():
    with abate.open_store("memory:") as store:
        yield store


def replicas(store, many, listed, seen):
    """Processes of one controller, as objects."""

    def replica(number):
        def keys():
            listed.append(number)
            return [f"key-{key}" for key in range(5)]

        async def reconcile(key):
            seen.append((number, key))

        return abate.controller(name="orders", store=store, resync=10.0, keys=keys, leader=True)(reconcile)

    return [replica(number) for number in range(many)]


def test_only_the_leader_resyncs_and_all_work(store):
    """One process lists the keys, and every process works on them."""
    with VirtualClock() as clock:
        listed, seen = [], []
        controllers = replicas(store, 3, listed, seen)

        async def main():
            running = [asyncio.create_task(controller.arun()) for controller in controllers]
            await clock.asleep(60.0)
            for controller in controllers:
                controller.stop()
            await asyncio.gather(*running)

        asyncio.run(main())
        assert len(set(listed)) == 1
        assert len(listed) >= 5
        assert {key for _, key in seen} == {f"key-{key}" for key in range(5)}


def test_another_leads_when_the_leader_ends(store):
    """At once where it ends in order: its lease is given back."""
    with VirtualClock() as clock:
        listed, seen = [], []
        controllers = replicas(store, 2, listed, seen)

        async def main():
            running = [asyncio.create_task(controller.arun()) for controller in controllers]
            await clock.asleep(30.0)
            leader = listed[-1]
            controllers[leader].stop()
            await running[leader]
            await clock.asleep(2 * LEASE)
            controllers[1 - leader].stop()
            await running[1 - leader]
            return leader

        leader = asyncio.run(main())
        assert listed[0] == leader
        assert listed[-1] == 1 - leader


def test_a_process_leads_again_after_the_store_was_flushed(store):
    """The key of the leader is there again when it is asked for."""
    with VirtualClock() as clock:
        listed, seen = [], []
        (controller,) = replicas(store, 1, listed, seen)

        async def main():
            running = asyncio.create_task(controller.arun())
            await clock.asleep(20.0)
            store.file.read("DELETE FROM item RETURNING id")
            await clock.asleep(2 * LEASE)
            listed.clear()
            await clock.asleep(60.0)
            controller.stop()
            await running

        asyncio.run(main())
        assert listed


def test_a_leader_that_can_not_extend_in_time_stops_before_its_lease_is_over(store):
    """By its own clock, from when it asked: no two lead at once."""
    with VirtualClock() as clock:
        queue = store.queue("orders.leader", lease=LEASE)
        led_until = []

        async def work():
            try:
                await clock.asleep(1000.0)
            finally:
                led_until.append(clock.now())

        async def run(function, *args):
            if function.__name__ == "extend":
                await clock.asleep(100.0)
            return function(*args)

        async def main():
            leading = asyncio.create_task(run_while_leader("orders", queue, run, work))
            await clock.asleep(60.0)
            leading.cancel()
            await asyncio.wait({leading})

        asyncio.run(main())
        assert led_until[0] <= LEASE


def test_a_lister_that_takes_long_does_not_cost_the_lead(tmp_path, monkeypatch):
    """The leader's lease is extended while the keys are listed, in real threads."""
    monkeypatch.setattr("abate.work.controller.LEASE", 0.3)
    listed = threading.Event()

    def keys():
        time.sleep(1.0)
        listed.set()
        return ["a"]

    url = f"sqlite:///{tmp_path}/work.db"
    controller = abate.controller(name="orders", store=url, resync=3600.0, keys=keys, leader=True)(lambda key: None)

    async def main():
        running = asyncio.create_task(controller.arun())
        queue = controller.store.queue("orders.leader", lease=0.3)
        while not queue.depth().leased:
            await asyncio.sleep(0.005)
        taken = []
        while not listed.is_set():
            taken += queue.receive()
            await asyncio.sleep(0.02)
        controller.stop()
        await running
        return taken

    assert asyncio.run(main()) == []


def test_another_leads_when_the_lease_runs_out(store):
    """A leader that is gone without a word is one as long as its lease lasts, and no longer."""
    with VirtualClock() as clock:
        queue = store.queue("orders.leader", lease=LEASE)
        queue.add("leader")
        assert queue.receive()  # by a process that is killed now
        listed, seen = [], []
        (controller,) = replicas(store, 1, listed, seen)

        async def main():
            running = asyncio.create_task(controller.arun())
            await clock.asleep(LEASE * 0.9)
            assert listed == []
            await clock.asleep(LEASE)
            controller.stop()
            await running

        asyncio.run(main())
        assert listed


def test_a_dead_leader_is_succeeded_between_10_and_22_seconds_after(store):
    """However long before its death it had extended its lease, and however the others' looks fall."""
    with VirtualClock() as clock:
        queue = store.queue("orders.leader", lease=LEASE)
        queue.add("leader")

        async def succeeded(extended):
            """Seconds from a death to the next leader; the lease had begun `extended` seconds before."""
            assert queue.receive()
            await clock.asleep(extended)
            died = clock.now()
            listed = []
            (controller,) = replicas(store, 1, listed, [])
            running = asyncio.create_task(controller.arun())
            await clock.asleep(random.random() * 5.0)
            while not listed:
                await clock.asleep(0.05)
            took = clock.now() - died
            controller.stop()
            await running
            return took

        async def main():
            return [await succeeded(LEASE / EXTENDS_PER_LEASE * part / 10) for part in range(11) for _ in range(3)]

        took = asyncio.run(main())
    assert min(took) >= 10.0
    assert max(took) <= 21.5


def test_a_leader_that_lost_its_lease_stops(store):
    """Two never resync at once: a process that has lost its lease stops."""
    with VirtualClock() as clock:
        listed, seen = [], []
        (controller,) = replicas(store, 1, listed, seen)

        async def main():
            running = asyncio.create_task(controller.arun())
            await clock.asleep(1.0)
            assert listed == [0]
            # as if this process had been frozen past its lease, and another one leads by now
            store.file.read("UPDATE item SET due = 0.0 WHERE queue = 'orders.leader' RETURNING id")
            assert store.queue("orders.leader", lease=1000.0).receive()
            await clock.asleep(LEASE)
            before = len(listed)
            await clock.asleep(100.0)
            assert len(listed) == before
            controller.stop()
            await running

        asyncio.run(main())


def test_a_leader_needs_a_store_and_a_resync(store):
    """A clear error, at construction or when it is known that there is no store."""
    with pytest.raises(ValueError, match="leader= are for a resync"):
        abate.controller(leader=True)(lambda key: None)
    controller = abate.controller(leader=True, resync=5.0)(lambda key: None)
    with pytest.raises(ValueError, match="has no store: leader=True needs one"):
        asyncio.run(controller.arun())
