"""Threads for what can't be awaited."""

import asyncio
import threading

import pytest

from abate.testing import VirtualClock
from abate.work import thread_pool as crews
from abate.work.thread_pool import DaemonThreadPool


class Refusing(threading.Thread):
    """A system that has no more threads to give, for so many times."""

    left = 0

    def start(self):
        if Refusing.left:
            Refusing.left -= 1
            raise RuntimeError("can't start new thread")
        super().start()


@pytest.fixture
def refuse(monkeypatch):
    monkeypatch.setattr(crews, "Thread", Refusing)

    def times(many):
        Refusing.left = many

    yield times
    Refusing.left = 0


def crew_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("abate-")}


def test_a_thread_that_can_not_be_started_is_not_counted(refuse):
    """Whoever wanted it is told, and the next one that asks has a thread."""

    async def main():
        crew = DaemonThreadPool(1)
        refuse(2)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await crew.run(sum, (1, 2))
        assert await asyncio.wait_for(crew.run(sum, (1, 2)), 30) == 3
        crew.shutdown()

    asyncio.run(main())


def test_idle_threads_are_ready_before_they_are_needed(refuse):
    """As many as the system gives; an error where that is none."""

    async def main():
        crew = DaemonThreadPool(3)
        refuse(1)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            crew.ensure_idle(2)
        assert crew.ensure_idle(2) == 2
        refuse(1)
        assert crew.ensure_idle(3) == 2
        assert crew.ensure_idle(5) == 3
        crew.shutdown()

    asyncio.run(main())


def test_none_is_ready_where_all_are_busy():
    """Threads that work are not idle ones."""
    go = threading.Event()

    async def main():
        crew = DaemonThreadPool(1)
        waiting = asyncio.ensure_future(crew.run(go.wait, 30))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="none of 1 threads is free"):
            crew.ensure_idle(1)
        go.set()
        await waiting
        assert crew.ensure_idle(1) == 1
        crew.shutdown()

    asyncio.run(main())


def test_one_that_hangs_is_replaced_and_one_too_many_ends(settled):
    """There are never more threads than that."""
    before, hangs = crew_threads(), threading.Event()  # of earlier tests, some may be about to end

    async def main():
        crew = DaemonThreadPool(1)
        hanging = asyncio.ensure_future(crew.run(hangs.wait, 30))
        await asyncio.sleep(0)
        crew.grow()
        assert await asyncio.wait_for(crew.run(sum, (1, 2)), 30) == 3
        assert len(crew_threads() - before) == 2
        hangs.set()
        await hanging
        crew.shrink()
        settled(lambda: len(crew_threads() - before) == 1)
        assert await asyncio.wait_for(crew.run(sum, (1, 2)), 30) == 3
        crew.shutdown()

    asyncio.run(main())
    settled(lambda: not crew_threads() - before)


def test_taking_a_replacement_back_ends_none_that_was_never_started():
    """A thread is started when it is needed."""

    async def main():
        crew = DaemonThreadPool(1)
        crew.grow()
        crew.shrink()
        assert await asyncio.wait_for(crew.run(sum, (1, 2)), 30) == 3
        crew.shutdown()

    asyncio.run(main())


def test_in_virtual_time_there_are_no_threads():
    """Functions run on the spot, however many are wanted."""
    with VirtualClock():
        assert DaemonThreadPool(1).ensure_idle(7) == 7
