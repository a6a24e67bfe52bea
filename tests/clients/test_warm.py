"""Warm-up: a number of connections opened at the same time, in threads and tasks."""

import asyncio
import threading

import pytest

import abate
from abate.clients.warm import awarm, warm
from abate.testing import VirtualClock
from tests.event_loops import RUNNERS


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs an async function without arguments, under asyncio and under trio."""
    return RUNNERS[request.param]


async def sleep(seconds):
    await abate.clock.current().asleep(seconds)


# -- threads


def test_connections_are_opened_at_the_same_time():
    """Each waits until all have begun."""
    barrier, seen = threading.Barrier(5), []
    opened = warm(5, lambda: barrier.wait(60), progress=lambda done, n: seen.append((done, n)))
    assert opened == 5
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_connections_that_fail_are_counted_out():
    """They are progress, and not open."""
    ends, seen, lock = [OSError(), "open", OSError(), "open"], [], threading.Lock()

    def connect():
        with lock:
            end = ends.pop()
        if isinstance(end, OSError):
            raise end
        return end

    assert warm(4, connect, progress=lambda done, n: seen.append(done)) == 2
    assert seen == [1, 2, 3, 4]


def test_when_all_fail_the_first_error_is_raised():
    """As it is."""
    errors = [ConnectionRefusedError("one")]

    def connect():
        raise errors[0]

    with pytest.raises(ConnectionRefusedError) as caught:
        warm(3, connect)
    assert caught.value is errors[0]


def test_what_is_not_open_at_the_deadline_is_not_waited_for():
    """The others are open; if none is, that is a timeout."""
    over, ends, lock = threading.Event(), [False, True, True], threading.Lock()

    def connect():
        with lock:
            quick = ends.pop()
        if not quick:
            over.wait(60)

    def progress(done, n):
        if done == 2:
            clock.advance(30.0)

    with VirtualClock() as clock:
        assert warm(3, connect, deadline=30.0, progress=progress) == 2
    with pytest.raises(TimeoutError, match=r"none of 2 connections was open after 0\.01 s"):
        warm(2, lambda: over.wait(60), deadline=0.01)
    over.set()


def test_connecting_has_a_deadline_that_clients_keep():
    """The one given, or the caller's if that is nearer."""
    left = []
    with abate.deadline(3.0):
        warm(2, lambda: left.append(abate.remaining()), deadline=60.0)
    warm(2, lambda: left.append(abate.remaining()), deadline=50.0)
    assert all(seconds <= 3.0 for seconds in left[:2])
    assert all(3.0 < seconds <= 50.0 for seconds in left[2:])


def test_a_progress_function_that_raises_ends_it():
    """It is the caller's own."""

    def progress(done, n):
        raise LookupError("progress")

    with pytest.raises(LookupError):
        warm(3, lambda: None, progress=progress)


@pytest.mark.parametrize(
    ("n", "settings", "error", "message"),
    [
        (-1, {}, ValueError, "n must be a whole number of at least 0, not -1"),
        (1.5, {}, TypeError, "n must be a whole number"),
        (1, {"deadline": 0.0}, ValueError, "deadline must be a number above 0, not 0.0"),
        (1, {"progress": 7}, TypeError, "progress must be a function of two numbers, not 7"),
    ],
)
def test_arguments_that_cannot_be_are_named(n, settings, error, message):
    """Before anything is opened."""
    with pytest.raises(error, match=message):
        warm(n, lambda: None, **settings)
    with pytest.raises(error, match=message):
        asyncio.run(awarm(n, lambda: sleep(0.0), **settings))


# -- tasks


def test_tasks_open_at_the_same_time(run):
    """A second each is a second in all."""
    seen = []

    async def main():
        assert await awarm(5, lambda: sleep(1.0), progress=lambda done, n: seen.append((done, n))) == 5
        assert abate.clock.current().now() == 1.0

    with VirtualClock():
        run(main)
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_tasks_that_fail_are_counted_out_unless_all_do(run):
    """And then the first error is raised, in no group."""
    ends = [OSError(), None, OSError()]

    async def connect():
        end = ends.pop()
        if end is not None:
            raise end

    async def fail():
        raise ConnectionRefusedError("all")

    async def main():
        assert await awarm(3, connect) == 1
        with pytest.raises(ConnectionRefusedError, match="all"):
            await awarm(3, fail)

    run(main)


def test_tasks_that_are_late_are_cancelled(run):
    """None is left; if none was open, that is a timeout."""
    delays, gone = [60.0, 1.0, 2.0], []

    async def connect():
        delay = delays.pop()
        try:
            await sleep(delay)
        finally:
            gone.append(delay)

    async def main():
        assert await awarm(3, connect) == 2
        assert gone == [2.0, 1.0, 60.0] or gone == [1.0, 2.0, 60.0]
        assert abate.clock.current().now() == 10.0
        with pytest.raises(TimeoutError, match="none of 2 connections was open after 3 s"):
            await awarm(2, lambda: sleep(60.0), deadline=3.0)

    with VirtualClock():
        run(main)


def test_an_async_progress_function_that_raises_ends_it(run):
    """With its own error, in no group."""

    def progress(done, n):
        raise LookupError("progress")

    async def main():
        with pytest.raises(LookupError):
            await awarm(3, lambda: sleep(0.0), progress=progress)

    run(main)
