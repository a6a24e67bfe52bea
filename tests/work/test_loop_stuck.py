"""The loop when something hangs: handlers, the trials of a circuit breaker, threads, loggers."""

import asyncio
import logging
import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import CircuitBreaker, PermanentFailure, event_sinks, events
from abate.stores import open_store
from abate.testing import VirtualClock
from abate.work import Back, Done, Message, source_client, stuck_handlers, thread_pool
from tests.work.fake_source import FakeSource, PlainFakeSource, messages


async def served(consumer, source, body, **options):
    """Run a consumer beside a body, then stop it."""
    running = asyncio.create_task(consumer.arun(source, **options))
    try:
        await body()
    finally:
        consumer.stop()
        tally = await running
    return tally


async def until(condition):
    """Let others run until something is so."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


class Kept(FakeSource):
    """A source that hands a message out again when its lease was not extended for long enough."""

    def __init__(self, *given, lease):
        super().__init__(*given, lease=lease)
        self.held = {}

    async def receive(self, most, wait):
        now = abate.clock.current().now()
        for message, end in list(self.held.items()):
            if end <= now:
                del self.held[message]
                self.messages.append(Message(message.key, receives=message.receives + 1))
        batch = [self.messages.popleft() for _ in range(min(most, len(self.messages)))]
        self.taken += batch
        self.held |= dict.fromkeys(batch, now + self.lease)
        if not batch and wait:
            await abate.clock.current().asleep(0.5)
        return batch

    async def extend(self, messages):
        self.extended.append([message.key for message in messages])
        self.held |= dict.fromkeys(messages, abate.clock.current().now() + self.lease)
        return ()

    async def settle(self, settlements):
        for message, verdict in settlements:
            if self.held.pop(message, None) is not None:
                self.settled.append((message.key, verdict))
        return ()


# -- handlers


async def deaf(clock, times=2):
    """Ignore the first cancellations: when the time is over, and when the grace is."""
    for _ in range(times):
        try:
            await clock.asleep(1e6)
        except asyncio.CancelledError:
            pass
    await clock.asleep(1e6)


def test_a_handler_that_hangs_loses_its_lease_and_its_place(caplog):
    """Its message is handed out again, others have its place, and it is counted and logged once."""
    with VirtualClock() as clock:

        async def main():
            source, done = Kept(*messages("bad", "good", "fine"), lease=3.0), []

            @abate.consumer(workers=1, timeout=5.0)
            async def handle(message):
                if message.key == "bad" and message.receives == 1:
                    await deaf(clock)
                done.append((message.key, message.receives))

            async def body():
                await clock.asleep(5.5)
                assert (handle.health().stuck, handle.health().oldest, done) == (0, 5.5, [])
                await clock.asleep(14.5)
                assert done == [("good", 1), ("fine", 1), ("bad", 2)]
                assert handle.health().stuck == 1

            tally = await served(handle, source, body, grace=0.0)
            assert tally == {"stuck": 1, "done": 3}
            assert source.extended == [["bad"]] * 5

        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if "has not ended" in record.getMessage()]
    assert len(said) == 1
    assert "the handler of 'bad' has not ended 1 s after its timeout of 5 s" in said[0]


def test_a_handler_that_is_late_is_settled_if_its_lease_holds():
    """The result counts as long as no other process has the message."""
    with VirtualClock() as clock:

        async def main():
            source = Kept(*messages("late"), lease=30.0)

            @abate.consumer(workers=1, timeout=5.0)
            async def handle(message):
                try:
                    await clock.asleep(100.0)
                except asyncio.CancelledError:
                    await clock.asleep(3.0)

            async def body():
                await clock.asleep(7.0)
                assert handle.health().stuck == 1
                await clock.asleep(3.0)
                assert (handle.health().stuck, handle.health().in_hand) == (0, 0)

            assert await served(handle, source, body) == {"stuck": 1, "done": 1}
            assert source.settled == [("late", Done())]

        asyncio.run(main())


def test_as_many_are_replaced_as_there_are_workers_and_then_it_is_not_ready(caplog):
    """Threads don't grow without bound: a consumer of hung handlers stops taking, and says so."""
    hangs, before = threading.Event(), threading.active_count()

    @abate.consumer(workers=2, timeout=0.01)
    def handle(message):
        hangs.wait(30.0)

    async def main():
        source = PlainFakeSource(*messages(*range(10)), lease=30.0)
        health = []

        async def body():
            await until(lambda: handle.health().stuck == 4)
            health.append(handle.health())
            assert threading.active_count() <= before + 2 * 2 + 3
            await asyncio.sleep(0.05)
            assert len(source.taken) == 4  # two in their places, two replaced

        tally = await served(handle, source, body, grace=0.0)
        assert health[0].live
        assert not health[0].ready
        assert tally == {"stuck": 4}

    usual, stuck_handlers.STUCK_TOLERANCE = stuck_handlers.STUCK_TOLERANCE, 0.01
    try:
        asyncio.run(main())
    finally:
        stuck_handlers.STUCK_TOLERANCE = usual
        hangs.set()
    assert caplog.text.count("2 handlers are stuck, as many as there are workers") == 1


def test_it_is_ready_while_fewer_hang_than_there_are_workers():
    """It takes work: one hung handler of two is shown, and no more."""
    with VirtualClock() as clock:

        async def main():
            source = Kept(*messages("bad"), lease=30.0)

            @abate.consumer(workers=2, timeout=1.0)
            async def handle(message):
                await deaf(clock)

            async def body():
                await clock.asleep(5.0)
                assert (handle.health().stuck, handle.health().ready) == (1, True)

            await served(handle, source, body, grace=0.0)

        asyncio.run(main())


def test_a_thread_that_hung_comes_back_and_its_replacement_goes():
    """What was stuck and ends is not stuck any more."""
    hangs, done = threading.Event(), []

    @abate.consumer(workers=1, timeout=0.01)
    def handle(message):
        if message.key == "bad":
            hangs.wait(30.0)
        done.append(message.key)

    before = set(threading.enumerate())  # those of other tests may end meanwhile

    def threads():
        return sum(thread.name.startswith("abate-") for thread in set(threading.enumerate()) - before)

    async def main():
        source = FakeSource(*messages("bad", "good"), lease=30.0)

        async def body():
            await until(lambda: done == ["good"])
            assert (handle.health().stuck, threads()) == (1, 2)
            hangs.set()
            await until(lambda: len(source.settled) == 2)
            assert handle.health().stuck == 0
            assert handle.health().ready
            await until(lambda: threads() == 1)

        assert await served(handle, source, body) == {"stuck": 1, "done": 2}

    usual, stuck_handlers.STUCK_TOLERANCE = stuck_handlers.STUCK_TOLERANCE, 0.01
    try:
        asyncio.run(main())
    finally:
        stuck_handlers.STUCK_TOLERANCE = usual
        hangs.set()


def test_those_behind_a_handler_that_hangs_go_back():
    """They can't have their turn here before it has ended."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(*(Message(number, group="g") for number in range(3)), lease=30.0)

            @abate.consumer(workers=3, timeout=5.0)
            async def handle(message):
                await deaf(clock)

            async def body():
                await clock.asleep(10.0)
                assert source.settled == [(1, Back(0.0, touched=False)), (2, Back(0.0, touched=False))]

            await served(handle, source, body, grace=0.0)

        asyncio.run(main())


def test_without_a_timeout_no_handler_is_cut_off():
    """A handler may take for ever; its age shows."""
    with VirtualClock() as clock:

        async def main():
            source = Kept(*messages("long"), lease=30.0)

            @abate.consumer(workers=1)
            async def handle(message):
                await clock.asleep(5000.0)

            async def body():
                assert handle.health().oldest is None
                await clock.asleep(4000.0)
                health = handle.health()
                assert (health.stuck, health.ready, health.oldest) == (0, True, 4000.0)
                await clock.asleep(1001.0)
                assert source.settled == [("long", Done())]

            await served(handle, source, body)

        asyncio.run(main())


def test_a_drain_ends_though_a_handler_hangs(caplog):
    """What hangs is left to its lease."""
    with VirtualClock() as clock:
        source = Kept(*messages("bad", "good"), lease=1e6)

        @abate.consumer(workers=1, timeout=5.0, grace=1000.0)
        async def handle(message):
            if message.key == "bad":
                await deaf(clock, times=1)

        assert handle.run(source, drain=True) == {"stuck": 1, "done": 1}
        assert clock.now() < 10.0
    assert "['bad'] not done within the grace" in caplog.text


def test_handlers_that_hang_trip_the_breaker():
    """A dependency that hangs is down."""
    with VirtualClock() as clock:

        async def main():
            seen, source = [], Kept(*messages(*range(9)), lease=1000.0)
            sink = abate.observe.install(seen.append)

            @abate.consumer(workers=4, timeout=5.0, breaker=CircuitBreaker(min_calls=4, pause=100.0))
            async def handle(message):
                await deaf(clock)

            await served(handle, source, lambda: clock.asleep(30.0), grace=0.0)
            abate.observe.remove(sink)
            assert len(source.taken) == 4
            assert [type(event) for event in seen].count(events.BreakerOpened) == 1

        asyncio.run(main())


# -- the circuit breaker


def test_a_trial_does_not_wait_for_what_was_taken_before_the_breaker_tripped():
    """One worker is busy for an hour: the others try again when the pause is over."""
    with VirtualClock() as clock:

        async def main():
            down, good = True, []

            @abate.consumer(workers=4, breaker=CircuitBreaker(min_calls=5, pause=10.0), backoff=[1.0])
            async def handle(message):
                if message.key == "long":
                    await clock.asleep(3600.0)
                    return
                if down:
                    raise ConnectionError
                good.append(clock.now())

            async def body():
                nonlocal down
                await clock.asleep(1.0)
                down = False
                await clock.asleep(20.0)
                assert len(good) >= 10
                assert len(source.settled) == 20

            source = FakeSource(*messages("long", *range(20)))
            await served(handle, source, body, grace=0.0)

        asyncio.run(main())


def test_a_trial_that_hangs_makes_room_for_another():
    """No timeout, and the first trial hangs: after a pause the next one is taken."""
    with VirtualClock() as clock:

        async def main():
            trial = asyncio.Event()

            @abate.consumer(workers=2, breaker=CircuitBreaker(min_calls=6, pause=10.0), backoff=[1.0])
            async def handle(message):
                if message.key < 6:
                    raise ConnectionError
                if not trial.is_set():
                    trial.set()
                    began.append(clock.now())
                    await clock.asleep(1e5)
                began.append(clock.now())

            began, source = [], FakeSource(*messages(*range(10)))

            async def body():
                await clock.asleep(100.0)
                assert began[1] == pytest.approx(began[0] + 10.0)
                assert len(source.settled) == 9

            await served(handle, source, body, grace=0.0)

        asyncio.run(main())


def test_what_comes_while_the_breaker_trips_goes_back_untouched():
    """A receive was under way: nothing that it brings is begun, and no receive is burned."""
    with VirtualClock() as clock:

        async def main():
            class Slow(FakeSource):
                async def receive(self, most, wait):
                    if self.taken:
                        await clock.asleep(2.0)
                    return await super().receive(1, wait)

            @abate.consumer(workers=2, breaker=CircuitBreaker(min_calls=1, pause=100.0), backoff=[1.0])
            async def handle(message):
                await clock.asleep(1.0)
                raise ConnectionError

            source = Slow(*messages("first", "second"))
            await served(handle, source, lambda: clock.asleep(5.0))
            back = source.verdicts["second"]
            assert source.verdicts["first"] == Back(1.0)
            assert not back.touched
            assert 48.0 <= back.after <= 149.0

        asyncio.run(main())


# -- threads and loggers


def test_nothing_is_taken_while_there_is_no_thread_to_work_on_it(monkeypatch):
    """A process out of threads waits for some, and burns no receives."""
    refused = 0

    class Refusing(threading.Thread):
        def start(self):
            nonlocal refused
            if refused < 7:
                refused += 1
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(thread_pool, "Thread", Refusing)
    monkeypatch.setattr(source_client, "MAX_SOURCE_DELAY", 0.002)
    for source in (PlainFakeSource(*messages("a")), FakeSource(*messages("a"))):
        refused = 0
        assert abate.consumer(workers=4)(lambda message: None).run(source, drain=True) == {"done": 1}
        assert (refused, source.settled) == (7, [("a", Done())])


class Broken(logging.Handler):
    def emit(self, record):
        raise RuntimeError("the log server is down")


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_logger_that_raises_breaks_nothing(asynchronous, capsys):
    """Buried, crashed, failed, lost and stuck messages are all logged: each is settled as ever."""
    broken, logger = Broken(), logging.getLogger("abate")
    logger.addHandler(broken)

    def answer(message):
        if message.key == "buried":
            raise PermanentFailure("no")
        if message.key == "crashed":
            raise SystemExit
        if message.key == "odd":
            return 42
        return None

    async def task(message):
        return answer(message)

    source = FakeSource(*messages("buried", "crashed", "odd", "fine", "lost"), lease=30.0)
    source.lost = {"lost"}
    source.receive_errors.append(ConnectionError())
    source.settle_errors.append(ConnectionError())
    try:
        with VirtualClock():
            consumer = abate.consumer(workers=2, backoff=[1.0], breaker=CircuitBreaker(min_calls=1, pause=1.0))
            tally = consumer(task if asynchronous else answer).run(source, drain=True)
    finally:
        logger.removeHandler(broken)
    assert tally == {"buried": 1, "crashed": 1, "retry": 1, "done": 3, "lost": 1}
    assert sorted(source.verdicts) == ["buried", "crashed", "fine", "odd"]


def test_a_sink_that_raises_breaks_nothing(capsys):
    """Neither does one that can't be cut off quietly, as the logger raises too."""
    broken, logger = Broken(), logging.getLogger("abate")
    logger.addHandler(broken)

    def sink(event):
        raise KeyError("x")

    abate.observe.install(sink)
    try:
        queue = open_store("memory:").queue("orders")
        queue.send("a")

        @abate.consumer(source=queue)
        def handle(message):
            raise PermanentFailure("no")

        assert handle.run(drain=True) == {"buried": 1}
        assert queue.depth().dead == 1
    finally:
        abate.observe.remove(sink)
        logger.removeHandler(broken)


def test_a_sink_that_ends_its_task_leaves_the_verdict():
    """What was decided is on its way before anybody is told of it."""

    def sink(event):
        raise asyncio.CancelledError

    event_sinks.install(sink)
    source = FakeSource(*messages("a", "b"))
    try:
        with VirtualClock():
            abate.consumer()(lambda message: None).run(source, drain=True)
    finally:
        event_sinks.remove(sink)
    assert source.verdicts == {"a": Done(), "b": Done()}


def test_a_value_that_a_handler_returns_is_told_once(caplog):
    """The messages are done; a consumer warns of the first one alone."""
    source = FakeSource(*messages(*range(3)))
    with VirtualClock():
        assert abate.consumer()(lambda message: {"sent": 1}).run(source, drain=True) == {"done": 3}
    assert caplog.text.count("returned a value of type dict, which is ignored") == 1
    assert sorted(source.verdicts) == [0, 1, 2]


def test_a_generator_is_no_handler():
    """Nothing of it would run."""

    def numbers(message):
        yield 1

    async def later(message):
        yield 1

    for function in (numbers, later):
        with pytest.raises(TypeError, match="a handler must not be a generator"):
            abate.consumer()(function)


# -- a source that fails


class Constant:
    """Chance that is always the same: delays are as long as they can be."""

    @staticmethod
    def random():
        return 0.999999

    @staticmethod
    def uniform(low, high):
        return high


def failures_of(source, monkeypatch):
    """The instants at which a source was asked in vain."""
    monkeypatch.setattr(source_client, "random", Constant)
    seen = []

    def note(event):
        if isinstance(event, events.SourceFailed):
            seen.append((abate.clock.current().now(), event.delay))

    sink = abate.observe.install(note)
    try:
        with VirtualClock():
            abate.consumer(breaker=False)(lambda message: None).run(source, drain=True)
    finally:
        abate.observe.remove(sink)
    return seen


@pytest.mark.parametrize("method", ["receive", "settle"])
def test_a_source_that_keeps_failing_is_left_alone_for_longer_and_longer(method, monkeypatch):
    """For half of the time that it has failed for, from 1 to 10 seconds, and it is asked again after just that."""
    source = FakeSource(*messages("a"))
    getattr(source, f"{method}_errors").extend([ConnectionError()] * 10)
    seen = failures_of(source, monkeypatch)
    pauses = [1, 1, 1, 1.5, 2.25, 3.375, 5.06, 7.59, 10, 10]
    assert [delay for _, delay in seen] == pytest.approx(pauses, rel=0.01)
    asked = [instant for instant, _ in seen]
    assert [after - before for before, after in pairwise(asked)] == pytest.approx(pauses[:-1], rel=0.01)


@pytest.mark.parametrize("method", ["receive", "settle"])
@given(outage=st.floats(0.01, 200.0), seed=st.integers(0, 1000))
def test_a_source_is_asked_again_soon_after_it_is_back(method, outage, seed):
    """After an outage of T seconds within T/2, but a second at least and ten at most, whatever chance says."""
    chance = random.Random(seed)
    with VirtualClock() as clock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_client, "random", chance)
        asked = []

        class Down(FakeSource):
            def fail(self, now):
                if now == method:
                    asked.append(clock.now())
                    if clock.now() < asked[0] + outage:
                        raise ConnectionError

            async def receive(self, most, wait):
                self.fail("receive")
                return await super().receive(most, wait)

            async def settle(self, settlements):
                self.fail("settle")
                return await super().settle(settlements)

        assert abate.consumer(breaker=False)(lambda message: None).run(Down(*messages("a")), drain=True) == {"done": 1}
        back = asked[0] + outage
        tried = [instant for instant in asked if instant < back]
        again = asked[len(tried)]
        assert again - back <= min(10.0, max(1.0, outage / 2)) + 0.01
        assert all(after - before > 0.49 for before, after in pairwise([*tried, again]))


def test_a_verdict_outlasts_an_outage_that_is_shorter_than_the_lease(monkeypatch):
    """However often it was tried meanwhile, it is kept: the message is not worked on twice."""
    monkeypatch.setattr(source_client, "MAX_SOURCE_DELAY", 1.0)
    source = FakeSource(*messages("a"), lease=30.0)
    source.settle_errors.extend([ConnectionError()] * 25)
    with VirtualClock():
        assert abate.consumer()(lambda message: None).run(source, drain=True) == {"done": 1}
    assert source.verdicts == {"a": Done()}


@pytest.mark.parametrize(
    ("method", "said"), [("receive", "receive from"), ("settle", "settle messages in"), ("extend", "extend leases in")]
)
def test_the_log_says_that_the_queue_failed_and_not_the_handler(method, said, caplog):
    """And what could not be done there."""
    source = FakeSource(*messages("a"), lease=30.0)
    getattr(source, f"{method}_errors").append(ConnectionError("refused"))
    with VirtualClock():

        @abate.consumer(name="orders")
        async def handle(message):
            await abate.clock.current().asleep(15.0)

        handle.run(source, drain=True)
    (text,) = [record.getMessage() for record in caplog.records if "next try" in record.getMessage()]
    assert text.startswith(f"orders: could not {said} the queue tray, next try in ")
    assert text.endswith("s: ConnectionError('refused')")


@pytest.mark.parametrize("method", ["receive", "settle"])
def test_the_pause_begins_anew_after_a_success(method, monkeypatch):
    """A source that answers again has its failures forgotten."""

    class Flaky(FakeSource):
        """Fails four times for each message."""

        tries = 0

        def fail(self, asked):
            self.tries += asked == method
            if asked == method and self.tries % 5:
                raise ConnectionError

        async def receive(self, most, wait):
            if self.messages:
                self.fail("receive")
            return await super().receive(1, wait)

        async def settle(self, settlements):
            self.fail("settle")
            return await super().settle(settlements)

    seen = failures_of(Flaky(*messages("a", "b")), monkeypatch)
    assert [delay for _, delay in seen] == pytest.approx([1, 1, 1, 1.5, 1, 1, 1, 1.5], rel=0.01)


def test_a_pause_is_not_cut_short_by_work_that_ends(monkeypatch):
    """However busy the loop is, a source that fails is not asked before its time."""
    monkeypatch.setattr(source_client, "random", Constant)
    with VirtualClock() as clock:
        asked = []

        class Down(FakeSource):
            async def receive(self, most, wait):
                if self.taken:
                    asked.append(clock.now())
                    raise ConnectionError
                return await super().receive(most, wait)

        async def main():
            @abate.consumer(workers=4)
            async def handle(message):
                await clock.asleep(0.1 + 0.1 * message.key)

            await served(handle, Down(*messages(0, 1, 2)), lambda: clock.asleep(2.5))

        asyncio.run(main())
        assert asked == pytest.approx([0.0, 1.0, 2.0], abs=0.01)


def test_a_stop_ends_a_pause_and_verdicts_are_sent_off_soon():
    """A store that is back within the grace is told what was done, though it had been down for an hour."""
    with VirtualClock() as clock:

        async def main():
            back = asyncio.Event()

            class Down(FakeSource):
                async def settle(self, settlements):
                    if not back.is_set():
                        raise ConnectionError
                    return await super().settle(settlements)

            source = Down(*messages("a"), lease=None)

            @abate.consumer()
            async def handle(message): ...

            running = asyncio.create_task(handle.arun(source, grace=10.0))
            await clock.asleep(600.0)
            handle.stop()
            await clock.asleep(5.0)
            back.set()
            await running
            assert source.verdicts == {"a": Done()}
            assert clock.now() <= 606.5

        asyncio.run(main())
