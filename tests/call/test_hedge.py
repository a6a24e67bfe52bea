"""Hedged attempts: when a second one is sent, who wins, who pays, what is learned, and that nothing is left behind."""

import asyncio
import gc

import pytest
import trio

import abate
from abate import Policy
from abate.call.hedge import Hedge
from abate.schedule.timeouts import Timeouts
from abate.testing import Script, VirtualClock, after


def learned(seconds=1.0, **settings):
    """Timeouts that know how long requests take: the hedge is due after `seconds`, within 2 %."""
    timeouts = Timeouts(0.01, **settings)
    for _ in range(100):
        timeouts.observe(seconds)
    return timeouts


def make(policy=None, timeouts=None):
    return Hedge(policy or Policy(on=OSError, max_attempts=1), timeouts or learned())


async def sleep(seconds):
    await abate.clock.current().asleep(seconds)


# -- tasks: when, and who wins


def test_a_quick_answer_is_not_hedged(run, counting_budget):
    """One attempt, nothing paid, the answer."""
    budget = counting_budget()
    script = Script(after(0.5, "fine"))

    async def main():
        hedge = make(Policy(on=OSError, budget=budget))
        assert await hedge.acall(script.acall, 1, two=2) == "fine"

    run(main)
    assert script.calls == [((1,), {"two": 2})]
    assert (budget.requested, budget.deposited) == (0, 1)


def test_a_slow_attempt_is_hedged_after_the_learned_quantile(run, counting_budget):
    """The second one answers first, is paid for, and the call deposits once."""
    budget = counting_budget()
    script = Script(after(60.0, "slow"), after(0.5, "quick"))

    async def main():
        hedge = make(Policy(on=OSError, budget=budget), learned(2.0))
        assert await hedge.acall(script.acall) == "quick"
        assert abate.clock.current().now() == pytest.approx(2.5, rel=0.03)

    run(main)
    assert len(script.calls) == 2
    assert (budget.granted, budget.refunded, budget.deposited) == (1, 0, 1)


def test_the_first_attempt_may_still_win(run):
    """It answers before the second one does."""
    script = Script(after(1.5, "first"), after(5.0, "second"))

    async def main():
        assert await make().acall(script.acall) == "first"
        assert abate.clock.current().now() == pytest.approx(1.5)

    run(main)
    assert len(script.calls) == 2


def test_nothing_is_hedged_while_too_little_is_known(run):
    """The ceiling stands for the quantile: the first attempt has that long."""
    script = Script(after(29.0, "fine"))

    async def main():
        assert await make(timeouts=Timeouts()).acall(script.acall) == "fine"

    run(main)


def test_the_quantile_is_a_setting(run):
    """Half of the requests take 1 s, the others 10 s: a hedge at 0.4 comes after the first."""
    script = Script(after(60.0, "slow"), after(0.0, "quick"))

    async def main():
        timeouts = Timeouts()
        for _ in range(50):
            timeouts.observe(1.0)
            timeouts.observe(10.0)
        assert await Hedge(Policy(on=OSError), timeouts, quantile=0.4).acall(script.acall) == "quick"
        assert abate.clock.current().now() == pytest.approx(1.0, rel=0.02)

    run(main)


@pytest.mark.parametrize("loser", ["first", "second"])
def test_the_loser_is_cancelled_and_gone_before_the_answer_is_there(run, loser):
    """Its cleaning up is waited for, also where that takes time."""
    log = []

    async def work():
        number = len(log) + 1
        log.append(number)
        try:
            await sleep(3.0 if (number == 1) == (loser == "second") else 60.0 if number == 1 else 0.5)
            if number == 2 and loser == "second":
                await sleep(60.0)
            return number
        except BaseException:
            log.append(f"{number} cut off")
            raise
        finally:
            log.append(f"{number} gone")

    async def main():
        answer = await make().acall(work)
        log.append(f"answer {answer}")

    run(main)
    won, lost = (1, 2) if loser == "second" else (2, 1)
    assert log == [1, 2, f"{won} gone", f"{lost} cut off", f"{lost} gone", f"answer {won}"]


def test_of_two_answers_at_once_one_counts(run):
    """Both attempts are told to end at the same moment."""
    go = []

    async def work():
        event = trio.Event() if abate.clock.in_trio() else asyncio.Event()
        go.append(event)
        if len(go) == 2:
            await sleep(1.0)
            for waiting in go:
                waiting.set()
        await event.wait()
        return len(go)

    async def main():
        timeouts = learned()
        assert await make(timeouts=timeouts).acall(work) == 2
        assert timeouts._here().requests.total == 101

    run(main)


# -- tasks: failures


def test_a_failure_before_the_hedge_is_an_ordinary_one(run):
    """The policy retries it; every attempt can be hedged."""
    script = Script(OSError("one"), after(60.0, "slow"), after(0.5, "fine"))

    async def main():
        assert await make(Policy(on=OSError, backoff=[0.0])).acall(script.acall) == "fine"

    run(main)
    assert len(script.calls) == 3


@pytest.mark.parametrize(("first", "second"), [("fail", "answer"), ("answer", "fail")])
def test_an_attempt_that_fails_waits_for_the_other(run, first, second):
    """One of two fails, the other answers later: there is no failure."""
    ends = {"fail": OSError("gone"), "answer": "fine"}
    script = Script(
        after(2.0 if first == "fail" else 9.0, ends[first]), after(0.5 if second == "fail" else 8.0, ends[second])
    )

    async def main():
        assert await make().acall(script.acall) == "fine"

    clock = run(main)
    assert clock.now() == pytest.approx(9.0, rel=0.01)


@pytest.mark.parametrize(("late", "quick"), [(9.0, 0.5), (2.0, 30.0)])
def test_when_both_fail_the_error_that_came_first_is_raised(run, late, quick):
    """As one failure of the policy's, which may retry it."""
    script = Script(after(late, OSError("first attempt")), after(quick, OSError("second attempt")))

    async def main():
        with pytest.raises(OSError, match="first attempt" if late == 2.0 else "second attempt") as caught:
            await make().acall(script.acall)
        assert abate.report(caught.value).attempts == 1

    run(main)


def test_a_result_that_the_policy_would_retry_is_no_answer(run):
    """The good one wins, though it comes later; where both are bad, the first of them is what the policy sees."""
    policy = Policy(on=abate.on_result(lambda status: status == 503), max_attempts=1)
    better = Script(after(2.0, 503), after(4.0, 200))
    worse = Script(after(2.0, 503), after(4.0, 503))

    async def main():
        assert await make(policy).acall(better.acall) == 200
        assert await make(policy).acall(worse.acall) == 503

    run(main)
    assert len(better.calls) == len(worse.calls) == 2


def test_a_rule_that_raises_is_the_callers_to_see(run):
    """As without a hedge: the error itself, in no group."""

    def broken(result):
        raise LookupError("rule")

    async def main():
        with pytest.raises(LookupError, match="rule"):
            await make(Policy(on=abate.on_result(broken), max_attempts=1)).acall(Script("fine").acall)

    run(main)


@pytest.mark.parametrize("exit", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_exit_in_an_attempt_ends_the_call(run, exit):
    """It is no failure: the other attempt is not waited for, and it is raised as it is, in no group."""
    script = Script(after(60.0, "slow"), exit())

    async def main():
        with pytest.raises(exit):
            await make().acall(script.acall)
        assert abate.clock.current().now() < 2.0

    run(main)


# -- tasks: cancelling the caller


def test_cancelling_the_caller_cancels_both():
    """Neither attempt is left, nor a task."""
    log = []

    async def work():
        log.append("begun")
        try:
            await sleep(60.0)
        finally:
            await asyncio.sleep(0)
            log.append("gone")

    async def main():
        task = asyncio.create_task(make().acall(work))
        await sleep(5.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["begun", "begun", "gone", "gone"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with VirtualClock():
        asyncio.run(main())


def test_cancelling_the_caller_cancels_both_under_trio():
    """The nursery holds them both."""
    log = []

    async def work():
        log.append("begun")
        try:
            await sleep(60.0)
        finally:
            log.append("gone")

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make().acall, work)
            await sleep(5.0)
            nursery.cancel_scope.cancel()
        assert log == ["begun", "begun", "gone", "gone"]

    with VirtualClock():
        trio.run(main)


def test_an_attempt_timeout_cuts_both_off(run):
    """The policy's own timeout is around the race, and its retry is a new one."""
    script = Script(after(60.0, "slow"), after(60.0, "slow too"), after(0.1, "fine"))

    async def main():
        policy = Policy(on=TimeoutError, attempt_timeout=3.0, backoff=[0.0])
        assert await make(policy).acall(script.acall) == "fine"

    run(main)
    assert len(script.calls) == 3


# -- what is learned


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((after(0.5, "fine"),), 0.5),  # its own latency
        ((after(3.0, "fine"), after(60.0, "slow")), 3.0),  # its own, though a hedge was sent
        ((after(60.0, "slow"), after(2.0, "fine")), 6.0),  # cut off after 1 + 2 seconds: slower than that
        ((after(2.5, OSError()), after(60.0, "fine")), 5.0),  # no answer after 2.5: slower than that
        ((after(0.5, TimeoutError()),), 1.0),  # cut off by a client
    ],
)
def test_the_first_attempt_is_learned_from(run, outcomes, expected):
    """Twice the time at which it was cut off, where it was."""

    async def main():
        timeouts = learned()
        counts = timeouts._here().requests._counts
        before = list(counts)
        try:
            await make(timeouts=timeouts).acall(Script(*outcomes).acall)
        except OSError:
            pass
        (new,) = [bucket for bucket, count in enumerate(counts) if count != before[bucket]]
        assert timeouts._seconds(new) == pytest.approx(expected, rel=0.04)

    run(main)


def test_a_failure_that_comes_at_once_is_not_learned_from(run):
    """A refused connection says nothing about how long an answer takes; nor does a caller that leaves early."""
    timeouts = Timeouts(0.5)

    async def main():
        for _ in range(100):
            timeouts.observe(1.0)
        with pytest.raises(OSError):
            await make(timeouts=timeouts).acall(Script(ConnectionRefusedError()).acall)
        with pytest.raises(TimeoutError):
            async with abate.clock.current().within(0.1):
                await make(timeouts=timeouts).acall(Script(after(60.0, "slow")).acall)
        assert timeouts._here().requests.total == 100

    run(main)


def test_an_error_is_not_held_back(run):
    """Nothing keeps the error and its frames once the caller has let go of it."""

    class Marked(OSError):
        """Told from others."""

    async def main():
        with pytest.raises(Marked):
            await make().acall(Script(Marked()).acall)

    run(main)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Marked)]
