"""How a call waits for its turn at a dispatcher: in a thread, in an asyncio task, in a trio task."""

from __future__ import annotations

from collections.abc import Awaitable

from abate.admit.dispatcher import Dispatcher
from abate.admit.shelter_queue import Waiter
from abate.clock import MachineClock, in_trio
from abate.errors import AttemptTimeout
from abate.wakeups import AsyncioWakeup, ThreadWakeup, TrioWakeup, now

THREAD_POLL = 1.0
"""Seconds after which a waiting thread checks for itself, even without a wake-up."""


def wait_in_thread(dispatcher: Dispatcher, waiter: Waiter) -> None:
    """Wait in this thread until the waiter has its answer."""
    wakeup = waiter.wakeup = ThreadWakeup()
    while waiter.answer is None or not dispatcher.claim_answer(waiter):
        # a wakeup does not interrupt a clock of the user's: check now and then
        due = min(dispatcher.due(waiter), dispatcher.clock.now() + THREAD_POLL)
        notified = wakeup.wait(dispatcher.clock, due - dispatcher.clock.now())
        if waiter.answer is None:
            dispatcher.on_timer(waiter, now(dispatcher.clock, None if notified else due))


def wait_in_task(dispatcher: Dispatcher, waiter: Waiter) -> Awaitable[None]:
    """Wait in this task until the waiter has its answer."""
    if in_trio() or not isinstance(dispatcher.clock, MachineClock):
        return _within(dispatcher, waiter)
    return _in_asyncio(dispatcher, waiter)


async def _in_asyncio(dispatcher: Dispatcher, waiter: Waiter) -> None:
    # thousands may wait: one timer and one future each, and no extra frame
    wakeup = waiter.wakeup = AsyncioWakeup()
    while waiter.answer is None or not dispatcher.claim_answer(waiter):
        due = dispatcher.due(waiter)
        notified = wakeup.notified()
        alarm = wakeup.expire_after(max(0.0, due - dispatcher.clock.now()), notified)
        try:
            await notified
        finally:
            alarm.cancel()
        expired = wakeup.rearm()
        if waiter.answer is None:
            dispatcher.on_timer(waiter, now(dispatcher.clock, due if expired else None))


async def _within(dispatcher: Dispatcher, waiter: Waiter) -> None:
    wakeup = waiter.wakeup = TrioWakeup() if in_trio() else AsyncioWakeup()
    while waiter.answer is None or not dispatcher.claim_answer(waiter):
        due, expired = dispatcher.due(waiter), False
        try:
            cut = dispatcher.clock.within(max(0.0, due - dispatcher.clock.now()))
            async with cut:
                await wakeup.notified()
        except AttemptTimeout:
            expired = True
        wakeup.rearm()
        if waiter.answer is None:
            dispatcher.on_timer(waiter, now(dispatcher.clock, due if expired else None))
