"""Slots for coroutine handlers."""

import asyncio

import pytest

from abate.work.task_slots import TaskSlots
from abate.work.thread_pool import NotStarted


async def entering(slots, count):
    """Start tasks that enter; let them get as far as they can."""
    tasks = [asyncio.ensure_future(slots.enter()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


def test_no_more_enter_than_there_are_slots():
    """The others enter in order as slots become free."""

    async def main():
        slots = TaskSlots(2)
        tasks = await entering(slots, 4)
        assert [task.done() for task in tasks] == [True, True, False, False]
        assert slots.waiting == 2
        slots.leave()
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, True, True, False]
        slots.grow()
        await asyncio.sleep(0)
        assert tasks[3].done()
        slots.shrink()
        slots.leave()
        (late,) = await entering(slots, 1)
        assert not late.done()
        slots.leave()
        await late

    asyncio.run(main())


def test_waiting_tasks_can_be_taken_back():
    """Those that have entered go on."""

    async def main():
        slots = TaskSlots(1)
        first, *others = await entering(slots, 3)
        slots.take_back()
        assert slots.waiting == 0
        for task in others:
            with pytest.raises(NotStarted):
                await task
        await first
        slots.leave()
        await slots.enter()

    asyncio.run(main())


@pytest.mark.parametrize("admitted", [False, True])
def test_a_cancelled_task_keeps_no_slot(admitted):
    """Also if it is cancelled just after it got one."""

    async def main():
        slots = TaskSlots(1)
        _, cancelled, last = await entering(slots, 3)
        if admitted:
            slots.leave()
        cancelled.cancel()
        if not admitted:
            slots.leave()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(last, 30)
        assert slots.waiting == 0

    asyncio.run(main())


def test_a_cancelled_task_does_not_wait_any_more():
    """It is forgotten at once."""

    async def main():
        slots = TaskSlots(1)
        _, cancelled = await entering(slots, 2)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert slots.waiting == 0

    asyncio.run(main())
