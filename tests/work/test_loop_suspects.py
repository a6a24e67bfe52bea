"""Messages that may have killed a process are worked on alone."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate.testing import VirtualClock
from abate.work import Back, Bury, Done, Message
from abate.work import loop as loops
from abate.work import suspects as suspects_module
from abate.work.backoff_guard import BackoffGuard
from abate.work.verdict_rules import VerdictRules
from tests.work.fake_source import FakeSource, messages


def suspect(key, **fields):
    return Message(key, receives=3, unanswered=2, **fields)


class Shelf(FakeSource):
    """A source that hands out again what comes back, with what it knows of its receives."""

    async def receive(self, most, wait):
        now = abate.clock.current().now()
        batch = [message for message in self.messages if (message.handle or 0.0) <= now][:most]
        for message in batch:
            self.messages.remove(message)
        self.taken += batch
        if not batch and wait:
            await abate.clock.current().asleep(0.25)
        return batch

    async def settle(self, settlements):
        for message, verdict in settlements:
            self.settled.append((message.key, verdict))
            if isinstance(verdict, Back):
                due = abate.clock.current().now() + verdict.after
                unanswered = 0 if verdict.touched else message.unanswered
                receives = message.receives + verdict.touched
                self.messages.append(
                    Message(message.key, receives=receives, unanswered=unanswered, group=message.group, handle=due)
                )
        return ()


class Watch:
    """A handler that writes down what was at work at the same time."""

    def __init__(self, seconds=10.0):
        self.busy, self.company, self.began = set(), {}, []
        self.seconds = seconds

    async def __call__(self, message):
        self.began.append((message.key, abate.clock.current().now()))
        for other in self.busy:
            self.company[other].add(message.key)
        self.company[message.key] = set(self.busy)
        self.busy.add(message.key)
        await abate.clock.current().asleep(self.seconds)
        self.busy.remove(message.key)


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 5))
def test_a_suspect_is_worked_on_alone_and_everything_is_done(suspects, workers):
    """No other handler runs beside a suspect, and no message waits forever."""
    handle = Watch()
    with VirtualClock():
        source = Shelf(*(suspect(key) if odd else Message(key) for key, odd in enumerate(suspects)), lease=30.0)

        async def main():
            consumer = abate.consumer(workers=workers)(handle)
            running = asyncio.create_task(consumer.arun(source))
            while sum(verdict == Done() for _, verdict in source.settled) < len(suspects):
                await abate.clock.current().asleep(1.0)
            consumer.stop()
            await running

        asyncio.run(main())
    for key, odd in enumerate(suspects):
        if odd:
            assert handle.company[key] == set()
    ordinary = suspects.count(False)
    if ordinary >= workers > 1 and ordinary == len(suspects):
        assert any(handle.company.values())


def test_what_is_in_hand_ends_first_and_other_suspects_go_back_untouched():
    """No receive is burned for those that wait, and nothing is taken beside the one."""
    handle = Watch()
    with VirtualClock() as clock:
        source = Shelf(Message("a"), suspect("s"), suspect("t"), Message("b"), *messages("c", "d"), lease=30.0)

        async def main():
            consumer = abate.consumer(workers=4)(handle)
            running = asyncio.create_task(consumer.arun(source))
            await clock.asleep(5.0)
            assert handle.busy == {"a", "b"}
            assert not source.verdicts["t"].touched
            await clock.asleep(10.0)
            assert handle.busy == {"s"}
            assert consumer.health().in_hand == 1
            await clock.asleep(60.0)
            consumer.stop()
            await running
            assert {key for key, verdict in source.settled if verdict == Done()} == set("abcdst")
            assert handle.company["t"] == set()

        asyncio.run(main())


def test_after_a_suspect_messages_are_taken_one_by_one_until_an_ordinary_one_comes():
    """Where there is one, there are more: so fewer have to go back."""
    asked = []

    class Asked(FakeSource):
        async def receive(self, most, wait):
            asked.append(most)
            return await super().receive(most, wait)

    with VirtualClock():
        source = Asked(*messages("a", "b", "c"), *map(suspect, "stu"), *messages("d", "e"), lease=30.0)
        tally = abate.consumer(workers=4)(Watch(1.0)).run(source, drain=True)
    assert asked[:5] == [4, 1, 1, 1, 3]
    assert tally == {"done": 8}


def test_a_suspect_that_no_company_leaves_begins_all_the_same():
    """A handler that takes an hour, without a timeout: others are not held up for longer than a while."""
    with VirtualClock() as clock:
        began = {}

        async def main():
            @abate.consumer(workers=2)
            async def handle(message):
                began[message.key] = clock.now()
                await clock.asleep(3600.0 if message.key == "long" else 1.0)

            source = Shelf(Message("long"), suspect("s"), Message("next"), lease=20.0)
            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(100.0)
            handle.stop()
            running.cancel()
            await asyncio.wait({running})
            assert began["s"] == pytest.approx(suspects_module.ALONE_TIMEOUT)
            assert began["next"] == pytest.approx(suspects_module.ALONE_TIMEOUT + 1.0, abs=0.3)

        asyncio.run(main())


def test_a_suspect_at_work_does_not_keep_others_waiting_for_ever():
    """A handler that takes an hour, without a timeout: after a while others are taken beside it."""
    with VirtualClock() as clock:
        began = {}

        async def main():
            @abate.consumer(workers=2)
            async def handle(message):
                began[message.key] = clock.now()
                await clock.asleep(3600.0 if message.key == "s" else 1.0)

            source = Shelf(suspect("s"), lease=20.0)
            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(10.0)
            source.put(*messages("a", "b"))
            await clock.asleep(suspects_module.ALONE_TIMEOUT + 5.0)
            handle.stop()
            running.cancel()
            await asyncio.wait({running})
            assert began["s"] == 0.0
            assert began["a"] == pytest.approx(suspects_module.ALONE_TIMEOUT)
            assert began["b"] == pytest.approx(suspects_module.ALONE_TIMEOUT + 1.0, abs=0.3)

        asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"receives": 3, "unanswered": 2}, "receives in a row that ended without an answer: 2"),
        ({"receives": 6, "unanswered": None}, "it was received 6 times, and is not settled"),
    ],
)
def test_the_log_says_once_why_the_other_workers_are_idle(caplog, fields, why):
    """With the message, and what made it a suspect."""
    with VirtualClock():
        source = Shelf(*messages("a"), Message("s", **fields), *messages("b"), lease=30.0)
        abate.consumer(workers=4, name="orders", max_receives=5)(Watch()).run(source, drain=True)
    (line,) = (record.getMessage() for record in caplog.records if "alone" in record.getMessage())
    assert line == f"orders: 's' is handled alone: {why}"


def test_a_drain_ends_when_no_suspect_is_left():
    """However many came together; they are taken one by one."""
    handle = Watch(1.0)
    with VirtualClock():
        source = Shelf(*map(suspect, "stuv"), *messages("a", "b"), lease=30.0)
        tally = abate.consumer(workers=4)(handle).run(source, drain=True)
    assert tally["done"] == 6
    assert not source.messages
    assert all(handle.company[key] == set() for key in "stuv")


def test_a_stop_works_off_the_suspects_of_a_source_that_ends_with_the_process():
    """As with a drain, none is left behind."""
    handle = Watch(1.0)
    with VirtualClock() as clock:

        async def main():
            source = Shelf(Message("a"), lease=30.0)
            source.durable = False
            consumer = abate.consumer(workers=4)(handle)
            running = asyncio.create_task(consumer.arun(source, grace=60.0))
            await clock.asleep(0.5)
            source.put(*map(suspect, "stuv"))
            consumer.stop()
            assert (await running)["done"] == 5
            assert not source.messages

        asyncio.run(main())


def test_only_a_suspect_that_may_begin_is_paid_for():
    """Those that go back, as another one is worked on alone, cost the retry budget nothing."""
    budget = abate.Budget(ratio=0.0, reserve=1.0, window=10.0)
    backoff_guard = BackoffGuard(budget)
    with VirtualClock() as clock:

        async def main():
            loop = loops.Loop(
                "orders",
                FakeSource(lease=30.0),
                Watch(),
                VerdictRules(abate.Backoff(1.0)),
                workers=4,
                asynchronous=True,
                backoff_guard=backoff_guard,
            )
            hastened = [suspect(key) for key in "stuv"]
            for message in hastened:
                backoff_guard.record(message, Back(60.0), clock.now())
            loop._accept(hastened)
            assert loop.tally == {"returned": 3}

        before = budget.balance()
        asyncio.run(main())
        assert budget.balance() == before - 1


def test_a_stop_gives_a_waiting_suspect_back():
    """No handler has begun with it."""
    with VirtualClock() as clock:

        async def main():
            source = Shelf(Message("a"), suspect("s"), lease=30.0)
            handle = abate.consumer(workers=2)(Watch())
            running = asyncio.create_task(handle.arun(source, grace=100.0))
            await clock.asleep(1.0)
            handle.stop()
            await running
            assert source.settled == [("s", Back(0.0, touched=False)), ("a", Done())]
            assert clock.now() == 10.0

        asyncio.run(main())


def test_a_suspect_whose_lease_is_lost_while_it_waits_delays_no_other():
    """It is not ours any more."""
    with VirtualClock() as clock:

        async def main():
            source = FakeSource(Message("a"), suspect("s"), *messages("b", "c"), lease=3.0)
            source.lost = {"s"}
            watch = Watch()
            handle = abate.consumer(workers=2)(watch)
            running = asyncio.create_task(handle.arun(source))
            await clock.asleep(2.0)
            assert watch.began == [("a", 0.0), ("b", 1.0)]
            handle.stop()
            assert await running == {"lost": 1, "done": 2}

        asyncio.run(main())


def test_a_suspect_of_a_group_keeps_its_place():
    """Those before it are done first; those behind it go back, and none passes it."""
    with VirtualClock():
        watch = Watch(1.0)
        source = FakeSource(
            Message("a", group="g"),
            suspect("s", group="g"),
            Message("b", group="g"),
            Message("x", group="h"),
            lease=30.0,
        )
        abate.consumer(workers=4)(watch).run(source, drain=True)
    assert [key for key, _ in watch.began] == ["a", "x", "s"]
    assert source.verdicts == {"a": Done(), "x": Done(), "s": Done(), "b": Back(0.0, touched=False)}
    assert watch.company["s"] == set()


def test_a_second_suspect_of_a_group_takes_along_what_is_behind_it():
    """Order holds where suspects go back."""
    with VirtualClock():
        watch = Watch(1.0)
        source = FakeSource(suspect("s"), suspect("t", group="g"), Message("b", group="g"), lease=30.0)
        abate.consumer(workers=4)(watch).run(source, drain=True)
    assert [key for key, _ in watch.began] == ["s"]
    assert source.verdicts["b"] == source.verdicts["t"]
    assert 0 <= source.verdicts["t"].after <= suspects_module.SUSPECT_SPREAD


def test_a_suspect_that_hangs_does_not_keep_others_from_working():
    """After its time it is given up on, as any other."""
    with VirtualClock() as clock:

        async def main():
            source = Shelf(suspect("s"), *messages("a", "b"), lease=1000.0)
            done = []

            @abate.consumer(workers=2, timeout=5.0)
            async def handle(message):
                if message.key == "s":
                    try:
                        await clock.asleep(1e6)
                    except asyncio.CancelledError:
                        await clock.asleep(1e6)
                done.append((message.key, clock.now()))

            running = asyncio.create_task(handle.arun(source, grace=0.0))
            await clock.asleep(20.0)
            # these came with it, and were done before it began
            assert [key for key, _ in done] == ["a", "b"]
            source.put(Message("c"))
            await clock.asleep(1.0)
            assert done[-1][0] == "c"
            handle.stop()
            await running

        asyncio.run(main())


def test_what_had_its_turn_alone_and_no_answer_is_buried_and_delays_no_other():
    """It is settled without a worker, so it needs not be alone."""
    with VirtualClock():
        watch = Watch(1.0)
        source = FakeSource(Message("poison", receives=4, unanswered=3), *messages("a"), lease=30.0)
        assert abate.consumer(max_receives=3)(watch).run(source, drain=True) == {"buried": 1, "done": 1}
    assert isinstance(source.verdicts["poison"], Bury)
    assert watch.began == [("a", 0.0)]


def test_if_it_is_unknown_how_receives_ended_those_past_the_bound_are_alone():
    """As of SQS: what was answered each time would have been buried by now."""
    with VirtualClock():
        watch = Watch(1.0)
        fields = {"unanswered": None}
        source = FakeSource(Message("s", receives=4, **fields), Message("a", receives=3, **fields), lease=30.0)
        abate.consumer(workers=4, max_receives=3)(watch).run(source, drain=True)
    assert watch.began == [("a", 0.0), ("s", 1.0)]


@pytest.mark.parametrize("receives", [4, 7, 1000])
def test_where_the_source_ends_a_harmless_message_is_buried_untouched(receives):
    """Other processes may have given it back: it is worked on alone, however often it was received."""
    with VirtualClock():
        watch = Watch(1.0)
        fields = {"unanswered": None}
        source = FakeSource(Message("s", receives=receives, **fields), Message("a", receives=3, **fields), lease=30.0)
        source.redrives = True
        assert abate.consumer(workers=4, max_receives=3)(watch).run(source, drain=True) == {"done": 2}
    assert watch.began == [("a", 0.0), ("s", 1.0)]


def test_after_one_unanswered_receive_no_message_is_alone():
    """As a restart leaves behind: full speed."""
    with VirtualClock() as clock:
        watch = Watch(1.0)
        source = FakeSource(*(Message(key, receives=2, unanswered=1) for key in range(8)), lease=30.0)
        abate.consumer(workers=4)(watch).run(source, drain=True)
        assert clock.now() == 2.0


@pytest.mark.parametrize("order", [("killer", "innocent"), ("innocent", "killer")])
def test_a_message_that_may_kill_does_not_start_beside_a_suspect(order):
    """It was received ahead, and so is a receive behind its neighbour, which may not lose its last one."""
    handle = Watch(1.0)
    fields = {"killer": {"receives": 2, "unanswered": 1}, "innocent": {"receives": 3, "unanswered": 2}}
    with VirtualClock() as clock:
        source = Shelf(*(Message(key, **fields[key]) for key in order), Message("fresh"), lease=30.0)

        async def main():
            consumer = abate.consumer(workers=4, max_receives=3)(handle)
            running = asyncio.create_task(consumer.arun(source))
            await clock.asleep(0.5)
            assert handle.busy == {"fresh"}
            assert not source.verdicts["killer"].touched
            await clock.asleep(60.0)
            consumer.stop()
            await running

        asyncio.run(main())
    assert {key for key, verdict in source.settled if verdict == Done()} == {"killer", "innocent", "fresh"}
    assert handle.company["innocent"] == set()


def test_a_message_that_was_in_flight_once_runs_beside_others_while_no_suspect_waits():
    """One killed process, as by a deployment, changes nothing."""
    handle = Watch(1.0)
    with VirtualClock():
        source = Shelf(*(Message(key, receives=2, unanswered=1) for key in "abc"), lease=30.0)
        assert abate.consumer(workers=4)(handle).run(source, drain=True) == {"done": 3}
    assert handle.company["a"] == {"b", "c"}


def test_a_suspect_does_not_wait_beside_a_message_that_may_kill():
    """It goes back untouched, and is handled alone when that message has ended."""
    handle = Watch(1.0)
    with VirtualClock() as clock:
        source = Shelf(Message("killer", receives=2, unanswered=1), lease=30.0)

        async def main():
            consumer = abate.consumer(workers=4)(handle)
            running = asyncio.create_task(consumer.arun(source))
            await clock.asleep(0.1)
            source.put(suspect("innocent"))
            await clock.asleep(0.5)
            assert handle.busy == {"killer"}
            assert not source.verdicts["innocent"].touched
            await clock.asleep(60.0)
            consumer.stop()
            await running

        asyncio.run(main())
    assert source.verdicts["innocent"] == Done()
    assert handle.company["innocent"] == set()
