"""The daemon thread pool, which runs plain functions."""

import asyncio
import threading

import pytest

from abate.testing import VirtualClock
from abate.work import thread_pool
from abate.work.thread_pool import DaemonThreadPool, NotStarted


class UnstartableThread(threading.Thread):
    """A thread whose start fails a given number of times, as when the system is out of threads."""

    left = 0

    def start(self):
        if UnstartableThread.left:
            UnstartableThread.left -= 1
            raise RuntimeError("can't start new thread")
        super().start()


@pytest.fixture
def fail_starts(monkeypatch):
    monkeypatch.setattr(thread_pool, "Thread", UnstartableThread)

    def set_failures(count):
        UnstartableThread.left = count

    yield set_failures
    UnstartableThread.left = 0


def pool_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("abate-")}


def test_a_thread_that_fails_to_start_is_not_counted(fail_starts):
    """The caller gets the error, and the next call starts a thread."""

    async def main():
        pool = DaemonThreadPool(1)
        fail_starts(2)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await pool.run(sum, (1, 2))
        assert await asyncio.wait_for(pool.run(sum, (1, 2)), 30) == 3
        pool.shutdown()

    asyncio.run(main())


def test_ensure_idle_starts_threads_ahead_of_need(fail_starts):
    """It returns how many are idle, and raises if none could be started."""

    async def main():
        pool = DaemonThreadPool(3)
        fail_starts(1)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.ensure_idle(2)
        assert pool.ensure_idle(2) == 2
        fail_starts(1)
        assert pool.ensure_idle(3) == 2
        assert pool.ensure_idle(5) == 3
        pool.shutdown()

    asyncio.run(main())


def test_ensure_idle_raises_if_all_threads_are_busy():
    """A busy thread is not idle."""
    go = threading.Event()

    async def main():
        pool = DaemonThreadPool(1)
        waiting = asyncio.ensure_future(pool.run(go.wait, 30))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="none of 1 threads is free"):
            pool.ensure_idle(1)
        go.set()
        await waiting
        assert pool.ensure_idle(1) == 1
        pool.shutdown()

    asyncio.run(main())


def test_grow_replaces_a_hung_thread_and_shrink_ends_one(wait_until):
    """The pool never has more threads than its size."""
    before, hangs = pool_threads(), threading.Event()  # threads of earlier tests may still be ending

    async def main():
        pool = DaemonThreadPool(1)
        hanging = asyncio.ensure_future(pool.run(hangs.wait, 30))
        await asyncio.sleep(0)
        pool.grow()
        assert await asyncio.wait_for(pool.run(sum, (1, 2)), 30) == 3
        assert len(pool_threads() - before) == 2
        hangs.set()
        await hanging
        pool.shrink()
        wait_until(lambda: len(pool_threads() - before) == 1)
        assert await asyncio.wait_for(pool.run(sum, (1, 2)), 30) == 3
        pool.shutdown()

    asyncio.run(main())
    wait_until(lambda: not pool_threads() - before)


def test_shrink_before_the_extra_thread_started_ends_no_thread():
    """Threads start only when they are needed."""

    async def main():
        pool = DaemonThreadPool(1)
        pool.grow()
        pool.shrink()
        assert await asyncio.wait_for(pool.run(sum, (1, 2)), 30) == 3
        pool.shutdown()

    asyncio.run(main())


def test_virtual_time_uses_no_threads():
    """Functions run in the calling thread, so any number is idle."""
    with VirtualClock():
        assert DaemonThreadPool(1).ensure_idle(7) == 7


def test_functions_that_no_thread_has_begun_can_be_taken_back():
    """Their callers get `NotStarted`; those that run are finished."""
    go, ran = threading.Event(), []

    async def main():
        pool = DaemonThreadPool(1)
        running = asyncio.ensure_future(pool.run(go.wait, 30))
        waiting = [asyncio.ensure_future(pool.run(ran.append, number)) for number in range(3)]
        await asyncio.sleep(0)
        assert pool.waiting >= 2  # the thread may not have begun the first
        pool.take_back()
        go.set()
        results = await asyncio.gather(running, *waiting, return_exceptions=True)
        assert all(isinstance(result, NotStarted) for result in results[1:])
        assert results[0] is True or isinstance(results[0], NotStarted)
        assert pool.waiting == 0
        assert await pool.run(sum, (1, 2)) == 3
        pool.shutdown()

    asyncio.run(main())
    assert ran == []


def test_taking_back_does_not_stop_the_end_of_threads(wait_until):
    """A shutdown may come first."""
    before = pool_threads()

    async def main():
        pool = DaemonThreadPool(2)
        await pool.run(sum, (1, 2))
        pool.shutdown()
        pool.take_back()

    asyncio.run(main())
    wait_until(lambda: not pool_threads() - before)


def test_every_result_arrives_however_many_end_at_once():
    """The event loop is woken once for several functions, and none is forgotten."""

    async def main():
        pool = DaemonThreadPool(4)
        results = await asyncio.gather(*(pool.run(pow, number, 2) for number in range(2000)))
        assert results == [number**2 for number in range(2000)]
        pool.shutdown()

    asyncio.run(main())
