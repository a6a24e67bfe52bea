"""Cancellation, in an attempt and in a wait, under asyncio and trio: at once, refunded, with no further attempt."""

import asyncio

import pytest
import trio

import abate
from abate.testing import Recorder

FOREVER = 3600.0


class Watch:
    """A function that fails, or hangs, and says when it was reached."""

    def __init__(self, hangs: bool, event, sleep):
        self.calls = 0
        self.reached = event
        self.hangs = hangs
        self.sleep = sleep

    async def __call__(self):
        self.calls += 1
        self.reached.set()
        if self.hangs:
            await self.sleep(FOREVER)
        raise ConnectionError


def a_policy() -> abate.Policy:
    return abate.Policy(
        on=ConnectionError, max_attempts=5, backoff=[FOREVER], budget=abate.Budget(ratio=0.0, reserve=1.0, window=10.0)
    )


def check(policy: abate.Policy, watch: Watch, seen: Recorder) -> None:
    """No further attempt, nothing spent; a call that was being retried tells the reason."""
    assert watch.calls == 1
    assert policy.budget.balance() == 10.0
    if not watch.hangs:
        assert [event.reason for event in seen.of(abate.events.GaveUp)] == ["cancelled"]


async def block(policy, function):
    async for attempt in policy.attempts():
        with attempt:
            await function()


FORMS = {
    "decorator": lambda policy, function: policy(function)(),
    "acall": lambda policy, function: policy.acall(function),
    "bounded": lambda policy, function: policy.replace(timeout=2 * FOREVER).acall(function),
    "block": block,
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
in_attempt_and_wait = pytest.mark.parametrize("hangs", [True, False], ids=["attempt", "wait"])


@each_form
@in_attempt_and_wait
def test_cancelling_under_asyncio(form, hangs):
    """A cancelled task ends at once, refunds what it had withdrawn, and makes no further attempt."""

    async def main():
        policy, watch = a_policy(), Watch(hangs, asyncio.Event(), asyncio.sleep)
        with Recorder() as seen:
            task = asyncio.ensure_future(form(policy, watch))
            await watch.reached.wait()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return policy, watch, seen

    check(*asyncio.run(main()))


@each_form
@in_attempt_and_wait
def test_cancelling_under_trio(form, hangs):
    """A cancelled scope ends at once, refunds what was withdrawn, and makes no further attempt."""

    async def main():
        policy, watch = a_policy(), Watch(hangs, trio.Event(), trio.sleep)

        async def run():
            await form(policy, watch)

        with Recorder() as seen:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await watch.reached.wait()
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        return policy, watch, seen

    check(*trio.run(main))


def test_an_exit_in_a_threads_wait_passes_and_refunds():
    """KeyboardInterrupt in a sleep is not caught, and the withdrawal comes back."""

    class Interrupted(abate.clock.MachineClock):
        def sleep(self, seconds):
            raise KeyboardInterrupt

    def fails():
        raise ConnectionError

    policy = abate.Policy(on=ConnectionError, clock=Interrupted(), budget=abate.Budget(ratio=0.0, reserve=1.0))
    with pytest.raises(KeyboardInterrupt):
        policy.call(fails)
    assert policy.budget.balance() == 10.0


@pytest.mark.parametrize("exit_", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_a_program_is_never_retried(exit_):
    """Errors beside Exception pass through the first attempt untouched."""
    calls = []

    @abate.retry(on=Exception)
    def ends():
        calls.append(1)
        raise exit_

    with pytest.raises(exit_) as caught:
        ends()
    assert len(calls) == 1
    assert abate.report(caught.value) is None
