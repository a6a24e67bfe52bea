"""The clients' own code: any async function, with whatever it uses to retry, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import stamina
import tenacity

import abate
from abate import sim

Send = Callable[[], Awaitable[None]]

OUTAGE = sim.Trigger("error", at=1.0, for_=3.0)
API = sim.Service("api", workers=3, service_time=0.1, queue_limit=10, error_rate=0.1)
ORDERS = abate.Policy(name="orders", on=sim.Answer, max_attempts=3, backoff=[1.0], budget=abate.Budget(0.5, reserve=1))
FREELY = ORDERS.replace(budget=abate.Budget.unlimited())


def world(code: Any = "", policy: abate.Policy | None = None, service: sim.Service = API, **clients: Any) -> sim.World:
    settings = {"count": 20, "rate": 0.5, **clients}
    return sim.World(sim.Clients(**settings, code=code), [service], policy, [OUTAGE], horizon=8.0)


def once(code: Any, count: int = 1, service: sim.Service | None = None) -> sim.Run:
    """Each client makes one call, in a world where nothing goes wrong but what the service does by itself."""
    served = service or sim.Service("api", service_time=0.1)
    clients = sim.Clients(count=count, arrivals="once", code=code)
    return sim.World(clients, [served], horizon=10.0).run(engine="coroutine")


async def by_acall(send: Send) -> None:
    await ORDERS.acall(send)


@ORDERS
async def decorated(send: Send) -> None:
    await send()


async def by_block(send: Send) -> None:
    async for attempt in ORDERS.attempts():
        with attempt:
            await send()


@pytest.mark.parametrize("code", [by_acall, decorated, by_block])
@pytest.mark.parametrize("kind", ["open", "serial"])
def test_abate_in_every_form_does_what_the_policy_of_the_world_would(code: Any, kind: str) -> None:
    """Decorator, call and block, with a budget that follows the simulated clock: exact's counts, reasons and all."""
    exact = world(policy=ORDERS, kind=kind).run(seed=3)
    run = world(code, kind=kind).run(seed=3, engine="coroutine")
    assert exact.reasons.keys() >= {"budget"}
    assert (run.series, run.reasons, run.latencies, run.loads) == (
        exact.series,
        exact.reasons,
        exact.latencies,
        exact.loads,
    )
    assert ORDERS.budget.balance() == 10.0  # the process's own is not touched


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(sim.Answer), stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)
)
async def by_tenacity(send: Send) -> None:
    await send()


async def by_tenacity_block(send: Send) -> None:
    async for attempt in tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)):
        with attempt:
            await send()


@stamina.retry(on=sim.Answer, attempts=3, timeout=None, wait_initial=1.0, wait_max=1.0, wait_jitter=0.0)
async def by_stamina(send: Send) -> None:
    await send()


async def by_hand(send: Send) -> None:
    for _ in range(2):
        try:
            return await send()
        except sim.Answer:
            await asyncio.sleep(1.0)
    await send()


@pytest.mark.parametrize("code", [by_tenacity, by_tenacity_block, by_stamina, by_hand])
def test_other_peoples_retries_run_too(code: Any) -> None:
    """tenacity, stamina and a plain loop that wait a second each make the attempts that such a policy makes."""
    exact = world(policy=FREELY).run(seed=5)
    run = world(code).run(seed=5, engine="coroutine")
    assert exact.failures > 0
    assert (run.series, run.latencies, run.loads) == (exact.series, exact.latencies, exact.loads)
    assert run.reasons == {"fatal": exact.failures}
    assert run.notes == ()


def test_the_module_random_is_seeded_for_the_run_and_put_back() -> None:
    """Code that draws from it is repeated by the seed; the draws of the program outside the world are unchanged."""

    async def jittered(send: Send) -> None:
        await asyncio.sleep(random.random())
        await send()

    random.seed(1)
    first = random.random()
    random.seed(1)
    same, again, other = (world(jittered).run(seed, engine="coroutine") for seed in (1, 1, 2))
    assert random.random() == first
    assert same.series == again.series
    assert same.series != other.series


async def timed_out(send: Send) -> None:
    async with asyncio.timeout(0.35):
        await send()


async def waited_for(send: Send) -> None:
    await asyncio.wait_for(send(), 0.35)


@pytest.mark.parametrize("code", [timed_out, waited_for])
def test_a_timeout_of_the_code_abandons_the_request(code: Any) -> None:
    """Ten at once, 0.1 s each: three are served in time, the others for nothing, or dropped in their turn."""
    run = once(code, count=10)
    assert (run.successes, run.reasons) == (3, {"fatal": 7})
    assert run.loads["api"].served == 10
    assert run.loads["api"].wasted == pytest.approx(0.7)
    dropped = once(code, count=10, service=sim.Service("api", service_time=0.1, drop_expired=True))
    assert (dropped.loads["api"].served, dropped.loads["api"].expired) == (4, 6)


def test_a_deadline_of_abate_travels_with_the_request() -> None:
    """A service that drops expired requests knows them by their deadline, without a cancellation."""

    async def hurried(send: Send) -> None:
        with abate.deadline(0.35):
            await asyncio.wait({asyncio.create_task(send())}, timeout=2.0)

    run = once(hurried, count=10, service=sim.Service("api", service_time=0.1, drop_expired=True))
    assert (run.loads["api"].served, run.loads["api"].expired) == (4, 6)


async def gathered(send: Send) -> None:
    await asyncio.gather(send(), send())


async def grouped(send: Send) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        group.create_task(send())


async def signalled(send: Send) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, event.set)
    await event.wait()
    await gathered(send)


async def queued(send: Send) -> None:
    queue: asyncio.Queue[Send] = asyncio.Queue(1)

    async def produce() -> None:
        for _ in range(2):
            await queue.put(send)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        for _ in range(2):
            await (await queue.get())()


@pytest.mark.parametrize(("code", "took"), [(gathered, 0.2), (grouped, 0.2), (signalled, 0.7), (queued, 0.2)])
def test_the_tools_of_asyncio_work_in_virtual_time(code: Any, took: float) -> None:
    """gather, TaskGroup, Event, Queue: two attempts each, one after the other in the single worker."""
    run = once(code)
    assert (run.attempts, run.successes) == (2, 1)
    assert run.latencies == pytest.approx([took])


def test_a_semaphore_holds_clients_back() -> None:
    """Of ten clients that share one with two places, two at a time are in the service."""
    places = asyncio.Semaphore(2)

    async def limited(send: Send) -> None:
        async with places:
            await send()

    run = once(limited, count=10, service=sim.Service("api", workers=10, service_time=0.5))
    assert run.latencies == pytest.approx([0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 2.0, 2.0, 2.5, 2.5])


def test_gates_without_a_clock_follow_the_simulated_one() -> None:
    """A bucket of one token per second lets ten clients pass one after the other."""
    bucket = abate.TokenBucket(rate=1.0, burst=1)

    async def paced(send: Send) -> None:
        await bucket.aacquire()
        await send()

    assert once(paced, count=5).latencies == pytest.approx([0.1, 1.1, 2.1, 3.1, 4.1])


def test_what_a_gate_refuses_is_no_mystery() -> None:
    """A first attempt that a gate of the code did not admit counts as one that a policy's gate did not admit."""
    policy = abate.Policy(on=sim.Answer, gate=abate.TokenBucket(rate=0.001, burst=2))
    run = once(policy.acall, count=5)
    assert (run.successes, run.reasons, run.notes) == (2, {"budget": 3}, ())


def test_code_sees_the_context_that_the_world_runs_in() -> None:
    """A context variable that was set outside has its value in the code, and what the code sets stays there."""
    tenant: ContextVar[str] = ContextVar("tenant")
    tenant.set("acme")
    seen: list[str] = []

    async def code(send: Send) -> None:
        seen.append(tenant.get())
        tenant.set("other")
        await send()

    once(code, count=3)
    assert (seen, tenant.get()) == (["acme"] * 3, "acme")


def test_a_deadline_around_the_run_is_not_one_of_the_clients() -> None:
    """It is in another time: the policy's calls go on past it, as in the exact engine."""
    with abate.deadline(0.01):
        run = world(policy=FREELY).run(seed=5, engine="coroutine")
    assert run.series == world(policy=FREELY).run(seed=5).series


# -- what goes wrong


def test_an_error_that_comes_from_no_service_is_noted() -> None:
    """It may be a mistake in the code: the calls have failed, and the reader is told by what."""

    async def mistaken(send: Send) -> None:
        await send()
        raise KeyError("id")

    run = once(mistaken, count=3)
    assert run.reasons == {"fatal": 3}
    assert run.notes == ("3 calls failed with KeyError('id'), which does not come from a service",)


def test_an_error_in_the_background_is_noted() -> None:
    """Errors of a task that is not awaited, and of a callback, are in the notes."""

    async def background() -> None:
        raise ZeroDivisionError

    async def careless(send: Send) -> None:
        asyncio.create_task(background())  # noqa: RUF006
        asyncio.get_running_loop().call_soon(lambda: {}["key"])
        await send()

    notes = once(careless).notes
    assert len(notes) == 2
    assert "never retrieved: ZeroDivisionError()" in notes[0] + notes[1]
    assert "KeyError('key')" in notes[0] + notes[1]


def test_of_many_errors_in_the_background_a_few_are_told_and_the_others_counted() -> None:
    """Notes don't grow with the calls."""

    async def careless(send: Send) -> None:
        asyncio.get_running_loop().call_soon(lambda: {}["key"])

    notes = once(careless, count=50).notes
    assert len(notes) == 6
    assert notes[-1] == "45 more uncaught errors"


def test_calls_that_wait_for_what_never_comes_are_noted() -> None:
    """Nothing is ready and no timer is set: the run ends, and says so."""

    async def stuck(send: Send) -> None:
        await asyncio.Event().wait()

    run = once(stuck, count=4)
    assert (run.calls, run.successes, run.failures) == (4, 0, 0)
    assert run.notes == ("4 calls wait for something that never happens",)


def test_code_that_cancels_itself_has_failed() -> None:
    """The reason is the word for it."""

    async def cancelling(send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await send()

    assert once(cancelling, count=2).reasons == {"cancelled": 2}


async def spinning(send: Send) -> None:
    while True:
        await asyncio.sleep(0)


async def hammering(send: Send) -> None:
    while True:
        try:
            return await send()
        except Exception:
            pass


@pytest.mark.parametrize("code", [spinning, hammering])
def test_code_that_never_waits_ends_the_run(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time would stand still for ever: an error says so, and at which instant."""
    monkeypatch.setattr("abate.sim.agenda.MAX_EVENTS_PER_INSTANT", 1000)
    monkeypatch.setattr("abate.sim.coroutine_engine.MAX_EVENTS_PER_INSTANT", 500)
    with pytest.raises(abate.AbateError, match="at 0 s: time does not advance"):
        once(code, service=sim.Service("api", error_rate=1.0))


def test_a_function_that_is_not_async_is_refused() -> None:
    """Its first call ends the run, with its name and what it returned."""

    def plain(send: Send) -> int:
        return 42

    with pytest.raises(TypeError, match=r"must be an async function; .*plain.* returned 42"):
        once(plain)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run_at_once(kind: type[BaseException]) -> None:
    """It passes through, and leaves no loop behind."""

    async def interrupted(send: Send) -> None:
        await send()
        raise kind

    with pytest.raises(kind):
        once(interrupted, count=5)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
