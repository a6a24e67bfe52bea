"""Controllers and consumers in virtual time, as tests run them."""

import asyncio

import pytest

import abate
from abate.testing import Script, VirtualClock, after, arun_for, run_for

STEADY = abate.Backoff(1.0, 60.0, jitter="none")


@pytest.mark.parametrize("store", [None, "memory:"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "plain"])
def test_backoffs_pass_in_virtual_time(store, asynchronous):
    """A key that fails twice is done after both delays, and a failing one is parked; no real time passes."""
    seen = []

    def plain(key):
        seen.append((key, round(abate.clock.current().now())))
        if key == "down" or len(seen) < 4:
            raise ConnectionError("no answer")

    async def task(key):
        plain(key)

    reconcile = abate.controller(store=store, workers=1, backoff=STEADY, max_requeues=3)(
        task if asynchronous else plain
    )
    with VirtualClock() as clock:
        reconcile.add("up")
        reconcile.add("down")
        assert run_for(reconcile, 100.0) == {"retry": 5, "done": 1, "buried": 1}
        assert clock.now() >= 100.0
        assert [parked.key for parked in reconcile.parked()] == ["down"]
        assert reconcile.waiting() == 0
    assert seen == [("up", 0), ("down", 0), ("up", 1), ("down", 1), ("up", 3), ("down", 3), ("down", 7)]


def test_sources_pollers_and_the_resync_run_as_well():
    """A drain leaves them out."""
    seen = []
    reconcile = abate.controller(resync=100.0, keys=lambda: ["resynced"])(seen.append)
    reconcile.poll(every=50.0)(lambda: ["polled"])

    @reconcile.source
    async def watch():
        while True:
            yield "watched"
            await abate.clock.current().asleep(25.0)

    with VirtualClock():
        run_for(reconcile, 199.0)
    assert {key: seen.count(key) for key in seen} == {"watched": 8, "polled": 4, "resynced": 2}


def test_a_consumer_takes_the_store_to_run_on():
    """As for `run(source)`: each test has a store of its own."""
    handle = abate.consumer(name="orders", backoff=STEADY, workers=1)(Script(ConnectionError(), after(5.0, None)))
    with VirtualClock(), abate.open_store("memory:") as store:
        store.queue("orders").send("a")
        assert run_for(handle, 60.0, store) == {"retry": 1, "done": 1}
        assert store.queue("orders").depth().waiting == 0


def test_it_ends_at_its_instant():
    """A key that comes back forever does not keep it."""
    reconcile = abate.controller()(lambda key: abate.Again(after=10.0))
    with VirtualClock() as clock:
        reconcile.add("a")
        assert run_for(reconcile, 95.0) == {"again": 10}
        assert clock.now() == 95.0
        assert reconcile.delayed() == {"a": 5.0}
        assert run_for(reconcile, 0.0) == {}


def test_an_async_test_awaits_it():
    """The other form says so."""
    reconcile = abate.controller(backoff=STEADY)(Script(ConnectionError(), None))

    async def test():
        reconcile.add("a")
        with pytest.raises(RuntimeError, match=r"await abate\.testing\.arun_for\(service, seconds\)"):
            run_for(reconcile, 10.0)
        return await arun_for(reconcile, 10.0)

    with VirtualClock():
        assert asyncio.run(test()) == {"retry": 1, "done": 1}


def test_a_cancelled_run_ends_its_service():
    """A time limit of the test leaves nothing running in an event loop that other tests share."""
    reconcile = abate.controller()(lambda key: abate.Again(after=10.0))

    async def test():
        reconcile.add("a")
        running = asyncio.ensure_future(arun_for(reconcile, 1e9))
        while not reconcile.health().live:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return reconcile.health().live, len(asyncio.all_tasks())

    with VirtualClock():
        assert asyncio.run(test()) == (False, 1)


def test_an_error_of_the_service_is_raised():
    """Nothing is swallowed on the way, and nothing waits for the end of the time."""
    handle = abate.consumer()(lambda message: None)
    with VirtualClock() as clock:
        with pytest.raises(ValueError, match="has no source"):
            run_for(handle, 1000.0)
        assert clock.now() == 0.0


@pytest.mark.parametrize("run", [run_for, lambda *args: asyncio.run(arun_for(*args))], ids=["run_for", "arun_for"])
def test_real_time_is_refused(run):
    """An hour would be an hour."""
    with pytest.raises(RuntimeError, match=r"run_for needs virtual time: `with abate\.testing\.VirtualClock\(\):`, or"):
        run(abate.controller()(lambda key: None), 3600.0)


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "10", None])
def test_a_bad_time_is_refused(seconds):
    """The seconds are a number from zero on."""
    with VirtualClock(), pytest.raises((TypeError, ValueError), match="seconds must be a number at least 0"):
        run_for(abate.controller()(lambda key: None), seconds)
