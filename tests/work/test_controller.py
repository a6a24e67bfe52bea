"""The controller: keys that come back, are parked, resynced, and brought by sources."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Again, Backoff, Budget, PermanentFailure, QueueFull, consistent_jitter, events
from abate.testing import VirtualClock, run_for

STEADY = Backoff(1.0, 60.0, jitter="none")


def live(controller, seconds, body=None):
    """Run a controller for virtual seconds; return the tally."""

    async def main():
        running = asyncio.create_task(controller.arun())
        clock = abate.clock.current()
        if body is not None:
            await body()
        await clock.asleep(seconds)
        controller.stop()
        return await running

    return asyncio.run(main())


def looks(seen, clock):
    """A reconcile function that writes down when it saw which key."""

    async def reconcile(key):
        seen.append((clock.now(), key))

    return reconcile


def test_it_is_still_the_function():
    """A controller can be called, and has the function's name and words."""

    @abate.controller()
    def reconcile(key):
        """Bring a key into step."""
        return Again(float(key))

    assert reconcile("7") == Again(7.0)
    assert (reconcile.name, reconcile.__name__, reconcile.__doc__) == (
        "reconcile",
        "reconcile",
        "Bring a key into step.",
    )


@pytest.mark.parametrize("asynchronous", [True, False])
def test_keys_are_worked_on_once_each(asynchronous):
    """Duplicates coalesce."""
    seen = []

    def plain(key):
        seen.append(key)

    async def task(key):
        seen.append(key)

    controller = abate.controller(workers=3)(task if asynchronous else plain)
    for key in [*range(10), *range(10)]:
        controller.add(key)
    assert controller.waiting() == 10
    assert controller.run(drain=True) == {"done": 10}
    assert sorted(seen) == list(range(10))
    assert controller.waiting() == 0


def test_never_more_at_once_than_workers_and_never_one_key_twice():
    """Bounded workers; a key added while it is worked on comes back once, afterwards."""
    with VirtualClock() as clock:
        busy, peak = [], 0

        @abate.controller(workers=3)
        async def reconcile(key):
            nonlocal peak
            assert key not in busy
            busy.append(key)
            peak = max(peak, len(busy))
            reconcile_twice = looked.setdefault(key, 0) == 0
            looked[key] += 1
            if reconcile_twice:
                reconcile.add(key)
                reconcile.add(key)
            await clock.asleep(1.0)
            busy.remove(key)

        looked = {}
        for key in range(9):
            reconcile.add(key)
        assert live(reconcile, 60.0) == {"done": 18}
        assert peak == 3
        assert looked == dict.fromkeys(range(9), 2)


def test_a_key_comes_back_with_its_backoff_until_it_succeeds():
    """Failures of a key are counted from its last success."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(backoff=STEADY)
        async def reconcile(key):
            seen.append(clock.now())
            if len(seen) in (1, 2, 3, 5):
                raise ConnectionError

        async def body():
            reconcile.add("a")
            await clock.asleep(20.0)
            reconcile.add("a")

        assert live(reconcile, 20.0, body) == {"retry": 4, "done": 2}
        assert seen == [0.0, 1.0, 3.0, 7.0, 20.0, 21.0]


def test_again_brings_a_key_back_without_a_failure():
    """Again is no failure, and costs no budget."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(backoff=STEADY, budget=Budget(ratio=0.0, reserve=0.0))
        async def reconcile(key):
            seen.append(clock.now())
            return Again(5.0) if len(seen) < 4 else None

        reconcile.add("a")
        assert live(reconcile, 60.0) == {"again": 3, "done": 1}
        assert seen == [0.0, 5.0, 10.0, 15.0]


def test_without_a_budget_left_a_key_comes_back_at_the_slow_rate():
    """The first failures have their backoff, the others come later, apart from each other."""
    with VirtualClock() as clock:
        seen = {}

        @abate.controller(workers=10, backoff=STEADY, budget=Budget(ratio=0.0, reserve=0.3, window=10.0), slow=100.0)
        async def reconcile(key):
            seen.setdefault(key, []).append(clock.now())
            if len(seen[key]) == 1:
                raise ConnectionError

        for key in range(10):
            reconcile.add(key)
        assert live(reconcile, 200.0) == {"retry": 3, "slow": 7, "done": 10}
        second = sorted(times[1] for times in seen.values())
        assert second[:3] == [1.0] * 3
        assert 50.0 <= second[3] <= second[-1] <= 150.0
        assert len(set(second[3:])) == 7


@settings(max_examples=30)
@given(st.integers(0, 5))
def test_a_key_that_fails_too_often_is_parked(most):
    """With max_requeues, one failure more than that parks the key."""
    with VirtualClock():
        tries = []

        @abate.controller(backoff=STEADY, max_requeues=most)
        async def reconcile(key):
            tries.append(key)
            raise ConnectionError("gone")

        reconcile.add("a")
        live(reconcile, 1000.0)
        assert len(tries) == most + 1
        [parked] = reconcile.parked()
        assert (parked.key, parked.kind) == ("a", "receives")
        assert parked.reason == f"ConnectionError: gone (received {most + 1} times)"


def test_a_permanent_failure_parks_a_key_until_it_is_added():
    """Neither backoff nor resync brings it back."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(resync=10.0)
        async def reconcile(key):
            seen.append(clock.now())
            if len(seen) == 1:
                raise PermanentFailure("no such order")

        async def body():
            reconcile.add("a")
            await clock.asleep(100.0)
            assert len(seen) == 1
            assert [(parked.key, parked.kind, parked.reason) for parked in reconcile.parked()] == [
                ("a", "permanent", "no such order")
            ]
            reconcile.add("a")
            assert reconcile.parked() == []

        tally = live(reconcile, 5.0, body)
        assert tally["buried"] == 1
        assert seen[:2] == [0.0, 100.0]


def test_what_on_does_not_name_is_parked():
    """With `on`, another error is fatal."""
    with VirtualClock():

        @abate.controller(on=ConnectionError)
        def reconcile(key):
            return {}[key]

        reconcile.add("a")
        assert reconcile.run(drain=True) == {"buried": 1}
        assert reconcile.parked()[0].reason == "KeyError: 'a'"


def test_the_parked_are_bounded(monkeypatch):
    """The oldest is forgotten for one more."""
    monkeypatch.setattr("abate.work.memory_source.MAX_PARKED", 3)

    @abate.controller(workers=1)
    def reconcile(key):
        raise PermanentFailure("no")

    for key in range(5):
        reconcile.add(key)
    reconcile.run(drain=True)
    assert [parked.key for parked in reconcile.parked()] == [2, 3, 4]


def test_higher_priorities_go_first():
    """And a delayed key comes in its time."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller(workers=1)(looks(seen, clock))
        reconcile.add("low")
        reconcile.add("high", priority=5)
        reconcile.add("later", after=30.0)
        live(reconcile, 60.0)
        assert seen == [(0.0, "high"), (0.0, "low"), (30.0, "later")]


def test_a_key_that_comes_back_keeps_its_priority():
    """Until it is done."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(workers=1, backoff=STEADY)
        async def reconcile(key):
            seen.append(key)
            await clock.asleep(5.0)
            if seen == ["first"]:
                raise ConnectionError

        reconcile.add("first", priority=3)
        for key in ("a", "b", "c"):
            reconcile.add(key)
        live(reconcile, 60.0)
        assert seen == ["first", "a", "first", "b", "c"]


def test_a_full_controller_says_so():
    """QueueFull for who adds, beyond the capacity."""
    reconcile = abate.controller(capacity=2)(lambda key: None)
    reconcile.add("a")
    reconcile.add("b")
    reconcile.add("a")
    with pytest.raises(QueueFull):
        reconcile.add("c")


def test_discard_takes_back_what_was_planned():
    """A key that is gone is not looked at any more."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller(resync=10.0)(looks(seen, clock))
        reconcile.add("gone", after=5.0)
        reconcile.discard("gone")
        live(reconcile, 50.0)
        assert seen == []


@pytest.mark.parametrize("store", [None, "memory:"])
def test_all_parked_keys_are_listed_and_can_be_discarded(store):
    """However many they are; one that is discarded is not parked any more."""

    @abate.controller(workers=4, store=store)
    def reconcile(key):
        raise PermanentFailure("no")

    for number in range(250):
        reconcile.add(f"key-{number}")
    reconcile.run(drain=True)
    assert len(reconcile.parked()) == reconcile.depth().dead == 250
    reconcile.discard("key-7")
    assert len(reconcile.parked()) == reconcile.depth().dead == 249
    assert "key-7" not in {parked.key for parked in reconcile.parked()}


@pytest.mark.parametrize("store", [None, "memory:"])
def test_a_key_that_is_ready_is_looked_at_though_it_is_discarded(store):
    """Its function finds that it is gone."""
    seen = []
    reconcile = abate.controller(store=store)(seen.append)
    reconcile.add("a")
    reconcile.discard("a")
    reconcile.run(drain=True)
    assert seen == ["a"]


def test_what_is_left_in_memory_for_later_is_said(caplog):
    """A process that ends loses it; a store would not."""
    with VirtualClock():
        reconcile = abate.controller()(lambda key: None)
        reconcile.add("a", after=60.0)
        live(reconcile, 10.0)
    assert "<lambda>: ended with 1 delayed keys, which stay in memory" in caplog.text


def fail(key):
    raise ConnectionError("no answer")


def test_a_drain_says_what_it_leaves_in_memory(caplog):
    """A key that waits for its backoff is lost if the process ends now; one that is parked is not handled again."""

    @abate.controller(backoff=STEADY)
    def reconcile(key):
        if key == "b":
            raise PermanentFailure("no")
        fail(key)

    with VirtualClock():
        for key in "abc":
            reconcile.add(key)
        reconcile.run(drain=True)
        assert "WARNING" in caplog.text
        assert "reconcile: drained, and leaves in memory, until the next run: 2 delayed, 1 buried" in caplog.text
        assert reconcile.delayed() == {"a": 1.0, "c": 1.0}
        assert [parked.key for parked in reconcile.parked()] == ["b"]


def test_parked_keys_alone_are_no_warning(caplog):
    """Each was reported when it was parked, and the next run will not handle them."""
    caplog.set_level("INFO", "abate.work")
    reconcile = abate.controller(name="orders", max_requeues=0)(fail)
    reconcile.add("a")
    reconcile.run(drain=True)
    (line,) = [record for record in caplog.records if "drained" in record.message]
    assert (line.levelname, line.message) == ("INFO", "orders: drained, and leaves in its queue: 1 buried")


def test_a_drain_that_leaves_nothing_says_nothing(caplog):
    """The usual case."""
    caplog.set_level("INFO", "abate.work")
    reconcile = abate.controller()(lambda key: None)
    reconcile.add("a")
    reconcile.run(drain=True)
    assert "drained" not in caplog.text


SAFE = "INFO", "fail: drained, and leaves in its queue: 1 delayed"
LOST = "WARNING", "fail: drained, and leaves in memory, until the next run: 1 delayed"


@pytest.mark.parametrize(("url", "said"), [("sqlite:///work.db", SAFE), ("memory:", LOST)])
def test_a_drain_says_what_it_leaves_in_a_store(url, said, caplog, tmp_path, monkeypatch):
    """In a file it is safe, so this is information. A store does not list delayed keys."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "abate.work")
    with VirtualClock():
        reconcile = abate.controller(store=url)(fail)
        reconcile.add("a")
        reconcile.run(drain=True)
        (line,) = [record for record in caplog.records if "drained" in record.message]
        assert (line.levelname, line.message) == said
        with pytest.raises(TypeError, match=r"fail has a store, which does not list delayed keys: depth\(\)\.delayed"):
            reconcile.delayed()


def test_a_drain_does_not_wait_for_a_store_that_does_not_count(caplog, monkeypatch):
    """Its work is done; how much is left is a courtesy."""
    monkeypatch.setattr("abate.work.service.DEPTH_TIMEOUT", 0.01)
    caplog.set_level("INFO", "abate.work")
    store, answer = abate.open_store("memory:"), threading.Event()
    queue = store.queue("orders")
    queue.depth = lambda: answer.wait(60.0) and None
    handle = abate.consumer(source=queue)(lambda message: None)
    queue.send("a")
    assert handle.run(drain=True) == {"done": 1}
    assert "orders" not in caplog.text
    assert "drained; could not count what it leaves: AttemptTimeout" in caplog.text
    answer.set()


# -- reset


def leave_traces(controller):
    """Let a controller fail, park, remember and delay keys, and count all that."""
    for key in ("failing", "parked", "later"):
        controller.add(key, after=100.0 if key == "later" else 0.0)
    return controller.run(drain=True)


@pytest.mark.parametrize("store", [None, "memory:"])
def test_after_a_reset_it_is_as_new(store):
    """A second test sees nothing of the first one: the same calls have the same effects."""
    seen = []

    @abate.controller(store=store, backoff=STEADY, max_requeues=1, resync=1000.0)
    def reconcile(key):
        seen.append(key)
        if key == "failing":
            raise ConnectionError
        raise PermanentFailure("no")

    runs = []
    for _ in range(3):
        with VirtualClock() as clock:
            clock.advance(1000.0 - 300.0 * len(runs))  # a queue that was kept would hold instants of another time
            tallies = [leave_traces(reconcile)]
            depths = [reconcile.depth()]
            clock.advance(1.0)
            tallies.append(reconcile.run(drain=True))
            runs.append((tallies, depths, [parked.key for parked in reconcile.parked()], reconcile.adds, seen.copy()))
            reconcile.reset()
            seen.clear()
            assert (reconcile.waiting(), reconcile.parked(), reconcile.adds, reconcile.coalesced) == (0, [], 0, 0)
            assert reconcile.run(drain=True) == {}
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] == [{"retry": 1, "buried": 1}, {"buried": 1}]


def test_a_reset_forgets_what_a_resync_has_remembered():
    """Without keys=, a resync covers the keys of this test only."""
    seen = []
    reconcile = abate.controller(resync=100.0)(seen.append)
    with VirtualClock():
        reconcile.add("of the first test")
        run_for(reconcile, 10.0)
        reconcile.reset()
        seen.clear()
        reconcile.add("of the second test")
        run_for(reconcile, 1000.0)
    assert set(seen) == {"of the second test"}


def test_a_reset_forgets_the_backoff_of_a_key():
    """An add in the next test needs no budget, also if a store still counts the receives of the key."""
    reconcile = abate.controller(backoff=[50.0], budget=Budget.empty(), store=abate.open_store("memory:"))(fail)
    with VirtualClock():
        for _ in range(2):
            reconcile.add("a")
            assert reconcile.run(drain=True) == {"slow": 1}
            reconcile.add("a")
            assert reconcile.run(drain=True) == {"held": 1}
            reconcile.reset()


def test_a_reset_fills_the_budget_again_unless_it_is_shared():
    """What the keys of one test have spent is no reason for the next test's keys to come back slowly."""

    def drain_two(reconcile):
        reconcile.reset()
        reconcile.add("a")
        reconcile.add("b")
        return reconcile.run(drain=True)

    made = abate.controller(backoff=[50.0])
    failing, other = made(fail), made(fail)
    assert drain_two(failing) == {"retry": 2}
    while failing._budget.try_withdraw():
        pass
    assert drain_two(failing) == {"retry": 2}
    assert drain_two(other) == {"retry": 2}
    shared = Budget(0.0, 0.1)
    given = abate.controller(backoff=[50.0], budget=shared)(fail)
    assert [drain_two(given), drain_two(given)] == [{"retry": 1, "slow": 1}, {"slow": 2}]


def test_a_reset_keeps_sources_and_what_it_was_told():
    """Only what has happened is forgotten."""
    seen = []
    reconcile = abate.controller(capacity=1)(seen.append)
    reconcile.poll(every=10.0)(lambda: ["polled"])
    reconcile.reset()
    with VirtualClock():
        run_for(reconcile, 25.0)
        assert seen == ["polled"] * 3
        reconcile.add("a")
        with pytest.raises(QueueFull):
            reconcile.add("b")


def test_a_reset_returns_to_the_store_it_was_made_with():
    """`run(store)` of one test does not decide where the next one keeps its keys. The store itself is left alone."""
    given, store = abate.open_store("memory:"), abate.open_store("memory:")
    reconcile = abate.controller(store=given)(fail)
    reconcile.add("a")
    reconcile.run(store, drain=True)
    reconcile.reset()
    assert reconcile.store is given
    assert reconcile.waiting() == 1
    assert given.queue("fail").depth().ready == 1
    assert store.queue("fail").depth() is not None


def test_a_reset_closes_only_a_store_that_it_has_opened():
    """A store that was given as a URL of memory is another one afterwards."""
    reconcile = abate.controller(store="memory:")(fail)
    opened = [reconcile.store]
    reconcile.run("memory:", drain=True)
    opened.append(reconcile.store)
    reconcile.reset()
    assert reconcile.store not in opened
    with pytest.raises(abate.StoreError, match="closed"):
        opened[1].queue("fail").add("a")
    with abate.open_store("memory:") as given:
        reconcile.run(given, drain=True)
        reconcile.reset()
        assert given.queue("fail").depth().ready == 0  # it is still open


@pytest.mark.parametrize("make", [abate.controller, lambda: abate.consumer(source="memory:")])
def test_a_reset_during_a_run_is_refused(make):
    """It would take the queue away under the workers."""

    @make()
    async def handle(key): ...

    async def main():
        running = asyncio.ensure_future(handle.arun())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"handle is running: stop it before reset\(\)"):
            handle.reset()
        handle.stop()
        await running
        handle.reset()

    asyncio.run(main())


# -- resync


@pytest.mark.parametrize("listed", ["plain", "async", "generator", "remembered"])
def test_a_resync_looks_at_every_key_once_per_period_at_its_offset(listed):
    """Each key at its consistent offset on the wall clock, in every process."""
    keys = [f"key-{n}" for n in range(20)]

    def plain():
        return keys

    async def acoroutine():
        return keys

    async def generator():
        for key in keys:
            yield key

    lister = {"plain": plain, "async": acoroutine, "generator": generator, "remembered": None}[listed]
    with VirtualClock(start=1000.0) as clock:
        seen = []
        reconcile = abate.controller(resync=100.0, keys=lister)(looks(seen, clock))

        async def body():
            if lister is None:
                for key in keys:
                    reconcile.add(key)
                await clock.asleep(0.0)
                seen.clear()

        live(reconcile, 250.0, body)
        expected = sorted(
            (1000.0 + 100.0 * period + consistent_jitter(key, 100.0), key) for key in keys for period in range(3)
        )
        assert [key for _, key in seen] == [key for due, key in expected if due <= 1250.0]
        assert all(at == pytest.approx(due) for (at, _), (due, _) in zip(seen, expected, strict=False))


def test_a_resync_begun_in_the_middle_of_a_period_leaves_out_what_is_over():
    """Every key has its turn within one period of the start, none two."""
    with VirtualClock(start=1050.0) as clock:
        seen = []
        keys = [f"key-{n}" for n in range(50)]
        reconcile = abate.controller(resync=100.0, keys=lambda: keys)(looks(seen, clock))
        live(reconcile, 99.9)
        assert len(seen) >= 49
        assert len({key for _, key in seen}) == len(seen)


def test_keys_are_listed_only_for_a_resync():
    """A lister without a resync is a mistake."""
    with pytest.raises(ValueError, match="keys= and leader= are for a resync"):
        abate.controller(keys=list)(lambda key: None)


def test_a_resync_waits_for_room():
    """More keys than the capacity are no error for those who list them."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(workers=1, capacity=2, resync=1.0, keys=lambda: range(50))
        async def reconcile(key):
            await clock.asleep(0.1)
            seen.append(key)

        live(reconcile, 30.0)
        assert set(seen) == set(range(50))


def test_remembered_keys_are_bounded(monkeypatch):
    """The first are forgotten for more."""
    monkeypatch.setattr("abate.work.resync_keys.MAX_KNOWN", 3)
    reconcile = abate.controller(resync=10.0)(lambda key: None)
    for key in range(5):
        reconcile.add(key)
    assert reconcile._known.list() == [2, 3, 4]


# -- sources


def test_a_source_brings_keys():
    """An async generator function, or an async iterable."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller()(looks(seen, clock))

        @reconcile.source
        async def watch():
            for key in "abc":
                await clock.asleep(1.0)
                yield key
            await asyncio.Event().wait()

        async def more():
            yield "d"

        reconcile.source(more())
        live(reconcile, 60.0)
        assert sorted(seen) == [(0.0, "d"), (1.0, "a"), (2.0, "b"), (3.0, "c")]


def test_one_event_may_concern_several_keys():
    """A mapping from events to keys: of a part to its owner, to several, or to none."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller(workers=1)(looks(seen, clock))

        @reconcile.source(keys=lambda event: event["owners"])
        async def watch():
            yield {"owners": ["web", "db"]}
            yield {"owners": None}
            yield {"owners": "cache"}
            yield {"owners": (owner for owner in ("x", "y"))}
            await asyncio.Event().wait()

        live(reconcile, 10.0)
        assert [key for _, key in seen] == ["web", "db", "cache", "x", "y"]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_poller_is_asked_at_the_start_and_then_every_so_often(asynchronous):
    """What it returns is added."""
    with VirtualClock() as clock:
        seen, asked = [], []
        reconcile = abate.controller()(looks(seen, clock))

        def plain():
            asked.append(clock.now())
            return [f"key-{len(asked)}"]

        async def task():
            return plain()

        reconcile.poll(every=30.0)(task if asynchronous else plain)
        live(reconcile, 100.0)
        assert asked == [0.0, 30.0, 60.0, 90.0]
        assert [key for _, key in seen] == ["key-1", "key-2", "key-3", "key-4"]


def test_a_source_that_raises_is_started_again_and_reported(caplog):
    """After a backoff that begins anew once it has brought something."""
    with VirtualClock() as clock:
        seen, started, told = [], [], []
        reconcile = abate.controller()(looks(seen, clock))

        @reconcile.source
        async def watch():
            started.append(clock.now())
            if len(started) == 3:
                yield "a"
            if len(started) < 5:
                raise ConnectionError("the watch broke")
            await asyncio.Event().wait()

        sink = abate.observe.install(told.append)
        try:
            live(reconcile, 60.0)
        finally:
            abate.observe.remove(sink)
        gaps = [after - before for before, after in pairwise(started)]
        assert len(gaps) == 4
        for gap, ceiling in zip(gaps, (1.0, 2.0, 1.0, 2.0), strict=True):
            assert ceiling / 2 <= gap <= ceiling
        assert [(event.source, event.name) for event in told if isinstance(event, events.SourceFailed)] == [
            ("watch", "reconcile")
        ] * 4
        assert "watch failed, started again" in caplog.text


async def no_generator():
    return ["a"]


@pytest.mark.parametrize("odd", [42, "keys", ["a"], no_generator])
def test_a_source_that_is_none_is_refused(odd):
    """A clear error when it is declared."""
    reconcile = abate.controller()(lambda key: None)
    with pytest.raises(TypeError, match="a source must be an async generator function or an async iterable"):
        reconcile.source(odd)
    if not callable(odd):
        with pytest.raises(TypeError, match="a poller must be a function that returns keys"):
            reconcile.poll(5.0)(odd)


def test_a_poller_may_be_called_resync():
    """A name is for logs: what it brings is added as by any other, parked keys too."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller()
        async def reconcile(key):
            seen.append(clock.now())
            raise PermanentFailure("no")

        @reconcile.poll(every=30.0)
        def resync():
            return ["a"]

        live(reconcile, 70.0)
        assert seen == [0.0, 30.0, 60.0]


def test_what_is_no_key_is_left_out_and_said(caplog):
    """One bad key neither hides those behind it nor makes the poller ask again."""
    with VirtualClock() as clock:
        seen, asked = [], []
        reconcile = abate.controller()(looks(seen, clock))

        @reconcile.poll(every=3600.0)
        def listed():
            asked.append(clock.now())
            return ["a", ["no key"], "b"]

        live(reconcile, 100.0)
        assert asked == [0.0]
        assert sorted(key for _, key in seen) == ["a", "b"]
        assert "brought what is no key: a key must be hashable, not ['no key']" in caplog.text


def test_a_source_that_brings_nothing_to_iterate_says_so(caplog):
    """A function that is no generator is found out when it is called."""
    with VirtualClock():
        reconcile = abate.controller()(lambda key: None)
        reconcile.source(lambda: ["a"])
        live(reconcile, 5.0)
        assert "a source must be an async generator function or an async iterable" in caplog.text


def test_a_generator_that_fails_is_not_said_to_be_started_again(caplog):
    """Its function could be; itself has ended."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller()(looks(seen, clock))

        async def broken():
            yield "a"
            raise ConnectionError

        reconcile.source(broken())
        live(reconcile, 100.0)
        assert [key for _, key in seen] == ["a"]
        assert "can't be started again: give its function instead" in caplog.text
        assert "started again in" not in caplog.text


def test_a_poller_that_hangs_delays_no_worker():
    """Feeds have threads of their own."""
    hanging = threading.Event()
    seen = []
    reconcile = abate.controller(workers=1)(lambda key: seen.append(key))
    for _ in range(5):
        reconcile.poll(every=60.0)(lambda: hanging.wait(30.0) and ())

    async def main():
        running = asyncio.create_task(reconcile.arun())
        await asyncio.sleep(0.05)
        for key in range(10):
            reconcile.add(key)
        while len(seen) < 10:
            await asyncio.sleep(0.001)
        reconcile.stop()
        await running

    try:
        asyncio.run(asyncio.wait_for(main(), 20.0))
    finally:
        hanging.set()


# -- health


def test_health_tells_how_it_is():
    """Live and ready while it runs, not before and not after; not ready while it stops."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller()
        async def reconcile(key):
            await clock.asleep(10.0)
            seen.append(reconcile.health())

        async def body():
            reconcile.add("a")
            await clock.asleep(1.0)
            health = reconcile.health()
            assert (health.live, health.ready, health.in_hand) == (True, True, 1)

        before = reconcile.health()
        assert (before.live, before.ready) == (False, False)
        live(reconcile, 1.0, body)
        assert (seen[0].live, seen[0].ready) == (True, False)
        assert reconcile.health().live is False


# -- bad input


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"workers": 0}, ValueError, "workers must be a whole number of at least 1, not 0"),
        ({"workers": "4"}, TypeError, "workers must be a whole number of at least 1, not '4'"),
        ({"capacity": 0}, ValueError, "capacity must be a whole number of at least 1, not 0"),
        ({"resync": 0}, ValueError, "resync must be a number at least 0.001, not 0"),
        ({"resync": 5.0, "keys": [1]}, TypeError, "keys must be a function that lists them, not \\[1\\]"),
        ({"slow": -1}, ValueError, "slow must be a number above 0, not -1"),
        ({"max_requeues": -1}, ValueError, "max_requeues must be a whole number of at least 0, not -1"),
        ({"timeout": 0}, ValueError, "timeout must be a number above 0, not 0"),
        ({"grace": -1}, ValueError, "grace must be a number at least 0, not -1"),
        ({"budget": 3}, TypeError, "budget must be a Budget, not 3"),
        ({"backoff": "1"}, TypeError, "backoff must be a Backoff"),
        ({"on": 3}, TypeError, "on"),
        ({"store": 3}, TypeError, "store must be a store or the URL of one, not 3"),
    ],
)
def test_impossible_settings_are_refused(settings, error, message):
    """A clear error at construction, not when the first key comes."""
    with pytest.raises(error, match=message):
        abate.controller(**settings)(lambda key: None)


def test_something_that_is_no_function_is_refused():
    """A handler must be callable."""
    with pytest.raises(TypeError, match="a handler must be a function of one argument, not 3"):
        abate.controller()(3)


@pytest.mark.parametrize("key", [["a"], {}, None])
@pytest.mark.parametrize("resync", [None, 60.0])
def test_unhashable_keys_are_refused_where_they_are_added(key, resync):
    """The error names the key."""
    with pytest.raises(TypeError, match="a key must"):
        abate.controller(resync=resync)(lambda key: None).add(key)


@pytest.mark.parametrize("after", [-5.0, float("nan"), "x"])
def test_impossible_delays_are_refused_where_they_are_given(after):
    """The error names the value."""
    with pytest.raises((TypeError, ValueError), match="after must be a number at least 0"):
        abate.controller()(lambda key: None).add("a", after=after)


def test_what_is_kept_of_keys_goes_with_them():
    """A priority is forgotten with a key that is discarded."""
    reconcile = abate.controller()(lambda key: None)
    for key in range(100):
        reconcile.add(key, priority=1, after=60.0)
        reconcile.discard(key)
    assert reconcile._memory._priorities == {}


def test_a_signal_handler_of_the_program_is_back_after_the_run():
    """`run` borrows the signals."""

    def mine(number, frame): ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        abate.controller()(lambda key: None).run(drain=True)
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


# -- stopping


def test_a_stop_is_for_the_run_that_goes_on():
    """Before it and after it there is nothing to stop; twice is once."""
    with VirtualClock() as clock:
        seen = []
        reconcile = abate.controller()(looks(seen, clock))
        reconcile.stop()
        for _ in range(2):
            reconcile.add("a")
            assert live(reconcile, 5.0, lambda: clock.asleep(1.0)) == {"done": 1}
            reconcile.stop()
            reconcile.stop()

        async def body():
            reconcile.stop()
            reconcile.stop()

        live(reconcile, 1.0, body)
        assert len(seen) == 2


def test_a_stop_that_comes_too_late_does_nothing():
    """Also where the event loop has been closed since."""
    reconcile = abate.controller()(lambda key: None)
    loop = asyncio.new_event_loop()
    loop.close()
    reconcile._running = loop, SimpleNamespace(stop=print)
    reconcile.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_running_controller_can_run_it_itself():
    """What runs is the parent's."""
    seen = []

    @abate.controller(workers=1)
    async def reconcile(key):
        if key == "child":
            return
        pid = os.fork()
        if pid == 0:
            os._exit(17 if not reconcile.health().live else 1)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    reconcile.add("parent")
    reconcile.run(drain=True)
    assert seen == [17]


# -- signals, in real processes

PROGRAM = """
    import abate, sys, time
    @abate.controller(workers=2, grace={grace})
    {kind} reconcile(key):
        print("began", key, flush=True)
        {sleep}
        print("ended", key, flush=True)
    for key in "abcd":
        reconcile.add(key)
    print("tally", dict(reconcile.run()), flush=True)
"""


def program(kind="def", sleep="time.sleep(0.2)", grace=30.0):
    """A controller in a process of its own."""
    code = textwrap.dedent(PROGRAM).format(kind=kind, sleep=sleep, grace=grace)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_is_in_memory(number):
    """What waits in memory is worked off within the grace, as it would be lost otherwise."""
    with program() as process:
        assert process.stdout.readline().startswith("began")
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    assert out.count("ended") == 4
    assert "tally {'done': 4}" in out


def test_a_second_signal_breaks_off():
    """The second signal does not wait for the grace."""
    with program("async def", "await __import__('asyncio').sleep(60)") as process:
        assert process.stdout.readline().startswith("began")
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert process.returncode != 0
    assert "ended" not in out


def test_a_handler_that_hangs_is_left_behind_after_the_grace():
    """Nothing hangs: the process ends, though a thread doesn't."""
    with program(sleep="time.sleep(600)", grace=0.1) as process:
        assert process.stdout.readline().startswith("began")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
