"""Scripted functions, records and the off switch."""

import asyncio

import pytest
import trio

import abate
from abate.testing import Recorder, Script, VirtualClock, after, off


def test_outcomes_are_played_in_order():
    """Exceptions and exception types are raised, anything else is returned, arguments are kept."""
    script = Script(ValueError, KeyError("k"), 7, None)
    with pytest.raises(ValueError):
        script(1)
    with pytest.raises(KeyError, match="k"):
        script(2, x=3)
    assert [script(), script()] == [7, None]
    assert script.calls == [((1,), {}), ((2,), {"x": 3}), ((), {}), ((), {})]


def test_an_error_that_is_played_again_keeps_no_frames_of_before():
    """One error may stand in all the scripts of a test file."""
    down, lengths = OSError("down"), set()
    for _ in range(3):
        with pytest.raises(OSError) as raised:
            Script(down)()
        lengths.add(len(raised.traceback))
    assert len(lengths) == 1


def test_a_call_too_many_is_an_assertion():
    """A script that has run out says so, and no policy retries that by accident."""
    with pytest.raises(AssertionError, match="call 2 of a script with 1 outcomes"):
        abate.Policy(on=OSError, backoff=[0.0]).call(Script(OSError()))


@pytest.mark.parametrize("run", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_an_async_script_takes_its_time(run):
    """`acall` plays the same outcomes, late ones on the context's clock."""
    script = Script(after(3.0, OSError("late")), after(1.0, "fine"))

    async def main():
        with pytest.raises(OSError, match="late"):
            await script.acall("a")
        return await script.acall("b")

    with VirtualClock() as clock:
        assert run(main) == "fine"
    assert clock.now() == 4.0
    assert script.calls == [(("a",), {}), (("b",), {})]


def test_late_by_less_than_nothing_is_refused():
    """`after` takes seconds from zero on."""
    with pytest.raises(ValueError, match="seconds must be a number at least 0, not -1"):
        after(-1, "fine")


def test_off_makes_one_attempt_in_this_context_only():
    """Inside the block a call is made once; outside it is retried as ever."""
    policy = abate.Policy(on=OSError, backoff=[0.0])
    script = Script(OSError(), OSError(), "fine")
    with off(), pytest.raises(OSError) as caught:
        policy.call(script)
    assert abate.report(caught.value).reason == "attempts"
    assert policy.call(script) == "fine"


def test_off_does_not_reach_other_tasks():
    """A task that was started before the switch goes on retrying."""

    async def main():
        gate = asyncio.Event()
        script = Script(OSError(), "fine")

        async def retrying():
            await gate.wait()
            return await abate.Policy(on=OSError, backoff=[0.0]).acall(script.acall)

        task = asyncio.create_task(retrying())
        with off():
            gate.set()
            return await task

    assert asyncio.run(main()) == "fine"


def test_a_recorder_sorts_events_by_type():
    """`of` picks the events of one type."""
    with VirtualClock(), Recorder() as seen:
        abate.Policy(on=OSError).call(Script(OSError(), "fine"))
    assert [event.attempts for event in seen.of(abate.events.Recovered)] == [2]
    assert seen.of(abate.events.GaveUp) == []
