"""The loop: what is in hand, what is settled, what happens when things break."""

import asyncio
import sys
import threading
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, CircuitBreaker, PermanentFailure, Recoverable, events
from abate.testing import VirtualClock
from abate.work import Back, Bury, Done, Message
from tests.work.fake_source import FakeSource, PlainFakeSource, messages


def work(handle, source, **settings):
    """Drain a source in virtual time: the tally."""
    options = {"backoff": Backoff(1.0, 60.0, jitter="none"), "breaker": False, **settings}
    with VirtualClock():
        return abate.consumer(**options)(handle).run(source, drain=True)


async def served(consumer, source, body, **options):
    """Run a consumer beside a body, then stop it."""
    running = asyncio.create_task(consumer.arun(source, **options))
    try:
        await body()
    finally:
        consumer.stop()
        tally = await running
    return tally


@pytest.mark.parametrize("tray", [FakeSource, PlainFakeSource])
@pytest.mark.parametrize("virtual", [True, False])
def test_every_message_is_handled_and_settled(tray, virtual):
    """Plain and async sources, plain and async handlers, in threads and in virtual time: all is done once."""

    def plain(message):
        seen.append(message.key)

    async def task(message):
        seen.append(message.key)

    for handle in (plain, task):
        seen, source = [], tray(*messages(*range(50)))
        if virtual:
            tally = work(handle, source)
        else:
            tally = abate.consumer()(handle).run(source, drain=True)
        assert sorted(seen) == list(range(50))
        assert sorted(source.settled) == [(key, Done()) for key in range(50)]
        assert tally == {"done": 50}


def test_no_more_are_in_hand_than_there_are_workers():
    """Messages are taken as workers become free, so that no lease runs while a message waits."""
    peak, busy = 0, 0

    async def handle(message):
        nonlocal peak, busy
        busy += 1
        peak = max(peak, busy)
        assert len(source.taken) - len(source.settled) <= 3
        await abate.clock.current().asleep(1.0)
        busy -= 1

    source = FakeSource(*messages(*range(20)))
    work(handle, source, workers=3)
    assert peak == 3


ANSWERS = {
    "done": None,
    "again": abate.Again(7.0),
    "silent": abate.SilentSuccess(),
    "buried": PermanentFailure("no"),
    "retry": Recoverable(),
}


@given(st.lists(st.sampled_from(sorted(ANSWERS)), max_size=30), st.integers(1, 5), st.booleans())
def test_each_answer_has_its_verdict(words, workers, asynchronous):
    """However handlers answer, every message is settled once and counted in its column."""

    def answer(message):
        answer = ANSWERS[words[message.key]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def later(message):
        await abate.clock.current().asleep(message.key % 3)
        return answer(message)

    source = FakeSource(*messages(*range(len(words))))
    tally = work(later if asynchronous else answer, source, workers=workers)
    verdicts = {"done": Done(), "again": Done(7.0), "silent": Done(), "retry": Back(1.0)}
    assert len(source.settled) == len(words)
    for key, verdict in source.settled:
        if words[key] == "buried":
            assert isinstance(verdict, Bury)
        else:
            assert verdict == verdicts[words[key]]
    assert +tally == {word: words.count(word) for word in set(words)}


# -- groups


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["good", "fail", "bury"])), max_size=25),
    st.integers(1, 6),
)
def test_groups_are_kept_in_order(batch, workers):
    """Of one group nothing overlaps and nothing passes a message that has to come back."""
    running, handled = set(), defaultdict(list)

    async def handle(message):
        group, outcome = message.body.split()
        assert group not in running
        running.add(group)
        await abate.clock.current().asleep(1.0)
        running.remove(group)
        handled[group].append(message.key)
        if outcome == "fail":
            raise Recoverable()
        if outcome == "bury":
            raise PermanentFailure("no")

    source = FakeSource(
        *(Message(number, f"{group} {outcome}", group=group) for number, (group, outcome) in enumerate(batch))
    )
    work(handle, source, workers=workers)
    assert sorted(source.verdicts) == list(range(len(batch)))
    for group, keys in handled.items():
        assert keys == sorted(keys)
        # what was in hand behind a failure has not been touched
        taken_together = [number for number, (of, _) in enumerate(batch) if of == group]
        for key in set(taken_together) - set(keys):
            assert source.verdicts[key] == Back(1.0, touched=False)


def test_who_loses_its_lease_takes_its_group_along():
    """It will be handed out again, and must come before those behind it."""
    source = FakeSource(*(Message(number, group="g") for number in range(3)), lease=30.0)
    source.lost = {0}
    handled = []

    async def handle(message):
        handled.append(message.key)
        await abate.clock.current().asleep(60.0)

    work(handle, source, workers=3)
    assert handled == [0]
    assert source.verdicts == {1: Back(0.0, touched=False), 2: Back(0.0, touched=False)}


def test_what_a_source_can_not_bury_holds_its_group():
    """It will be handed out again."""
    source = FakeSource(*(Message(number, group="g") for number in range(2)))
    source.buries = False

    def handle(message):
        raise PermanentFailure("no")

    work(handle, source, workers=2)
    assert isinstance(source.verdicts[0], Bury)
    assert source.verdicts[1] == Back(0.0, touched=False)


def test_the_rest_of_a_group_goes_back_with_the_one_that_failed():
    """Those in hand behind a failure come back no earlier than it, untouched."""
    source = FakeSource(*(Message(number, group="g") for number in range(4)), Message("other", group="h"))

    def handle(message):
        if message.key == 1:
            raise Recoverable()

    tally = work(handle, source, workers=5)
    assert source.verdicts == {
        0: Done(),
        1: Back(1.0),
        2: Back(1.0, touched=False),
        3: Back(1.0, touched=False),
        "other": Done(),
    }
    assert tally == {"done": 2, "retry": 1, "returned": 2}


def test_a_message_that_wants_to_be_seen_again_holds_its_group():
    """Again is no failure, but the group waits for it."""
    source = FakeSource(*(Message(number, group="g") for number in range(3)))
    work(lambda message: abate.Again(5.0), source, workers=3)
    assert source.verdicts == {0: Done(5.0), 1: Back(5.0, touched=False), 2: Back(5.0, touched=False)}


# -- leases


def test_leases_are_extended_while_the_work_lasts():
    """Each third of a lease, for what is in hand then."""
    source = FakeSource(*messages("long", "short"), lease=30.0)

    async def handle(message):
        await abate.clock.current().asleep(45.0 if message.key == "long" else 12.0)

    work(handle, source)
    assert source.extended == [["long", "short"], ["long"], ["long"], ["long"]]


def test_a_lost_lease_cancels_its_task_and_is_not_settled():
    """A handler that has lost its lease must not go on: another process has the message."""
    source = FakeSource(*messages("lost", "kept"), lease=30.0)
    source.lost = {"lost"}
    ended = []

    async def handle(message):
        try:
            await abate.clock.current().asleep(60.0)
        finally:
            ended.append((message.key, abate.clock.current().now()))

    tally = work(handle, source)
    assert ended == [("lost", 10.0), ("kept", 60.0)]
    assert source.settled == [("kept", Done())]
    assert tally == {"lost": 1, "done": 1}


def test_a_lease_that_is_found_lost_when_settling_is_reported():
    """A verdict that comes too late is refused by the source, and said."""
    source = FakeSource(*messages("late"))
    source.lost = {"late"}
    seen = []
    sink = abate.observe.install(seen.append)
    try:
        work(lambda message: None, source)
    finally:
        abate.observe.remove(sink)
    assert [event for event in seen if isinstance(event, events.LeaseLost)] == [events.LeaseLost("<lambda>", "late")]


def test_what_is_on_its_way_to_be_settled_is_not_taken_for_lost():
    """A heartbeat that comes to the source after the verdict finds nothing, and that is no loss."""

    class Slow(FakeSource):
        async def settle(self, settlements):
            self.lost |= {message.key for message, _ in settlements}  # as of now a heartbeat finds none of them
            await abate.clock.current().asleep(15.0)
            self.settled += [(message.key, verdict) for message, verdict in settlements]
            return ()

    source = Slow(*messages("a", "b"), lease=30.0)
    assert work(lambda message: None, source) == {"done": 2}
    assert source.settled == [("a", Done()), ("b", Done())]


def test_a_heartbeat_that_was_under_way_first_does_not_lose_what_is_settled():
    """Neither does one that left before the verdict and arrives after it."""

    class Late(FakeSource):
        async def extend(self, messages):
            await abate.clock.current().asleep(5.0)
            return [message for message in messages if message.key in self.lost]

        async def settle(self, settlements):
            self.lost |= {message.key for message, _ in settlements}
            await abate.clock.current().asleep(5.0)
            self.settled += [(message.key, verdict) for message, verdict in settlements]
            return ()

    async def handle(message):
        await abate.clock.current().asleep(12.0)  # the heartbeat leaves at 10

    source = Late(*messages("a"), lease=30.0)
    assert work(handle, source) == {"done": 1}


def test_a_heartbeat_that_fails_is_tried_again():
    """A source that hiccups loses no lease by itself."""
    source = FakeSource(*messages("a"), lease=30.0)
    source.extend_errors.append(ConnectionError("gone"))

    async def handle(message):
        await abate.clock.current().asleep(25.0)

    assert work(handle, source) == {"done": 1}
    assert source.extended == [["a"]]


# -- sources that fail


def test_a_source_that_fails_is_asked_again_after_a_backoff():
    """Nothing is lost, and it is not asked in a hot loop."""
    source = FakeSource(*messages("a"))
    source.receive_errors.extend(ConnectionError(str(n)) for n in range(4))
    seen = []
    sink = abate.observe.install(seen.append)
    try:
        assert work(lambda message: None, source) == {"done": 1}
    finally:
        abate.observe.remove(sink)
    assert [event.source for event in seen if isinstance(event, events.SourceFailed)] == ["tray"] * 4


def test_what_could_not_be_settled_is_settled_later():
    """A verdict is kept until the source takes it."""
    source = FakeSource(*messages(*range(6)))
    source.settle_errors.extend([ConnectionError()] * 3)
    assert work(lambda message: None, source) == {"done": 6}
    assert sorted(source.settled) == [(key, Done()) for key in range(6)]


@pytest.mark.parametrize("fate", ["late", "lost", "never"])
def test_who_is_buried_is_told_when_the_source_has_it(caplog, fate):
    """Not while that fails, and not at all if the lease was lost or the source never takes it."""
    source = FakeSource(*messages("bad"), lease=30.0)
    source.settle_errors.extend(OSError("the store is away") for _ in range(3 if fate == "late" else 100))
    if fate == "lost":
        source.settle_errors.clear()
        source.lost = {"bad"}
    seen = []

    def sink(event):
        if isinstance(event, events.Buried):
            seen.append((event.key, event.reason, "is buried" in caplog.text, list(source.settled)))

    def handle(message):
        raise PermanentFailure("no address")

    installed = abate.observe.install(sink)
    try:
        work(handle, source)
    finally:
        abate.observe.remove(installed)
    if fate == "late":
        ((key, reason, logged, settled),) = seen
        assert (key, reason, logged, [key for key, _ in settled]) == ("bad", "no address", True, ["bad"])
        first = [record.getMessage() for record in caplog.records]
        assert [i for i, text in enumerate(first) if "is buried" in text] == [len(first) - 1]
    else:
        assert seen == []
        assert "is buried" not in caplog.text


def test_one_that_cannot_be_settled_does_not_hold_up_the_others():
    """After a failure verdicts are sent one by one."""

    class Picky(FakeSource):
        refused = 0

        async def settle(self, settlements):
            if any(message.key == "bad" for message, _ in settlements) and self.refused < 5:
                self.refused += 1
                raise ValueError("bad")
            return await super().settle(settlements)

    source = Picky(*messages("bad", "a", "b", "c"))
    assert work(lambda message: None, source) == {"done": 4}
    assert source.settled[-1] == ("bad", Done())
    assert len(source.settled) == 4


def test_one_that_can_never_be_settled_is_left_to_its_lease(caplog):
    """It holds no place for ever."""

    class Deaf(FakeSource):
        async def settle(self, settlements):
            if any(message.key == "bad" for message, _ in settlements):
                raise ValueError("no such dead-letter queue")
            return await super().settle(settlements)

    source = Deaf(*messages("bad", *range(5)), lease=30.0)
    tally = work(lambda message: None, source, workers=1)
    assert tally == {"done": 6, "unsettled": 1}
    assert sorted(source.verdicts) == list(range(5))
    assert "'bad' could not be settled" in caplog.text


def test_a_source_that_does_not_wait_is_not_asked_without_a_pause():
    """An empty answer before its time is followed by a pause."""

    class Hasty(FakeSource):
        async def receive(self, most, wait):
            self.asked += 1
            return []

    with VirtualClock() as clock:

        async def main():
            source = Hasty()
            await served(abate.consumer()(lambda message: None), source, lambda: clock.asleep(10.0))
            return source.asked

        assert asyncio.run(main()) <= 10.0 / 0.05 + 2


def test_readiness_comes_back_with_the_source():
    """One heartbeat that failed is forgotten with the next one that did not."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(*messages("a"), lease=30.0)
            source.extend_errors.append(ConnectionError("gone"))

            @abate.consumer(workers=1)
            async def handle(message):
                await clock.asleep(100.0)

            async def body():
                await clock.asleep(11.0)
                assert handle.health().failing == "ConnectionError: gone"
                await clock.asleep(10.0)
                assert handle.health().ready

            await served(handle, source, body)

        asyncio.run(main())


# -- crashes


@pytest.mark.parametrize("crash", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("virtual", [True, False])
def test_a_worker_that_crashes_is_replaced_and_reported(crash, asynchronous, virtual, caplog):
    """Its message has failed once; the others are handled."""

    def handle(message):
        if message.key == "bad":
            raise crash

    async def ahandle(message):
        handle(message)

    source, seen = FakeSource(*messages("bad", *range(5))), []
    sink = abate.observe.install(seen.append)
    try:
        chosen = ahandle if asynchronous else handle
        if virtual:
            tally = work(chosen, source, workers=2)
        else:
            tally = abate.consumer(workers=2, backoff=[1.0], breaker=False)(chosen).run(source, drain=True)
    finally:
        abate.observe.remove(sink)
    assert tally == {"crashed": 1, "retry": 1, "done": 5}
    assert source.verdicts["bad"] == Back(1.0)
    assert [(event.key, event.error) for event in seen if isinstance(event, events.WorkerCrashed)] == [("bad", crash)]
    assert "crashed on 'bad'" in caplog.text


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def complain(error):
    raise AttributeError("code")


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"on": complain}, KeyError("x"), "AttributeError: code (in the rules"),
        ({"backoff": lambda retry: -1.0}, KeyError("x"), "(in the rules"),
        ({"on": KeyError}, Unspeakable(), "Unspeakable: (the error has no readable text)"),
        ({"max_receives": 1}, Unspeakable(), "Unspeakable: (the error has no readable text)"),
    ],
)
def test_rules_that_fail_themselves_bury_the_message_and_block_no_other(settings, error, reason):
    """There is always a verdict."""

    def handle(message):
        if message.key == "bad":
            raise error

    source = FakeSource(*messages("bad", "good"))
    assert work(handle, source, **{"workers": 1, **settings}) == {"buried": 1, "done": 1}
    assert source.verdicts["bad"].kind in ("fatal", "receives")
    assert reason in source.verdicts["bad"].reason


def test_stop_iteration_is_an_error_like_another():
    """Futures don't take a StopIteration, workers do."""

    def handle(message):
        raise StopIteration

    source = FakeSource(*messages("a"))
    assert abate.consumer(breaker=False)(handle).run(source, drain=True) == {"retry": 1}


def test_a_source_that_counts_in_a_way_of_its_own_can_be_drained():
    """The drain is over: what it leaves can't be told, and nothing fails for that."""

    class Counting(FakeSource):
        def depth(self):
            return len(self.messages)

    assert work(lambda message: None, Counting(*messages("a"))) == {"done": 1}


def test_a_message_that_kills_its_workers_is_buried_untouched():
    """Handed out more often than allowed: no worker sees it again."""
    source = FakeSource(Message("poison", receives=11))
    assert work(lambda message: sys.exit(1), source, max_receives=10) == {"buried": 1}
    assert source.verdicts["poison"].kind == "receives"


def test_an_object_with_an_async_call_is_a_coroutine_function():
    """It is cut off when its time is over."""

    class Handler:
        async def __call__(self, message):
            await abate.clock.current().asleep(100.0)

    assert work(Handler(), FakeSource(*messages("a")), timeout=5.0) == {"retry": 1}


def test_a_plain_function_that_returns_an_awaitable_is_awaited():
    """As a lambda around a coroutine function does."""
    seen = []

    async def later(message):
        seen.append(message.key)

    assert work(lambda message: later(message), FakeSource(*messages("a"))) == {"done": 1}
    assert seen == ["a"]


# -- time for one message


def test_a_task_is_cut_off_when_its_time_is_over():
    """It has failed, and comes back as after an overload."""

    async def handle(message):
        await abate.clock.current().asleep(100.0)

    source = FakeSource(*messages("a"))
    assert work(handle, source, timeout=5.0) == {"retry": 1}


def test_a_plain_function_sees_its_deadline():
    """It can't be cut off; clients inside keep the deadline."""
    seen = []
    work(lambda message: seen.append(abate.remaining()), FakeSource(*messages("a")), timeout=5.0)
    assert seen == [5.0]


# -- stopping


def test_what_is_in_hand_is_finished_and_the_rest_is_left():
    """A durable source keeps what was not taken."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(*messages(*range(10)))

            @abate.consumer(workers=2)
            async def handle(message):
                await clock.asleep(10.0)

            tally = await served(handle, source, lambda: clock.asleep(15.0))
            assert tally == {"done": 4}
            assert len(source.messages) == 6
            assert clock.now() == 20.0

        asyncio.run(main())


def test_what_is_not_done_within_the_grace_goes_back_untouched():
    """A task is cancelled, and its message given back at once."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(*messages("slow", "quick"))

            @abate.consumer(workers=2)
            async def handle(message):
                await clock.asleep(100.0 if message.key == "slow" else 8.0)

            tally = await served(handle, source, lambda: clock.asleep(5.0), grace=10.0)
            assert source.settled == [("quick", Done()), ("slow", Back(0.0, touched=False))]
            assert tally == {"done": 1, "returned": 1}
            assert clock.now() == 15.0

        asyncio.run(main())


def test_a_plain_function_that_hangs_does_not_hold_up_the_end(caplog):
    """Its message is left to its lease, and that is said."""
    began, hanging = threading.Event(), threading.Event()

    @abate.consumer(workers=2)
    def handle(message):
        began.set()
        hanging.wait(30.0)

    async def main():
        source = FakeSource(*messages("stuck"))

        async def until_begun():
            while not began.is_set():
                await asyncio.sleep(0.001)

        assert await served(handle, source, until_begun, grace=0.01) == {}
        assert source.settled == []

    try:
        asyncio.run(main())
    finally:
        hanging.set()
    assert "['stuck'] not done within the grace" in caplog.text
    assert "crashed" not in caplog.text


def test_a_stop_gives_back_what_a_thread_still_brings():
    """A receive in a thread can't be broken off: what it brings after the stop goes back untouched."""
    asked, brought = threading.Event(), threading.Event()

    class Slow(PlainFakeSource):
        def receive(self, most, wait):
            if asked.is_set():
                return ()
            asked.set()
            brought.wait(30.0)
            return super().receive(most, wait)

    @abate.consumer()
    def handle(message):
        raise AssertionError("it must not be handled")

    async def main():
        source = Slow(*messages("late"))

        async def until_asked():
            while not asked.is_set():
                await asyncio.sleep(0.001)
            handle.stop()
            await asyncio.sleep(0)
            brought.set()

        assert await served(handle, source, until_asked) == {"returned": 1}
        assert source.settled == [("late", Back(0.0, touched=False))]

    asyncio.run(main())


def test_cancelling_the_run_gives_back_what_is_in_hand():
    """A cancelled run ends at once, and nothing stays behind."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(*messages("a", "b"))

            @abate.consumer(workers=2)
            async def handle(message):
                await clock.asleep(1000.0)

            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(1.0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert sorted(source.settled) == [(key, Back(0.0, touched=False)) for key in "ab"]
            assert handle.health().live is False

        asyncio.run(main())


def test_it_runs_once_at_a_time():
    """A second run of the same consumer is refused while the first one runs."""

    async def main():
        @abate.consumer()
        async def handle(message): ...

        async def body():
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="handle runs already"):
                await handle.arun(FakeSource())

        await served(handle, FakeSource(), body)

    asyncio.run(main())


# -- the circuit breaker


def test_an_open_breaker_stops_the_taking():
    """A dependency is down: after the first failures no message is taken, then one at a time until one succeeds."""
    with VirtualClock() as clock:

        async def main():
            down, handled = True, []

            @abate.consumer(workers=1, breaker=CircuitBreaker(min_calls=5, pause=100.0), backoff=[1.0])
            async def handle(message):
                handled.append(clock.now())
                await clock.asleep(1.0)
                if down:
                    raise ConnectionError

            source = FakeSource(*messages(*range(100)))
            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(40.0)
            assert len(handled) == 5
            down = False
            while len(source.settled) < 100:
                await clock.asleep(10.0)
            handle.stop()
            tally = await running
            assert 50.0 <= handled[5] - 5.0 <= 150.0
            assert tally == {"retry": 5, "done": 95}

        asyncio.run(main())


def test_an_open_breaker_shows_in_health():
    """For how many seconds nothing is taken, then that one is on trial; it is as ready as before."""
    with VirtualClock() as clock:

        async def main():
            down = True

            @abate.consumer(workers=1, breaker=CircuitBreaker(min_calls=5, pause=100.0), backoff=[1.0])
            async def handle(message):
                await clock.asleep(1.0)
                if down:
                    raise ConnectionError

            source = FakeSource(*messages(*range(20)))
            assert handle.health().breaker_open is None
            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(2.5)
            assert handle.health().breaker_open is None
            await clock.asleep(7.5)
            health = handle.health()
            assert (health.live, health.ready, health.in_hand) == (True, True, 0)
            assert 45.0 <= health.breaker_open <= 145.0
            down = False
            await clock.asleep(health.breaker_open + 0.5)
            assert (handle.health().breaker_open, handle.health().in_hand) == (0.0, 1)
            await clock.asleep(1.0)
            assert handle.health().breaker_open is None
            handle.stop()
            await running

        asyncio.run(main())


def test_messages_that_are_at_fault_themselves_do_not_trip_the_breaker():
    """Permanent failures say nothing about a dependency."""

    def handle(message):
        raise PermanentFailure("no")

    assert work(handle, FakeSource(*messages(*range(50))), breaker=CircuitBreaker(min_calls=5)) == {"buried": 50}


def test_an_open_breaker_is_reported(caplog):
    """It is logged, and an event."""
    seen = []
    sink = abate.observe.install(seen.append)

    def handle(message):
        raise ConnectionError

    try:
        work(handle, FakeSource(*messages(*range(6))), breaker=CircuitBreaker(min_calls=5, pause=10.0), workers=1)
    finally:
        abate.observe.remove(sink)
    assert [type(event) for event in seen].count(events.BreakerOpened) == 2
    assert "most messages fail" in caplog.text
