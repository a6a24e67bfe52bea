"""Feeds: nothing that they bring is lost, nothing that is wrong with them goes unsaid, and none is left dead."""

import asyncio
import logging
import random
import threading
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import consistent_jitter, events
from abate.stores import StoreUnreachable
from abate.testing import VirtualClock
from abate.work import feeds


@pytest.fixture
def clock():
    with VirtualClock() as clock:
        yield clock


def live(controller, seconds, body=None):
    """Run a controller for virtual seconds; return its health just before it is stopped."""

    async def main():
        running = asyncio.create_task(controller.arun())
        if body is not None:
            await body()
        await abate.clock.current().asleep(seconds)
        health = controller.health()
        controller.stop()
        await running
        return health

    return asyncio.run(main())


def looking(seen, **options):
    """A controller that writes down the keys it looked at."""

    @abate.controller(workers=1, name="orders", **options)
    async def reconcile(key):
        seen.append(key)

    return reconcile


class Failing:
    """The add of a store's queue, which fails as often as is said."""

    def __init__(self, controller, *fails, error=None):
        self.asked = []
        self._left = Counter(fails)
        self._error = error or StoreUnreachable("it restarts")
        self._add = controller._queue._add_many
        controller._queue._add_many = self

    def __call__(self, messages, *args):
        [(key, _)] = messages
        self.asked.append((abate.clock.current().now(), key))
        if self._left[key]:
            self._left[key] -= 1
            raise self._error
        return self._add(messages, *args)


def for_ever():
    return asyncio.Event().wait()


# -- a store that fails


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize("error", [StoreUnreachable("it restarts"), ConnectionError(), RuntimeError("odd")])
def test_a_key_that_could_not_be_added_is_added_later(clock, as_object, error):
    """Before what comes after it; a bus that has handed it out does not do so again."""
    seen = []
    reconcile = looking(seen, store="memory:")
    add = Failing(reconcile, *["2"] * 3, "4", error=error)
    bus = iter("12345")

    async def watch():
        for key in bus:
            yield key
        await for_ever()

    reconcile.source(watch() if as_object else watch)
    health = live(reconcile, 60.0)
    assert seen == list("12345")
    assert [key for _, key in add.asked] == list("122223445")
    assert health.feeds == {}


def test_the_pause_between_two_tries_of_an_add_grows_and_begins_anew(clock):
    """With one event each; and meanwhile no more is taken from the feed."""
    taken, told = [], []
    reconcile = looking([], store="memory:")
    add = Failing(reconcile, *["a"] * 8, *["b"] * 2)

    @reconcile.source
    async def watch():
        for key in "abc":
            taken.append(key)
            yield key
        await for_ever()

    async def body():
        await clock.asleep(100.0)
        assert taken == ["a"]
        assert reconcile.health().feeds == {"watch": "StoreUnreachable: it restarts"}
        assert reconcile.health().ready

    sink = abate.observe.install(told.append)
    try:
        live(reconcile, 400.0, body)
    finally:
        abate.observe.remove(sink)
    for key, ceilings in {"a": (1, 2, 4, 8, 16, 32, 60, 60), "b": (1, 2)}.items():
        gaps = [after - before for before, after in pairwise(at for at, asked in add.asked if asked == key)]
        assert len(gaps) == len(ceilings)
        assert all(ceiling / 2 <= gap <= ceiling + 0.01 for gap, ceiling in zip(gaps, ceilings, strict=True))
    assert taken == list("abc")
    failed = [event for event in told if isinstance(event, events.SourceFailed)]
    assert [(event.name, event.source) for event in failed] == [("orders", "watch")] * 10


def test_a_stop_breaks_off_an_add_that_fails_and_says_what_was_not_added(clock, caplog):
    """At once: it does not wait for the store."""
    reconcile = looking([], store="memory:")
    Failing(reconcile, *["a"] * 1000)

    @reconcile.source
    async def watch():
        yield "a"

    live(reconcile, 100.0)
    assert clock.now() < 101.0
    assert "orders: stopped before 'a' was added, which watch brought" in caplog.text


@pytest.mark.parametrize("feed", ["poll", "resync"])
def test_pollers_and_the_resync_try_again_too(clock, feed):
    """One key that can't be added at once costs neither itself nor the others."""
    seen = []
    keys = [str(number) for number in range(5)]
    resync = {"resync": 10.0, "keys": lambda: keys} if feed == "resync" else {}
    reconcile = looking(seen, store="memory:", **resync)
    if feed == "poll":
        reconcile.poll(every=1000.0)(lambda: keys)
    Failing(reconcile, "1", "3", "3")
    live(reconcile, 14.0)
    assert set(seen) == set(keys)


def test_a_feed_that_fails_for_a_day_does_not_fill_the_disk(clock, caplog):
    """A line a minute at most, with the number of those that were left out."""
    reconcile = looking([], store="memory:", rng=random.Random(1))
    Failing(reconcile, *["a"] * 10**6)

    @reconcile.source
    async def watch():
        yield "a"

    @reconcile.poll(every=1.0, keys=lambda event: event["order"])
    def events_without_orders():
        return [{}] * 30

    live(reconcile, 300.0)
    assert 3 <= len([record for record in caplog.records if "no key can be told" in record.message]) <= 6
    assert len(caplog.records) <= 15
    assert "more like this since the last line" in caplog.text


# -- what is malformed


def test_an_event_that_can_not_be_read_is_skipped_said_and_counted(clock, caplog):
    """It holds up nothing behind it, and the feed is not started again for it."""
    seen, started = [], []
    reconcile = looking(seen)

    @reconcile.source(keys=lambda event: [event["order"]])
    async def watch():
        started.append(clock.now())
        for event in ({"order": "1"}, {"oops": 1}, {"order": "2"}, None, {"order": "3"}):
            yield event
        await for_ever()

    health = live(reconcile, 100.0)
    assert (seen, started) == (["1", "2", "3"], [0.0])
    assert health.skipped == 2
    assert health.feeds == {}
    assert "orders: watch brought an event of which no key can be told: KeyError: 'order' (skipped)" in caplog.text


def test_a_poller_skips_what_can_not_be_read(clock):
    """And goes on at its own pace."""
    seen, asked = [], []
    reconcile = looking(seen)

    @reconcile.poll(every=10.0, keys=lambda event: event["order"])
    def listed():
        asked.append(clock.now())
        return [{"order": "1"}, {"oops": 1}, {"order": "2"}]

    health = live(reconcile, 25.0)
    assert asked == [0.0, 10.0, 20.0]
    assert seen == ["1", "2"] * 3
    assert health.skipped == 3


def test_what_an_event_named_before_it_broke_is_added(clock):
    """A mapping may be a generator, which fails half-way."""
    seen = []
    reconcile = looking(seen)

    def owners(event):
        yield "a"
        if event == "broken":
            raise ValueError("no more owners")
        yield "b"

    @reconcile.source(keys=owners)
    async def watch():
        yield "broken"
        yield "fine"
        await for_ever()

    health = live(reconcile, 10.0)
    assert seen == ["a", "b"] or seen == ["a", "a", "b"]
    assert health.skipped == 1


class Odd:
    """A key that breaks whatever touches it."""

    def __hash__(self):
        raise RuntimeError("no hash")

    def __repr__(self):
        raise RuntimeError("no words")


class Unsaid:
    """A key that can't be written."""

    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("bad", [Odd(), ["a list"], None])
def test_what_is_no_key_is_skipped(clock, bad):
    """Also if its methods raise."""
    seen = []
    reconcile = looking(seen)

    @reconcile.source
    async def watch():
        for key in ("a", bad, "b"):
            yield key
        await for_ever()

    health = live(reconcile, 10.0)
    assert seen == ["a", "b"]
    assert health.skipped == (bad is not None)  # None is "no key" for a source


def test_a_resync_skips_what_is_no_key(clock):
    """A key whose offset can't be told has none."""
    seen = []
    reconcile = looking(seen, resync=5.0, keys=lambda: ["a", Unsaid(), "b"])
    assert live(reconcile, 9.9).skipped == 2
    assert set(seen) == {"a", "b"}


@pytest.mark.parametrize("found", ["orders/42", b"orders", None, 42])
def test_a_poller_that_does_not_return_several_keys_fails_and_says_so(clock, caplog, found):
    """A text is one key, and not as many as it has letters."""
    seen = []
    reconcile = looking(seen)
    reconcile.poll(every=1.0)(lambda: found)
    health = live(reconcile, 0.1)
    assert seen == []
    assert "a function that lists keys must return an iterable of keys" in health.feeds["<lambda>"]


@pytest.mark.parametrize("keys", [42, "order"])
def test_a_mapping_that_is_no_function_is_refused(keys):
    """When the feed is declared."""
    reconcile = looking([])
    with pytest.raises(TypeError, match="keys must be a plain function from an event to its keys"):
        reconcile.source(lambda: None, keys=keys)
    with pytest.raises(TypeError, match="keys must be a plain function from an event to its keys"):
        reconcile.poll(every=1.0, keys=keys)(list)


def test_a_mapping_that_is_awaited_is_refused():
    """Its coroutines would be taken for keys."""

    async def keys(event):
        return event

    with pytest.raises(TypeError, match="keys must be a plain function"):
        looking([]).poll(every=1.0, keys=keys)(list)


# -- what ends


def test_a_source_that_ends_is_started_again(clock, caplog):
    """A server that ends a watch every few minutes costs about a second each time."""
    caplog.set_level(logging.INFO)
    seen, started = [], []
    reconcile = looking(seen)

    @reconcile.source
    async def watch():
        started.append(clock.now())
        yield f"key-{len(started)}"
        await clock.asleep(300.0)

    health = live(reconcile, 1300.0)
    assert len(started) == 5
    assert seen == [f"key-{number + 1}" for number in range(5)]
    assert all(300.5 <= after - before <= 301.0 for before, after in pairwise(started))
    assert "orders: watch has ended, started again in" in caplog.text
    assert "WARNING" not in {record.levelname for record in caplog.records}
    assert health.feeds == {}


@pytest.mark.parametrize("raises", [False, True])
def test_a_source_that_gets_no_further_is_started_less_and_less_often(clock, raises):
    """Though it brings keys each time: they are the same ones."""
    started = []
    reconcile = looking([])

    @reconcile.source
    async def watch():
        started.append(clock.now())
        for key in "abc":
            yield key
        if raises:
            raise ConnectionError

    health = live(reconcile, 600.0)
    gaps = [after - before for before, after in pairwise(started)]
    for gap, ceiling in zip(gaps, (1, 2, 4, 8, 16, 32, 60, 60), strict=False):
        assert ceiling / 2 <= gap <= ceiling
    assert len(gaps) >= 10
    assert health.feeds == {"watch": "ConnectionError: " if raises else "it has ended, and is started again"}


def test_a_source_that_gets_further_each_time_is_started_soon(clock):
    """What it brings is new."""
    started = []
    reconcile = looking([])

    @reconcile.source
    async def watch():
        started.append(clock.now())
        for key in range(len(started)):
            yield key
        raise ConnectionError

    live(reconcile, 20.0)
    assert len(started) >= 15
    assert all(after - before <= 1.0 for before, after in pairwise(started))


def test_a_source_that_hangs_before_it_fails_is_started_less_and_less_often(clock):
    """A connect that times out is no progress, until it has lasted for a minute."""
    started = []
    reconcile = looking([])

    @reconcile.source
    async def watch():
        started.append(clock.now())
        await clock.asleep(10.0)
        if len(started) == 8:
            await clock.asleep(60.0)
        raise ConnectionError
        yield

    live(reconcile, 600.0)
    gaps = [after - before - 10.0 for before, after in pairwise(started)]
    assert all(ceiling / 2 <= gap <= ceiling for gap, ceiling in zip(gaps, (1, 2, 4, 8, 16, 32, 60), strict=False))
    assert 60.5 <= gaps[7] <= 61.0


def test_a_generator_object_that_ends_is_said_to_have_ended(clock, caplog):
    """In the log, and by health as long as the controller runs."""
    seen = []
    reconcile = looking(seen)

    async def watch():
        yield "a"

    reconcile.source(watch())
    health = live(reconcile, 300.0)
    assert seen == ["a"]
    assert health.feeds == {"watch": "it has ended, and can't be started again"}
    assert "has ended, and can't be started again: give its function instead" in caplog.text
    assert len(caplog.records) == 1


def test_a_source_that_can_be_read_again_is(clock):
    """An object with __aiter__ of its own begins anew."""
    seen = []
    reconcile = looking(seen)

    class Watch:
        async def __aiter__(self):
            yield str(len(seen))
            await clock.asleep(5.0)

    reconcile.source(Watch())
    live(reconcile, 18.0)
    assert seen == ["0", "1", "2", "3"]


def test_a_source_that_is_cancelled_from_inside_is_started_again(clock):
    """As a library does it that breaks off its own tasks; it was not us."""
    started = []
    reconcile = looking([])

    @reconcile.source
    async def watch():
        started.append(clock.now())
        raise asyncio.CancelledError
        yield

    health = live(reconcile, 10.0)
    assert len(started) >= 3
    assert health.feeds == {"watch": "RuntimeError: it was cancelled, and not by the controller"}


def test_trouble_is_over_when_a_source_runs_steadily_or_brings_something(clock):
    """A quiet one is taken to be well after a minute."""
    reconcile = looking([])
    quiet = asyncio.Event()

    @reconcile.source
    async def watch():
        if not quiet.is_set():
            quiet.set()
            raise ConnectionError
        await for_ever()
        yield

    async def body():
        await clock.asleep(30.0)
        assert "watch" in reconcile.health().feeds

    assert live(reconcile, 60.0, body).feeds == {}


def test_trouble_of_a_poller_is_over_when_it_answers_though_it_brings_nothing(clock):
    """An answer without keys is an answer."""
    reconcile = looking([])
    answers = iter([ConnectionError(), []])

    @reconcile.poll(every=20.0)
    def unfinished():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def body():
        await clock.asleep(0.1)
        assert "unfinished" in reconcile.health().feeds

    assert live(reconcile, 5.0, body).feeds == {}


def test_a_source_is_closed_when_the_controller_stops(clock):
    """Its own `finally` runs, also where it stands at a yield."""
    closed = []
    reconcile = looking([], store="memory:")
    Failing(reconcile, *["b"] * 1000)

    def source(key, name):
        async def watch():
            try:
                yield key
                await for_ever()
            finally:
                closed.append(name)

        return watch

    reconcile.source(source("a", "waiting"))
    reconcile.source(source("b", "at its yield"))
    live(reconcile, 5.0)
    assert sorted(closed) == ["at its yield", "waiting"]


def test_a_source_that_does_not_end_is_left_behind(clock, caplog):
    """It does not hold up the end for longer than a few seconds."""
    over, started = asyncio.Event(), []

    @abate.controller(name="orders")
    async def reconcile(key): ...

    @reconcile.source
    async def watch():
        started.append(clock.now())
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        yield

    async def main():
        running = asyncio.create_task(reconcile.arun())
        await clock.asleep(10.0)
        reconcile.stop()
        await running
        ended = clock.now()
        over.set()
        await clock.asleep(100.0)
        return ended

    assert asyncio.run(main()) == pytest.approx(15.0)
    assert started == [0.0]
    assert "orders: 1 sources did not end within 5 s, and are left running" in caplog.text


class Raising(logging.Handler):
    def emit(self, record):
        raise RuntimeError("the disk is full")


def test_a_logging_handler_that_raises_ends_no_feed(clock):
    """Nor does it lose what the feed brings."""
    seen, started = [], []
    reconcile = looking(seen, store="memory:")
    Failing(reconcile, "1", "2")

    @reconcile.source(keys=lambda event: event[0])
    async def watch():
        started.append(clock.now())
        for event in ("1", "", "2"):
            yield event
        raise ConnectionError

    handler = Raising()
    logging.getLogger("abate.work").addHandler(handler)
    try:
        live(reconcile, 20.0)
    finally:
        logging.getLogger("abate.work").removeHandler(handler)
    assert set(seen) == {"1", "2"}
    assert len(started) > 1


# -- how they are declared


def test_feeds_of_one_name_are_told_apart(clock):
    """By a number, in logs and in health."""
    reconcile = looking([])
    for _ in range(3):
        reconcile.poll(every=1.0)(lambda: None)
    assert list(live(reconcile, 0.1).feeds) == ["<lambda>", "<lambda>-2", "<lambda>-3"]


def test_a_feed_that_is_declared_while_the_controller_runs_begins_with_the_next_run(clock, caplog):
    """And that is said."""
    seen = []
    reconcile = looking(seen)

    async def body():
        await clock.asleep(1.0)
        reconcile.poll(every=100.0)(lambda: ["a"])

    live(reconcile, 10.0, body)
    assert seen == []
    assert "orders: <lambda> was declared during a run, and starts with the next run" in caplog.text
    live(reconcile, 10.0)
    assert seen == ["a"]


# -- resync


class SetClock(VirtualClock):
    """A clock whose wall clock is set: from each instant on it is ahead of the other by the given seconds."""

    def __init__(self, steps):
        super().__init__(0.0)
        self.steps = sorted(steps)

    def wall(self):
        return 1e6 + self.now() + ([0.0] + [ahead for at, ahead in self.steps if at <= self.now()])[-1]


@settings(max_examples=25, deadline=None)
@given(
    period=st.sampled_from([10.0, 3600.0]),
    steps=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(-1000.0, 1000.0)), max_size=3),
)
def test_a_resync_goes_on_when_the_wall_clock_was_set(period, steps):
    """Forward or back: each key at its offset, within two periods of the last step, and never all at once."""
    keys = [f"key-{number}" for number in range(20)]
    seen = []

    async def main():
        async def push(key):
            seen.append((clock.now(), clock.wall(), key))

        async def run(function):
            return function()

        produce = partial(feeds.resync_feed, lambda: keys, period)
        runner = feeds.FeedRunner("orders", feeds.Feed("resync", produce), push, run, random)
        resync = asyncio.create_task(runner.run_forever())
        await clock.asleep(8 * period)
        resync.cancel()
        await asyncio.wait({resync})

    with SetClock([(period * at, period * ahead) for at, ahead in steps]) as clock:
        asyncio.run(main())
    last = max([period * at for at, _ in steps], default=0.0)
    assert {key for at, _, key in seen if last <= at <= last + 2.1 * period} == set(keys)
    for _, wall, key in seen:
        missed = (wall - consistent_jitter(key, period)) % period
        assert min(missed, period - missed) <= min(1.0, period / 100) + 1e-3


def test_a_resync_is_of_all_keys_that_a_process_has_seen(clock, caplog):
    """Also those that another process has added to the store; who discards a key has it no more."""
    seen = []
    with abate.open_store("memory:") as store:
        worker = looking(seen, store=store, resync=10.0)
        web = abate.controller(name="orders", store=store)(print)
        web.add("a")
        web.add("gone")

        async def body():
            await clock.asleep(30.0)
            worker.discard("gone")
            seen.append("--")

        live(worker, 30.0, body)
    before, after = seen[: seen.index("--")], seen[seen.index("--") + 1 :]
    assert Counter(before) >= Counter({"a": 3, "gone": 3})
    assert set(after) == {"a"}
    assert "when processes share a store, give keys= to resync all of them" in caplog.text


def test_keys_that_a_resync_forgets_are_said_to_be(monkeypatch, caplog):
    """Once, and not for each."""
    monkeypatch.setattr("abate.work.resync_keys.MAX_KNOWN", 3)
    reconcile = looking([], resync=10.0)
    for key in range(10):
        reconcile.add(key)
    assert reconcile._known.list() == [7, 8, 9]
    assert len(caplog.records) == 1
    assert "remembers 3 keys, and forgets the oldest for more" in caplog.text


def test_keys_are_remembered_by_several_threads_at_once(monkeypatch, start_thread):
    """A dict that changes meanwhile raises no error."""
    monkeypatch.setattr("abate.work.resync_keys.MAX_KNOWN", 3)
    reconcile = looking([], resync=10.0, capacity=None)
    start = threading.Barrier(4)

    def add(first):
        start.wait()
        for key in range(first, first + 500):
            reconcile.add(key)

    for worker in [start_thread(add, 1000 * number) for number in range(4)]:
        worker.result()
    assert len(reconcile._known.list()) <= 10


# -- lines


def test_one_line_a_minute_says_how_many_were_left_out(clock, caplog):
    """The first at once."""
    sparing = feeds.LimitedLog()
    for number in range(200):
        sparing.say(logging.WARNING, "number %d", number)
        clock.advance(1.0)
    assert [record.message for record in caplog.records] == [
        "number 0",
        "number 60 (59 more like this since the last line)",
        "number 120 (59 more like this since the last line)",
        "number 180 (59 more like this since the last line)",
    ]
