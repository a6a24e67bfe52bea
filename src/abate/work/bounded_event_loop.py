"""An event loop that closes in bounded time, whatever its tasks and threads do.

`asyncio.run` waits forever for a task that ignores its cancellation, and for a thread of `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.logs import Log

T = TypeVar("T")

log = Log("abate.work")

MIN_CLOSE_TIMEOUT = 0.1
"""Seconds for cancelled tasks to end when no time is left."""


def run_bounded(main: Coroutine[Any, Any, T], left: Callable[[], float]) -> T:
    """Run a coroutine as `asyncio.run` does, but close the event loop within `left()` seconds."""
    runner = asyncio.Runner()
    loop = runner.get_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    try:
        return runner.run(main)
    finally:
        try:
            runner.run(_close_event_loop(threads, left()))
        finally:
            asyncio.set_event_loop(None)
            loop.close()  # not `runner.close()`, which would wait


async def _close_event_loop(threads: ThreadPoolExecutor, seconds: float) -> None:
    """End the tasks, generators and threads of this event loop, within `seconds`."""
    clock, loop = clocks.MACHINE, asyncio.get_running_loop()
    ends = clock.now() + seconds
    await cancel_tasks([task for task in asyncio.all_tasks() if task is not asyncio.current_task()], seconds, clock)
    ended = asyncio.Event()

    def shut_down() -> None:
        threads.shutdown()
        try:
            loop.call_soon_threadsafe(ended.set)
        except RuntimeError:
            pass  # the event loop is closed already

    try:
        cut = clock.within(max(MIN_CLOSE_TIMEOUT, ends - clock.now()))
        async with cut:
            await loop.shutdown_asyncgens()
            threading.Thread(target=shut_down, daemon=True).start()
            await ended.wait()
    except AttemptTimeout:
        log.error("a thread or an asynchronous generator did not end in time, and is left running")


async def cancel_tasks(tasks: Collection[asyncio.Future[Any]], seconds: float, clock: Clock) -> bool:
    """Cancel tasks. Return whether all have ended within `seconds`; a task that ignores this is left running."""
    for task in tasks:
        task.cancel()
    try:
        cut = clock.within(seconds)
        async with cut:
            if tasks:
                await asyncio.wait(tasks)
    except AttemptTimeout:
        pass
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio logs it
    return all(task.done() for task in tasks)
