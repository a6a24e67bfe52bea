"""The virtual loop of asyncio: order, what it cannot do, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import abate
from abate import sim
from abate.sim.agenda import Agenda
from abate.sim.event_loop import VirtualLoop

Send = Callable[[], Awaitable[None]]


def run(code: Any, count: int = 1, horizon: float = 10.0) -> sim.Run:
    clients = sim.Clients(count=count, arrivals="once", code=code)
    return sim.World(clients, [sim.Service("api", service_time=0.1)], horizon=horizon).run(engine="coroutine")


def test_timers_go_by_their_instants_and_what_is_ready_goes_first() -> None:
    """One timer at a time, in the order of instants, then of their setting; in between all that became ready."""
    agenda, seen = Agenda(), []
    loop: Any = VirtualLoop(agenda)

    def note(name: str) -> None:
        seen.append((name, loop.time()))

    def first() -> None:
        note("first")
        loop.call_soon(note, "ready")

    loop.call_at(2.0, note, "later")
    loop.call_later(1.0, first)
    loop.call_at(1.0, note, "second")
    loop.call_at(1.0, note, "cancelled").cancel()
    loop.call_soon(note, "now")
    agenda.at(1.0, note, "the world")
    with loop.running():
        agenda.run(until=5.0)
    assert seen == [("now", 0.0), ("first", 1.0), ("ready", 1.0), ("second", 1.0), ("the world", 1.0), ("later", 2.0)]


def test_a_sleep_ends_at_its_own_instant() -> None:
    """A thousand waits of a tenth are a thousand additions, to the last bit."""

    async def sleepy(send: Send) -> None:
        for _ in range(1000):
            await asyncio.sleep(0.1)

    (took,) = run(sleepy, horizon=200.0).latencies
    instant = 0.0
    for _ in range(1000):
        instant += 0.1
    assert took == instant


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("run_in_executor", lambda loop: asyncio.to_thread(print)),
        ("create_connection", lambda loop: asyncio.open_connection("localhost", 80)),
        ("create_server", lambda loop: asyncio.start_server(print, "localhost", 0)),
        ("getaddrinfo", lambda loop: loop.getaddrinfo("localhost", 80)),
        ("subprocess_exec", lambda loop: asyncio.create_subprocess_exec("true")),
        ("add_signal_handler", lambda loop: loop.add_signal_handler(signal.SIGUSR1, print)),
        ("add_reader", lambda loop: loop.add_reader(0, print)),
        ("sock_recv", lambda loop: loop.sock_recv(None, 1)),
        ("run_until_complete", lambda loop: loop.run_until_complete(None)),
        ("stop", lambda loop: loop.stop()),
    ],
)
def test_what_needs_more_than_tasks_and_timers_ends_the_run(operation: str, code: Any) -> None:
    """The error names the operation, even where the code would have swallowed it."""

    async def reaching_out(send: Send) -> None:
        try:
            await code(asyncio.get_running_loop())
        except Exception:
            await send()

    with pytest.raises(abate.AbateError, match=f"{operation} does not work in a simulated world"):
        run(reaching_out)


def test_another_thread_cannot_call_into_the_loop() -> None:
    """Its caller gets the error; from this thread the call works."""
    caught: list[Exception] = []

    async def threaded(send: Send) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def elsewhere() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except abate.AbateError as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(done.set)
        await done.wait()

    assert run(threaded).successes == 1
    assert "call_soon_threadsafe from another thread" in str(caught[0])


def test_a_world_runs_within_a_loop_that_runs() -> None:
    """As in a notebook: the outer loop, its task and its time are what they were."""

    async def outer() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        successes = run(napping).successes
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task
        await asyncio.sleep(0)
        return successes

    assert asyncio.run(outer()) == 1


async def napping(send: Send) -> None:
    await asyncio.sleep(1.0)


# -- the end


async def unmoved(send: Send) -> None:
    await asyncio.sleep(1000.0)


async def tidy(send: Send) -> None:
    try:
        await asyncio.sleep(1000.0)
    finally:
        await asyncio.sleep(0)
        await send()


async def swallowing(send: Send) -> None:
    try:
        await asyncio.sleep(1000.0)
    except asyncio.CancelledError:
        pass


async def guarded(send: Send) -> None:
    try:
        await asyncio.shield(asyncio.sleep(1000.0))
    finally:
        asyncio.create_task(send())  # type: ignore[arg-type]  # noqa: RUF006


async def served_too_late(send: Send) -> None:
    await asyncio.gather(*(send() for _ in range(200)))


async def chatter() -> AsyncIterator[int]:
    try:
        while True:
            yield 1
            await asyncio.sleep(1.0)
    finally:
        await asyncio.sleep(0)


async def listening(send: Send) -> None:
    async for _ in chatter():
        if asyncio.get_running_loop().time() > 1000.0:
            break


async def leaving(send: Send) -> None:
    async for _ in chatter():
        break
    held.append(chatter())
    await anext(held[-1])
    await asyncio.sleep(1000.0)


held: list[Any] = []


@pytest.mark.parametrize("code", [unmoved, tidy, swallowing, guarded, served_too_late, listening, leaving])
def test_the_horizon_ends_all_tasks_without_a_word(
    code: Any, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelled and closed, whatever they do about it; nothing that happens then is counted."""
    found = run(code, count=3)
    held.clear()
    gc.collect()
    attempts = 600 if code is served_too_late else 0
    assert (found.calls, found.attempts, found.successes, found.failures) == (3, attempts, 0, 0)
    assert found.notes == ()
    assert not recwarn.list
    assert not caplog.records


def test_a_task_that_fails_when_it_is_cancelled_is_noted() -> None:
    """No other code would receive its error."""

    async def breaking() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            raise ZeroDivisionError

    async def code(send: Send) -> None:
        task = asyncio.create_task(breaking())
        await asyncio.sleep(1000.0)
        await task

    assert run(code).notes == ("a task has failed: ZeroDivisionError()",)


def test_a_task_that_will_not_end_is_noted() -> None:
    """It is cancelled some times, and closed at last."""

    async def stubborn(send: Send) -> None:
        while True:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                pass

    async def restless(send: Send) -> None:
        pause = 1000.0
        while True:
            try:
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                pause = 0.0

    for code in (stubborn, restless):
        assert run(code, count=2).notes[-1] == "2 tasks did not end when they were cancelled"


def test_a_loop_that_is_over_takes_nothing_on() -> None:
    """As in asyncio, later calls raise an error."""
    loop: Any = VirtualLoop(Agenda())
    assert (loop.cancel_all(), loop.is_closed(), loop.is_running()) == (0, True, False)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_later(1.0, print)


def test_an_error_after_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """There is no run left to note it in."""
    loop: Any = VirtualLoop(Agenda())
    loop.cancel_all()
    loop.call_exception_handler({"message": "too late", "exception": KeyError("x")})
    assert [record.getMessage() for record in caplog.records] == ["too late: KeyError('x')"]
